//! The gateway's rows of `/paths`: the transport's counters, beside what steering measured and
//! decided.

use std::collections::{BTreeMap, BTreeSet};

use service_kit::path_table::PathRow;
use tunnel::{PathSnapshot, PathState};

use super::{Flows, own_flows};

impl Flows {
    /// A row for each open path.
    pub fn rows(&self, gateway: &str, paths: &[PathSnapshot]) -> Vec<PathRow> {
        let table = self.0.lock();
        let own = own_flows(table.alarmed);
        let mut rules: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        if !table.in_force.is_empty() {
            let open = table.open.values().map(|open| &open.flow);
            for flow in own.iter().chain(open) {
                let decision = table.decide(flow);
                for choice in decision.order {
                    let of_access = rules.entry(choice.access).or_default();
                    of_access.extend(decision.rule.clone());
                }
            }
        }
        let open = paths.iter().filter(|path| path.state != PathState::Closed);
        open.map(|path| {
            let measured = table.measurements.get(&path.name);
            PathRow {
                loss: measured.and_then(|it| it.loss),
                month_bytes: measured.map(|it| it.month_bytes),
                rank: table.schedule.of(&path.name).rank_name().to_owned(),
                rules: rules
                    .get(&path.name)
                    .map_or_else(Vec::new, |rules| rules.iter().cloned().collect()),
                ..path.row(gateway)
            }
        })
        .collect()
    }
}
