//! UDP or IP.

/// The kind of a request's datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Udp,
    Ip,
}

impl Kind {
    pub(crate) fn count_dropped(self, at: &'static str) {
        match self {
            Self::Udp => metrics::counter!("braid_tunnel_udp_dropped_total", "at" => at),
            Self::Ip => metrics::counter!("braid_tunnel_ip_dropped_total", "at" => at),
        }
        .increment(1);
    }

    pub(super) fn count_repaired(self, count: u64) {
        match self {
            Self::Udp => metrics::counter!("braid_tunnel_udp_repaired_total"),
            Self::Ip => metrics::counter!("braid_tunnel_ip_repaired_total"),
        }
        .increment(count);
    }

    pub(super) fn count_sent(self, by: &'static str, count: u64) {
        match self {
            Self::Udp => metrics::counter!("braid_tunnel_udp_sent_total", "by" => by),
            Self::Ip => metrics::counter!("braid_tunnel_ip_sent_total", "by" => by),
        }
        .increment(count);
    }
}
