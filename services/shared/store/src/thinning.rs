//! Thins a series to what a chart can show, in one pass and bounded memory.
//!
//! The stretch is cut into points / 2 slices of equal length; each keeps its least and its greatest
//! value, in order of time. So no extreme of the series is lost, and a peak stays within one slice
//! of where it was. A series that has no more points than asked for stays as it is.

pub struct Thinner {
    from_us: i64,
    length_us: u64,
    points: usize,
    /// Everything, while it is not too much.
    all: Vec<(i64, f64)>,
    /// Least and greatest point of each slice, once it is. At most points / 2.
    slices: Vec<Option<[(i64, f64); 2]>>,
}

impl Thinner {
    /// Points outside `from_us..to_us` count to the first or last slice. Fewer than 2 points are
    /// taken as 2.
    pub fn new(from_us: i64, to_us: i64, points: usize) -> Thinner {
        Thinner {
            from_us,
            length_us: to_us.abs_diff(from_us).max(1),
            points: points.max(2),
            all: Vec::new(),
            slices: Vec::new(),
        }
    }

    pub fn push(&mut self, time_us: i64, value: f64) {
        if !self.slices.is_empty() {
            self.keep(time_us, value);
            return;
        }
        self.all.push((time_us, value));
        if self.all.len() > self.points {
            self.slices = vec![None; self.points / 2];
            for (time, value) in std::mem::take(&mut self.all) {
                self.keep(time, value);
            }
        }
    }

    fn keep(&mut self, time_us: i64, value: f64) {
        let count = self.slices.len();
        let into = if time_us < self.from_us {
            0
        } else {
            time_us.abs_diff(self.from_us)
        };
        let index = u128::from(into) * count as u128 / u128::from(self.length_us);
        let index = usize::try_from(index).unwrap_or(usize::MAX).min(count - 1);
        let point = (time_us, value);
        match &mut self.slices[index] {
            None => self.slices[index] = Some([point, point]),
            Some([least, greatest]) => {
                if value < least.1 {
                    *least = point;
                }
                if value > greatest.1 {
                    *greatest = point;
                }
            }
        }
    }

    /// Times and values, in order of time.
    pub fn finish(self) -> (Vec<i64>, Vec<f64>) {
        let mut points = self.all;
        for slice in self.slices.into_iter().flatten() {
            let [least, greatest] = slice;
            points.push(least);
            if greatest != least {
                points.push(greatest);
            }
        }
        points.sort_by_key(|(time, _)| *time);
        points.into_iter().unzip()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn extremes_stay_and_order_and_bound_hold(
            values in prop::collection::vec((-5_i64..1005, -1e6..1e6_f64), 1..500),
            points in 0_usize..60,
        ) {
            let mut values = values;
            values.sort_by_key(|(time, _)| *time);
            let mut thinner = Thinner::new(0, 1000, points);
            for (time, value) in &values {
                thinner.push(*time, *value);
            }
            let (times, thinned) = thinner.finish();
            prop_assert_eq!(times.len(), thinned.len());
            prop_assert!(times.len() <= points.max(2));
            prop_assert!(times.is_sorted());
            for (time, value) in times.iter().zip(&thinned) {
                prop_assert!(values.contains(&(*time, *value)), "invents nothing");
            }
            let least = |v: &mut dyn Iterator<Item = f64>| v.fold(f64::INFINITY, f64::min);
            let greatest = |v: &mut dyn Iterator<Item = f64>| v.fold(f64::NEG_INFINITY, f64::max);
            let all = || values.iter().map(|(_, v)| *v);
            prop_assert_eq!(least(&mut all()), least(&mut thinned.iter().copied()));
            prop_assert_eq!(greatest(&mut all()), greatest(&mut thinned.iter().copied()));
            if values.len() <= points {
                prop_assert_eq!(times.len(), values.len());
            }
        }
    }
}
