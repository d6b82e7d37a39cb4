//! Series of each access for Prometheus: bytes, round trip, loss, and the month with its cap and
//! price. Their labels are the names of accesses, at most `ACCESSES_MAX`.

use std::collections::{BTreeMap, BTreeSet};

use tunnel::{
    PathSnapshot,
    steering_rules::{Document, Measurements, Period},
};

/// Accesses with series; further ones have none.
const ACCESSES_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Series {
    names: BTreeSet<String>,
    /// Bytes of each path so far, sent and received; the paths are the tunnel's.
    seen: BTreeMap<(u64, u64), (u64, u64)>,
}

impl Series {
    pub(super) fn publish(
        &mut self,
        paths: &[PathSnapshot],
        measurements: &Measurements,
        document: &Document,
    ) {
        for (name, up, down) in self.added(paths) {
            let bytes = |direction| metrics::counter!("braid_gateway_path_bytes_total", "path" => name.clone(), "direction" => direction);
            bytes("up").increment(up);
            bytes("down").increment(down);
        }
        for (name, measured) in measurements.iter().filter(|it| self.names.contains(it.0)) {
            let rtt_s = measured.rtt.map_or(f64::NAN, |rtt| rtt.as_secs_f64());
            let loss = measured.loss.unwrap_or(f64::NAN);
            metrics::gauge!("braid_gateway_path_rtt_seconds", "path" => name.clone()).set(rtt_s);
            metrics::gauge!("braid_gateway_path_loss_ratio", "path" => name.clone()).set(loss);
            let terms = document.terms_of(name).0;
            let month = measured.used.month_bytes as f64;
            let cap = terms.and_then(|terms| terms.cap_bytes(Period::Month));
            let cap = cap.map_or(f64::NAN, |cap| cap as f64);
            let nearest = terms.and_then(|terms| terms.nearest_cap(&measured.used));
            let left = nearest.map_or(f64::NAN, |cap| cap.left_bytes as f64);
            let price = terms.map_or(0.0, |terms| terms.price_per_gb);
            metrics::gauge!("braid_gateway_path_cap_bytes", "path" => name.clone()).set(cap);
            metrics::gauge!("braid_gateway_path_cap_left_bytes", "path" => name.clone()).set(left);
            metrics::gauge!("braid_gateway_path_month_cost", "path" => name.clone())
                .set(month / 1e9 * price);
        }
    }

    /// UDP payload that each path carried since the last call, by the name of its access.
    fn added(&mut self, paths: &[PathSnapshot]) -> Vec<(String, u64, u64)> {
        let mut added = Vec::new();
        let mut seen = BTreeMap::new();
        for path in paths {
            let id = (path.session, path.path_id);
            let before = self.seen.get(&id).copied().unwrap_or_default();
            // Its bytes are counted once its name has come.
            if path.name.is_empty() {
                continue;
            }
            seen.insert(id, (path.sent_bytes, path.received_bytes));
            let is_known = self.names.contains(&path.name);
            if !is_known && self.names.len() >= ACCESSES_MAX {
                continue;
            }
            self.names.insert(path.name.clone());
            added.push((
                path.name.clone(),
                path.sent_bytes.saturating_sub(before.0),
                path.received_bytes.saturating_sub(before.1),
            ));
        }
        self.seen = seen;
        added
    }
}

#[cfg(test)]
mod tests {
    use tunnel::PathState;

    use super::*;

    #[test]
    fn bytes_of_a_path_are_added_once_and_names_are_bounded() {
        let path = |name: &str, session, sent_bytes| PathSnapshot {
            session,
            name: name.to_owned(),
            state: PathState::Available,
            sent_bytes,
            ..PathSnapshot::default()
        };
        let mut series = Series::default();
        let lte = |up| vec![("lte".to_owned(), up, 0)];
        assert_eq!(series.added(&[path("", 1, 70)]), []);
        assert_eq!(series.added(&[path("lte", 1, 100)]), lte(100));
        assert_eq!(series.added(&[path("lte", 1, 130)]), lte(30));
        assert_eq!(series.added(&[path("lte", 2, 5)]), lte(5));
        let many: Vec<PathSnapshot> = (0..100)
            .map(|number| path(&format!("wwan{number}"), number, 1))
            .collect();
        assert_eq!(series.added(&many).len(), ACCESSES_MAX - 1);
    }
}
