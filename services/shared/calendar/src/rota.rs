//! Shifts of a week, and who is on call by them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Zone;

const MINUTE_US: i64 = 60_000_000;
const DAY_MINUTES: i64 = 1440;
pub const WEEK_MINUTES: i64 = 7 * DAY_MINUTES;
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// Weekly shifts on one clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rota {
    /// Minutes east of Greenwich, all year. Default: the team's zone, with summer time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utc_offset_min: Option<i32>,
    pub shifts: Vec<Shift>,
}

/// `from` is inside the shift, `to` is not. A shift may span the end of the week.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shift {
    pub from: WeekTime,
    pub to: WeekTime,
    pub contact: String,
}

/// Minutes since Monday 00:00, written as `mon 08:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeekTime(i64);

impl Rota {
    /// The contacts whose shift it is, by the rota's offset or else by the zone; without both by
    /// UTC.
    pub fn on_call(&self, zone: Option<&Zone>, now_us: i64) -> impl Iterator<Item = &str> {
        let minute = match (self.utc_offset_min, zone) {
            (None, Some(zone)) => zone.week_minute(now_us),
            (offset_min, _) => {
                let offset_min = i64::from(offset_min.unwrap_or_default());
                let local = now_us.div_euclid(MINUTE_US) + offset_min;
                // 1 January 1970 was a Thursday.
                (local + 3 * DAY_MINUTES).rem_euclid(WEEK_MINUTES)
            }
        };
        self.shifts
            .iter()
            .filter(move |shift| shift.covers(minute))
            .map(|shift| shift.contact.as_str())
    }
}

impl Shift {
    /// `minute`: of the week.
    pub fn covers(&self, minute: i64) -> bool {
        let (from, to) = (self.from.0, self.to.0);
        if from < to {
            (from..to).contains(&minute)
        } else {
            minute >= from || minute < to
        }
    }
}

impl WeekTime {
    pub fn of_minute(minute: i64) -> WeekTime {
        WeekTime(minute.rem_euclid(WEEK_MINUTES))
    }

    fn parse(text: &str) -> Option<WeekTime> {
        let (day, time) = text.split_once(' ')?;
        let day = DAYS.iter().position(|name| *name == day)?;
        let (hour, minute) = time.split_once(':')?;
        let two_digits = |text: &str| {
            let is_short = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
            is_short.then(|| text.parse::<i64>().ok()).flatten()
        };
        let (hour, minute) = (two_digits(hour)?, two_digits(minute)?);
        let is_time = hour < 24 && minute < 60;
        is_time.then_some(WeekTime(day as i64 * DAY_MINUTES + hour * 60 + minute))
    }
}

impl fmt::Display for WeekTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let day = usize::try_from(self.0 / DAY_MINUTES).unwrap_or_default();
        let minute = self.0 % DAY_MINUTES;
        write!(
            f,
            "{} {:02}:{:02}",
            DAYS[day % DAYS.len()],
            minute / 60,
            minute % 60
        )
    }
}

impl Serialize for WeekTime {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WeekTime {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<WeekTime, D::Error> {
        let text = String::deserialize(from)?;
        WeekTime::parse(&text).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "{text:?} is no time of the week, for example \"mon 08:00\""
            ))
        })
    }
}
