//! When a series has reached its long-run level.

/// The first time after which a series stays within `share` of its last value; none of an empty
/// series.
pub fn settling_s(times_s: &[f64], values: &[f64], share: f64) -> Option<f64> {
    let last = *values.last()?;
    let away = |value: &f64| (value - last).abs() > share * last.abs();
    match values.iter().rposition(away) {
        None => times_s.first().copied(),
        Some(index) => times_s.get(index + 1).copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_settles_where_it_enters_its_band_for_good() {
        let times: Vec<f64> = (0..6).map(f64::from).collect();
        let values = [0.0, 99.0, 50.0, 96.0, 104.0, 100.0];
        assert_eq!(settling_s(&times, &values, 0.05), Some(3.0));
        assert_eq!(settling_s(&times, &[1.0; 6], 0.05), Some(0.0));
        assert_eq!(settling_s(&[], &[], 0.05), None);
    }
}
