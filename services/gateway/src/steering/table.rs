//! Each access with its measurements and decisions: the gateway's rows of `/paths`, and its reports
//! to path-telemetry.

use std::collections::{BTreeMap, BTreeSet};

use contracts::paths::{AccessRank, AccessUse, RuleUse};
use service_kit::path_table::PathRow;
use tunnel::{
    PathSnapshot, PathState,
    steering_rules::{Period, Rank, Used},
};

use super::{
    flows::{Flows, Table, own_flows},
    rule_bytes::RuleKey,
};

/// Rules of one access in a report; further ones are left out.
const RULES_REPORTED_MAX: usize = 8;

impl Flows {
    /// A row for each open path.
    pub fn rows(&self, gateway: &str, paths: &[PathSnapshot]) -> Vec<PathRow> {
        let table = self.0.lock();
        let rules = table.rules_by_access();
        let open = paths.iter().filter(|path| path.state != PathState::Closed);
        open.map(|path| {
            let measured = table.measurements.get(&path.name);
            let keys = rules.get(&path.name);
            let named = keys.into_iter().flatten();
            let named: BTreeSet<&str> = named.map(|key| key.rule.as_str()).collect();
            let modes = keys.into_iter().flatten();
            let modes: BTreeSet<&str> = modes.map(|key| key.mode.name()).collect();
            PathRow {
                loss: measured.and_then(|it| it.loss),
                month_bytes: measured.map(|it| it.used.month_bytes),
                rank: table.schedule.of(&path.name).rank_name().to_owned(),
                rules: (named.into_iter().filter(|it| !it.is_empty()))
                    .map(str::to_owned)
                    .collect(),
                modes: modes.into_iter().map(str::to_owned).collect(),
                ..path.row(gateway)
            }
        })
        .collect()
    }

    /// The part of a report about each access, by its name.
    pub fn access_uses(&self) -> BTreeMap<String, AccessUse> {
        let table = self.0.lock();
        let mut rules = table.rules_by_access();
        let names = table.states.iter().map(|state| state.name.clone());
        names
            .map(|name| {
                let terms = table.in_force.document.terms_of(&name).0;
                let rank = match table.schedule.of(&name).rank {
                    Some(Rank::Active) => AccessRank::Active,
                    Some(Rank::Spill) => AccessRank::Spill,
                    Some(Rank::Standby) => AccessRank::Standby,
                    None => AccessRank::Forbidden,
                };
                let keys = rules.remove(&name).unwrap_or_default();
                let keys = keys.iter().take(RULES_REPORTED_MAX);
                let used = (table.measurements.get(&name)).map_or(Used::default(), |it| it.used);
                let cap = |period| terms.and_then(|terms| terms.cap_bytes(period));
                let access = AccessUse {
                    month_bytes: used.month_bytes,
                    week_bytes: used.week_bytes,
                    day_bytes: used.day_bytes,
                    cap_bytes: cap(Period::Month),
                    week_cap_bytes: cap(Period::Week),
                    day_cap_bytes: cap(Period::Day),
                    reset_day: terms.map_or(0, |terms| terms.reset_day.into()),
                    time_zone: terms
                        .and_then(|terms| terms.time_zone.clone())
                        .unwrap_or_default(),
                    price_per_gb: terms.map_or(0.0, |terms| terms.price_per_gb),
                    rank: rank.into(),
                    rules: keys.map(|key| key.to_use(0)).collect(),
                };
                (name, access)
            })
            .collect()
    }

    /// Bytes of flows by rule since the last call.
    pub fn take_rule_uses(&self) -> Vec<RuleUse> {
        let mut table = self.0.lock();
        table.settle();
        table.rule_bytes.take()
    }
}

