//! How near a certificate is to its end, and who was told of it. Sans-IO.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Days before the end at which people are told.
pub(super) const DAYS: [u32; 4] = [30, 14, 7, 1];
const DAY_US: i64 = 86_400_000_000;
/// A gateway renews 30 days before the end, and is given so long for it.
const RENEWAL_US: i64 = DAY_US / 2;
/// For how long a replica has the letters for itself. It renews nothing, and a letter takes at most
/// ten seconds.
const TELLING_US: i64 = 600_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    pub tenant: String,
    pub gateway: String,
    pub until_us: i64,
    /// The number of [`DAYS`] that has come; 0: it has ended.
    pub days: u32,
}

impl Ending {
    fn key(&self) -> String {
        format!("{} {}", self.tenant, self.gateway)
    }

    pub(super) fn text(&self, now_us: i64) -> String {
        let left_us = self.until_us.saturating_sub(now_us);
        let days = left_us / DAY_US;
        match (left_us <= 0, days) {
            (true, _) => format!("{} has ended", self.gateway),
            (false, 0) => format!("{} within a day", self.gateway),
            (false, 1) => format!("{} in 1 day", self.gateway),
            (false, days) => format!("{} in {days} days", self.gateway),
        }
    }
}

/// The least number of days that has come. `None`: the end is far away.
pub(super) fn stage(until_us: i64, now_us: i64) -> Option<u32> {
    let left_us = until_us.saturating_sub(now_us);
    if left_us <= 0 {
        return Some(0);
    }
    let limit_us = |days: u32| match days {
        30 => 30 * DAY_US - RENEWAL_US,
        days => i64::from(days) * DAY_US,
    };
    let come = DAYS.into_iter().filter(|days| left_us <= limit_us(*days));
    come.min()
}

/// The last stage of each certificate that people were told of, for all replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Told {
    /// By tenant and gateway: the end of the certificate, and the stage.
    told: BTreeMap<String, (i64, u32)>,
    /// The replica that writes letters, and until when no other does.
    telling: Option<(String, i64)>,
}

impl Told {
    /// The certificates that have come to another stage, for this replica to notify people of.
    pub(super) fn claim<'a>(
        &mut self,
        replica: &str,
        found: &'a [Ending],
        now_us: i64,
    ) -> Vec<&'a Ending> {
        let is_free = match &self.telling {
            Some((other, until_us)) => other == replica || *until_us <= now_us,
            None => true,
        };
        let due = found.iter().filter(|ending| {
            let told = self.told.get(&ending.key());
            told.is_none_or(|(until_us, days)| *until_us != ending.until_us || *days > ending.days)
        });
        let due: Vec<&Ending> = due.filter(|_| is_free).collect();
        if !due.is_empty() {
            self.telling = Some((replica.to_owned(), now_us.saturating_add(TELLING_US)));
        }
        due
    }

    /// People were told of `done`. Certificates that are found no more are forgotten.
    pub(super) fn settle(&mut self, replica: &str, done: &[Ending], found: &[Ending]) {
        self.telling.take_if(|(telling, _)| telling == replica);
        for ending in done {
            self.told
                .insert(ending.key(), (ending.until_us, ending.days));
        }
        self.told
            .retain(|name, _| found.iter().any(|ending| ending.key() == *name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(gateway: &str, days: u32) -> Ending {
        Ending {
            tenant: "one".to_owned(),
            gateway: gateway.to_owned(),
            until_us: 7,
            days,
        }
    }

    #[test]
    fn each_number_of_days_is_a_stage_and_a_renewal_has_its_time() {
        let left = |hours: i64| stage(hours * 3_600_000_000, 0);
        assert_eq!(left(31 * 24), None);
        assert_eq!(left(30 * 24 - 1), None, "the gateway renews just now");
        assert_eq!(left(30 * 24 - 12), Some(30));
        assert_eq!(left(14 * 24 + 1), Some(30));
        assert_eq!(left(14 * 24), Some(14));
        assert_eq!(left(7 * 24), Some(7));
        assert_eq!(left(25), Some(7));
        assert_eq!(left(24), Some(1));
        assert_eq!(left(0), Some(0));
        assert_eq!(left(-5), Some(0));
    }

    #[test]
    fn people_are_told_once_of_each_stage_by_one_replica() {
        let mut told = Told::default();
        let found = [ending("g1", 30), ending("g2", 7)];
        assert_eq!(told.claim("a", &found, 0).len(), 2);
        assert!(told.claim("b", &found, 1).is_empty());
        // The letter about the second one could not be sent.
        told.settle("a", &found[..1], &found);
        assert_eq!(told.claim("b", &found, 2), [&ending("g2", 7)]);
        told.settle("b", &found[1..], &found);
        assert!(told.claim("a", &found, 3).is_empty());
        let nearer = [ending("g1", 14), ending("g2", 7)];
        assert_eq!(told.claim("a", &nearer, 4), [&ending("g1", 14)]);
        assert_eq!(told.claim("b", &nearer, 4 + TELLING_US).len(), 1, "a died");
        told.settle("b", &nearer[..1], &nearer[..1]);
        assert_eq!(told.told.len(), 1, "the renewed one is forgotten");
        // A new certificate that runs out again is told again.
        let again = [Ending {
            until_us: 8,
            ..ending("g1", 30)
        }];
        assert_eq!(told.claim("a", &again, 9).len(), 1);
    }

    #[test]
    fn a_gateway_is_named_with_the_days_that_are_left() {
        let mut one = ending("g1", 7);
        for (hours, text) in [
            (-1, "g1 has ended"),
            (5, "g1 within a day"),
            (30, "g1 in 1 day"),
            (72, "g1 in 3 days"),
        ] {
            one.until_us = hours * 3_600_000_000;
            assert_eq!(one.text(0), text);
        }
    }
}
