//! One path as reports and tables show it.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use multipath::PathState;
use service_kit::path_table::PathRow;

/// One path at one moment. Counters begin with the path.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PathSnapshot {
    /// Distinguishes the successive connections of one process.
    pub session: u64,
    /// Unique within the session; a path that is opened again gets a new id.
    pub path_id: u64,
    /// Name of the access network; empty until the peer has sent it.
    pub name: String,
    pub state: PathState,
    pub rtt: Duration,
    pub rtt_min: Duration,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub sent_packets: u64,
    pub received_datagrams: u64,
    pub lost_packets: u64,
    pub congestion_window_bytes: u64,
    /// Headers of a packet between that of IP and the counted bytes.
    pub packet_header_bytes: u8,
    pub local_ip: Option<IpAddr>,
    pub remote_address: Option<SocketAddr>,
}

impl PathSnapshot {
    /// The row of `/paths` as far as the transport knows it.
    pub fn row(&self, gateway: &str) -> PathRow {
        PathRow {
            gateway: gateway.to_owned(),
            path: match self.name.is_empty() {
                true => format!("path-{}", self.path_id),
                false => self.name.clone(),
            },
            session: self.session,
            path_id: self.path_id,
            state: format!("{:?}", self.state).to_lowercase(),
            rtt_ms: self.rtt.as_secs_f64() * 1e3,
            rtt_min_ms: self.rtt_min.as_secs_f64() * 1e3,
            sent_bytes: self.sent_bytes,
            received_bytes: self.received_bytes,
            sent_packets: self.sent_packets,
            lost_packets: self.lost_packets,
            congestion_window_bytes: self.congestion_window_bytes,
            local_address: self.local_ip.map_or_else(String::new, |it| it.to_string()),
            remote_address: self
                .remote_address
                .map_or_else(String::new, |it| it.to_string()),
            ..PathRow::default()
        }
    }
}