impl Table {
    /// The rules and modes whose flows may use each access now. Alerts count where a rule decides
    /// about them; all other flows count always.
    fn rules_by_access(&self) -> BTreeMap<String, BTreeSet<RuleKey>> {
        let mut rules: BTreeMap<String, BTreeSet<RuleKey>> = BTreeMap::new();
        let [alerts, vitals] = own_flows(self.alarmed);
        let open = self.open.values().map(|open| &open.flow);
        for flow in [&alerts, &vitals].into_iter().chain(open) {
            let decision = self.decide(flow);
            if *flow == alerts && decision.rule.is_none() {
                continue;
            }
            let key = RuleKey::of(&decision);
            for choice in decision.order {
                rules.entry(choice.access).or_default().insert(key.clone());
            }
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };
    use std::time::Instant;

    use tunnel::steering_rules::{AccessState, Document, Flow, Measurement, Measurements, Urgency};

    use super::*;
    use crate::steering::InForce;

    const DOCUMENT: &str = "format = 1\n\
        [[access]]\nname = \"lte\"\nprice_per_gb = 4.0\ncap_gb = 5\nreset_day = 15\n\
        time_zone = \"Europe/Zurich\"\n\
        [[rule]]\nname = \"bulk\"\nmode = \"priority\"\naccesses = [\"wifi\", \"lte\"]\n\
        match = { urgency = [\"bulk\"] }\n";

    fn flows(document: &str) -> Flows {
        let flows = Flows::default();
        flows.0.lock().in_force = Arc::new(InForce {
            version: 3,
            document: Document::from_toml(document, "test").unwrap(),
        });
        flows
    }

    fn look(flows: &Flows, lte_bytes: u64) {
        let states = ["wifi", "lte"].map(AccessState::usable).to_vec();
        let lte = Measurement {
            used: Used {
                month_bytes: lte_bytes,
                ..Used::default()
            },
            ..Measurement::default()
        };
        let measurements = Measurements::from([("lte".to_owned(), lte)]);
        flows.decide_all(Instant::now(), states, measurements);
    }

    fn bulk() -> Flow {
        Flow::new("applications", Urgency::Bulk)
    }

    #[test]
    fn a_report_has_the_month_its_cap_and_the_rules_in_force() {
        let flows = flows(DOCUMENT);
        look(&flows, 7);
        let open = flows.enter(bulk()).unwrap();
        look(&flows, 1_000_000_000);
        let uses = flows.access_uses();
        let lte = &uses["lte"];
        assert_eq!((lte.month_bytes, lte.reset_day), (1_000_000_000, 15));
        assert_eq!(lte.time_zone, "Europe/Zurich");
        assert_eq!(
            (lte.cap_bytes, lte.price_per_gb),
            (Some(5_000_000_000), 4.0)
        );
        assert_eq!(lte.rank(), AccessRank::Spill);
        let rules: Vec<_> = lte
            .rules
            .iter()
            .map(|it| (it.rule.as_str(), it.mode.as_str()))
            .collect();
        assert_eq!(rules, [("", "auto"), ("bulk", "priority")]);
        assert_eq!((uses["wifi"].cap_bytes, uses["wifi"].reset_day), (None, 0));
        drop(open);
        look(&flows, 5_000_000_000);
        let uses = flows.access_uses();
        assert_eq!(uses["lte"].rules.len(), 1, "bulk has left it");
    }

    #[test]
    fn a_row_names_rules_and_modes() {
        let flows = flows(DOCUMENT);
        look(&flows, 7);
        let _open = flows.enter(bulk()).unwrap();
        let path = PathSnapshot {
            name: "lte".to_owned(),
            state: PathState::Available,
            ..PathSnapshot::default()
        };
        let rows = flows.rows("gw-1", &[path]);
        assert_eq!(rows[0].rules, ["bulk"]);
        assert_eq!(rows[0].modes, ["auto", "priority"]);
        assert_eq!(rows[0].month_bytes, Some(7));
    }

    #[test]
    fn bytes_belong_to_the_rule_that_decides_while_they_pass() {
        let flows = flows(DOCUMENT);
        look(&flows, 0);
        let open = flows.enter(bulk()).unwrap();
        let passed = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&passed);
        open.counts(move || counted.load(Ordering::Relaxed));
        passed.store(100, Ordering::Relaxed);
        look(&flows, 0);
        flows.0.lock().in_force = Arc::default();
        look(&flows, 0);
        passed.store(130, Ordering::Relaxed);
        drop(open);
        let uses = flows.take_rule_uses();
        let uses: Vec<_> = uses.iter().map(|it| (it.rule.as_str(), it.bytes)).collect();
        assert_eq!(uses, [("bulk", 100), ("", 30)]);
        assert_eq!(flows.take_rule_uses(), []);
    }
}
