//! Braid's times, microseconds since the Unix epoch, as `timestamptz`.

use std::error::Error;

use tokio_postgres::types::{
    FromSql, IsNull, ToSql, Type, accepts, private::BytesMut, to_sql_checked,
};

pub(super) const MINUTE_US: i64 = 60_000_000;
pub(super) const HOUR_US: i64 = 60 * MINUTE_US;
/// PostgreSQL counts from 2000-01-01.
const EPOCH_US: i64 = 946_684_800_000_000;
/// 1 AD to 287168 AD: within what both the type and the arithmetic of TimescaleDB's chunks can
/// take.
const LEAST_US: i64 = -62_135_596_800_000_000;
const GREATEST_US: i64 = 9_000_000_000_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(pub i64);

impl Micros {
    /// For a bound of a question: the nearest time that there is.
    pub fn clamped(us: i64) -> Micros {
        Micros(us.clamp(LEAST_US, GREATEST_US))
    }

    /// For a row.
    pub fn exact(us: i64) -> Option<Micros> {
        (LEAST_US..=GREATEST_US).contains(&us).then_some(Micros(us))
    }

    /// The value as transferred.
    pub fn raw(self) -> i64 {
        self.0.saturating_sub(EPOCH_US)
    }
}

impl ToSql for Micros {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        self.raw().to_sql(ty, out)
    }

    accepts!(TIMESTAMPTZ);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Micros {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Micros, Box<dyn Error + Sync + Send>> {
        let raw = i64::from_sql(&Type::INT8, raw)?;
        Ok(Micros(raw.saturating_add(EPOCH_US)))
    }

    accepts!(TIMESTAMPTZ);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_type_cannot_hold_is_no_row() {
        for us in [i64::MIN, LEAST_US - 1, GREATEST_US + 1, i64::MAX] {
            assert_eq!(Micros::exact(us), None);
            assert!(Micros::exact(Micros::clamped(us).0).is_some());
        }
        for us in [LEAST_US, 0, GREATEST_US] {
            assert_eq!(Micros::exact(us), Some(Micros(us)));
            assert_eq!(Micros(us).raw().checked_add(EPOCH_US), Some(us));
        }
    }
}
