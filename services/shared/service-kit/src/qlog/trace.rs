//! Changes of paths as qlog events in JSON text sequences (RFC 7464); sans-IO.
//!
//! The header is that of the main schema, draft 13. Events `quic:...` are those of the QUIC schema,
//! draft 12. `braid:path_updated` holds the fields that the schema lacks: the name of the access,
//! counters of the path, its rank and the modes of its flows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use crate::path_table::PathRow;

/// First byte of each record, and its last one.
const RECORD_SEPARATOR: u8 = 0x1e;
const RECORD_END: u8 = b'\n';
const SCHEMAS: [&str; 2] = [
    "urn:ietf:params:qlog:events:quic-12",
    "urn:x-braid:qlog:events:paths-1",
];

/// A path is told from others by its session and its id.
type Id = (u64, u64);

/// The values of a path that were written last.
#[derive(Debug, Default)]
struct Written {
    metrics: Value,
    path: Value,
}

/// One file's events.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// Bounded by the open paths: one that is gone is forgotten.
    paths: BTreeMap<Id, Written>,
}

/// The first record of a file. `vantage_point` is `client` or `server`.
pub(super) fn header(
    service: &str,
    gateway: &str,
    vantage_point: &str,
    wall_clock_time: &str,
) -> Vec<u8> {
    record(&json!({
        "file_schema": "urn:ietf:params:qlog:file:sequential",
        "serialization_format": "application/qlog+json-seq",
        "title": format!("paths of {gateway} at its {service}"),
        "trace": {
            "title": format!("paths of {gateway}"),
            "vantage_point": { "name": service, "type": vantage_point },
            "event_schemas": SCHEMAS,
            "common_fields": {
                "time_format": "relative_to_epoch",
                "reference_time": {
                    "clock_type": "monotonic",
                    "epoch": "unknown",
                    "wall_clock_time": wall_clock_time,
                },
            },
        },
    }))
}

impl Trace {
    /// The changes since the last call, `time_ms` after the header.
    pub(super) fn events(&mut self, time_ms: f64, rows: &[PathRow]) -> Vec<u8> {
        let mut text = Vec::new();
        let mut put = |session: u64, tuple: Option<Id>, name: &str, data: &Value| {
            let mut event = json!({
                "time": time_ms,
                "name": name,
                "group_id": session.to_string(),
                "data": data,
            });
            if let (Some(tuple), Some(event)) = (tuple, event.as_object_mut()) {
                event.insert("tuple".to_owned(), json!(tuple_id(tuple)));
            }
            text.extend(record(&event));
        };
        let open: BTreeSet<Id> = rows.iter().map(id).collect();
        let gone = self.paths.keys().filter(|id| !open.contains(id));
        for id in gone.copied().collect::<Vec<_>>() {
            self.paths.remove(&id);
            let closed = json!({ "path_id": id.1, "state": "closed" });
            put(id.0, Some(id), "braid:path_updated", &closed);
            let is_last = !self.paths.keys().any(|it| it.0 == id.0);
            if is_last && !open.iter().any(|it| it.0 == id.0) {
                put(id.0, None, "quic:connection_closed", &json!({}));
            }
        }
        for row in rows {
            let id = id(row);
            let is_first_of_session = !self.paths.keys().any(|it| it.0 == id.0);
            let is_new = !self.paths.contains_key(&id);
            let (local, remote) = (local(row), remote(row));
            if is_first_of_session {
                let started = json!({ "local": local, "remote": remote });
                put(id.0, None, "quic:connection_started", &started);
            }
            if is_new {
                let assigned = json!({
                    "tuple_id": tuple_id(id), "tuple_local": local, "tuple_remote": remote,
                });
                put(id.0, Some(id), "quic:tuple_assigned", &assigned);
            }
            let written = self.paths.entry(id).or_default();
            let metrics = json!({
                "smoothed_rtt": row.rtt_ms,
                "min_rtt": row.rtt_min_ms,
                "congestion_window": row.congestion_window_bytes,
            });
            if written.metrics != metrics {
                put(id.0, Some(id), "quic:recovery_metrics_updated", &metrics);
                written.metrics = metrics;
            }
            let path = json!({
                "path_id": row.path_id,
                "access": row.path,
                "state": row.state,
                "sent_bytes": row.sent_bytes,
                "received_bytes": row.received_bytes,
                "sent_packets": row.sent_packets,
                "lost_packets": row.lost_packets,
                "rank": row.rank,
                "modes": row.modes,
                "rules": row.rules,
            });
            if written.path != path {
                put(id.0, Some(id), "braid:path_updated", &path);
                written.path = path;
            }
        }
        text
    }
}

fn id(row: &PathRow) -> Id {
    (row.session, row.path_id)
}

fn tuple_id((session, path_id): Id) -> String {
    format!("{session}/{path_id}")
}

fn local(row: &PathRow) -> Value {
    endpoint(row.local_address.parse().ok(), None)
}

fn remote(row: &PathRow) -> Value {
    let address = row.remote_address.parse::<SocketAddr>().ok();
    endpoint(address.map(|it| it.ip()), address.map(|it| it.port()))
}

/// Without what is not known.
fn endpoint(ip: Option<IpAddr>, port: Option<u16>) -> Value {
    let (ip_name, port_name) = match ip.map(|ip| ip.to_canonical()) {
        Some(IpAddr::V4(_)) => ("ip_v4", "port_v4"),
        Some(IpAddr::V6(_)) => ("ip_v6", "port_v6"),
        None => return json!({}),
    };
    let ip = ip.map(|ip| ip.to_canonical().to_string());
    match port {
        Some(port) => json!({ ip_name: ip, port_name: port }),
        None => json!({ ip_name: ip }),
    }
}

fn record(value: &Value) -> Vec<u8> {
    let mut record = vec![RECORD_SEPARATOR];
    record.extend_from_slice(value.to_string().as_bytes());
    record.push(RECORD_END);
    record
}
