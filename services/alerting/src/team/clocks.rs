//! Doubts about the clocks of a team: a time zone that is absent, or that contradicts a rota.

use calendar::Zone;

use super::Team;

/// 15 January and 15 July 2026, 00:00 UTC: the offsets of a zone in winter and in summer.
const SEASONS_US: [i64; 2] = [1_768_435_200_000_000, 1_784_073_600_000_000];
const WEEK_MINUTES: i64 = 7 * 1440;

impl Team {
    /// One sentence for each doubt. A zone that is not in the database is refused with the
    /// document.
    pub fn clock_doubts(&self) -> Vec<String> {
        let offsets = self.rota.iter().map(|rota| rota.utc_offset_min);
        let Some(zone) = &self.time_zone else {
            let follows_utc = offsets.clone().any(|offset_min| offset_min.is_none());
            let shifts = if follows_utc {
                ", and shifts begin and end by UTC"
            } else {
                ""
            };
            return vec![format!(
                "the team has no time_zone, so messages give times in the zone of --time-zone{shifts}"
            )];
        };
        let of_zone = SEASONS_US.map(|us| offset_min(zone, us));
        let fixed = offsets.flatten().map(i64::from);
        let doubts = fixed.filter_map(|fixed| {
            if !of_zone.contains(&fixed) {
                return Some(format!(
                    "a rota has utc_offset_min {fixed}, which is no offset of {}",
                    zone.name()
                ));
            }
            let changes = of_zone[0] != of_zone[1];
            changes.then(|| {
                format!(
                    "a rota has utc_offset_min {fixed}, so its shifts do not follow the summer time of {}",
                    zone.name()
                )
            })
        });
        doubts.collect()
    }
}

/// Minutes east of Greenwich at this time.
fn offset_min(zone: &Zone, us: i64) -> i64 {
    let ahead = zone.week_minute(us) - Zone::default().week_minute(us);
    // At most 14 hours, over the end of the week.
    (ahead + WEEK_MINUTES / 2).rem_euclid(WEEK_MINUTES) - WEEK_MINUTES / 2
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::team::EXAMPLE;

    #[test]
    fn an_absent_or_contradicting_zone_is_said() {
        let doubts = |from: &str, to: &str| {
            assert!(EXAMPLE.contains(from), "{from}");
            let team = Team::from_json(&EXAMPLE.replacen(from, to, 1)).unwrap();
            team.clock_doubts().join("; ")
        };
        assert_eq!(doubts("Europe/Berlin", "Europe/Berlin"), "");
        let absent = doubts("\"time_zone\": \"Europe/Berlin\",", "");
        assert!(
            absent.contains("no time_zone") && absent.contains("by UTC"),
            "{absent}"
        );
        let fixed = |zone: &str, offset_min: i32| {
            let text = EXAMPLE.replacen("Europe/Berlin", zone, 1);
            let shifts = format!("\"utc_offset_min\": {offset_min}, \"shifts\"");
            let team = Team::from_json(&text.replacen("\"shifts\"", &shifts, 1)).unwrap();
            team.clock_doubts().join("; ")
        };
        assert!(fixed("Europe/Berlin", 60).contains("do not follow the summer time"));
        assert!(fixed("Europe/Berlin", -60).contains("no offset of Europe/Berlin"));
        assert_eq!(fixed("Asia/Kolkata", 330), "");
        assert_eq!(fixed("Pacific/Kiritimati", 840), "");
        assert_eq!(fixed("America/Phoenix", -420), "");
    }
}
