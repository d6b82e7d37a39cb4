//! Counts of tunnels: requests by their result, and those that are open.

pub(super) fn count_connect(result: &'static str) {
    metrics::counter!("braid_proxy_connects_total", "result" => result).increment(1);
}

/// Counts the tunnels that are open.
pub(super) struct Open;

impl Open {
    pub(super) fn enter() -> Self {
        count_connect("ok");
        metrics::gauge!("braid_proxy_tunnels_open").increment(1.0);
        Self
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        metrics::gauge!("braid_proxy_tunnels_open").decrement(1.0);
    }
}
