//! Ways in the plane, and the nodes that follow them at a fixed distance along the way (7), (8).

use toml_errors::Invalid;

use crate::network::positive;

/// Longest way; the table of positions grows with it.
pub const WAY_SECONDS_MAX: f64 = 86_400.0;
/// Farthest a node may be from the middle.
pub const NODE_AHEAD_M_MAX: f64 = 100_000.0;
/// Distance in time between two positions of the table.
const SAMPLE_S: f64 = 0.05;
/// How long the way is continued beyond its ends for nodes that are ahead or behind.
const BEYOND_S_MAX: f64 = 600.0;

/// One part of a way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Segment {
    /// X = R cos(3 g t) cos(g t), Y = R cos(3 g t) sin(g t): a clover of three leaves; one
    /// revolution takes pi / g.
    Clover {
        radius_m: f64,
        gamma_per_s: f64,
        revolutions: f64,
    },
    /// Part of a circle; a negative sweep goes clockwise.
    Arc {
        centre_m: (f64, f64),
        radius_m: f64,
        from_deg: f64,
        sweep_deg: f64,
        speed_m_s: f64,
    },
    Line {
        from_m: (f64, f64),
        to_m: (f64, f64),
        speed_m_s: f64,
    },
    Stay {
        at_m: (f64, f64),
        heading_deg: f64,
        seconds: f64,
    },
}

impl Segment {
    pub fn seconds(&self) -> f64 {
        match *self {
            Self::Clover {
                gamma_per_s,
                revolutions,
                ..
            } => revolutions * std::f64::consts::PI / gamma_per_s,
            Self::Arc {
                radius_m,
                sweep_deg,
                speed_m_s,
                ..
            } => radius_m * sweep_deg.abs().to_radians() / speed_m_s,
            Self::Line {
                from_m,
                to_m,
                speed_m_s,
            } => (to_m.0 - from_m.0).hypot(to_m.1 - from_m.1) / speed_m_s,
            Self::Stay { seconds, .. } => seconds,
        }
    }

    /// Position so long after the segment's beginning; times outside the segment continue its
    /// curve.
    fn at(&self, t: f64) -> (f64, f64) {
        match *self {
            Self::Clover {
                radius_m,
                gamma_per_s,
                ..
            } => {
                let angle = gamma_per_s * t;
                let r = radius_m * (3.0 * angle).cos();
                (r * angle.cos(), r * angle.sin())
            }
            Self::Arc {
                centre_m,
                radius_m,
                from_deg,
                sweep_deg,
                speed_m_s,
            } => {
                let turn = speed_m_s / radius_m * t * sweep_deg.signum();
                let angle = from_deg.to_radians() + turn;
                (
                    centre_m.0 + radius_m * angle.cos(),
                    centre_m.1 + radius_m * angle.sin(),
                )
            }
            Self::Line {
                from_m,
                to_m,
                speed_m_s,
            } => {
                let length = (to_m.0 - from_m.0).hypot(to_m.1 - from_m.1);
                let share = speed_m_s * t / length;
                (
                    from_m.0 + (to_m.0 - from_m.0) * share,
                    from_m.1 + (to_m.1 - from_m.1) * share,
                )
            }
            Self::Stay { at_m, .. } => at_m,
        }
    }

    /// Refuses what gives no way.
    pub(crate) fn check(&self, field: &str) -> Result<(), Invalid> {
        let part = |name: &str| format!("{field}.{name}");
        let point = |name: &str, at: (f64, f64)| {
            if at.0.abs() <= 1e7 && at.1.abs() <= 1e7 {
                return Ok(());
            }
            Err(Invalid {
                field: part(name),
                reason: "not within 10,000 km; for example [-200.0, -400.0]".to_owned(),
            })
        };
        let angle = |name: &str, degrees: f64| {
            if degrees.abs() <= 36_000.0 {
                return Ok(());
            }
            Err(Invalid {
                field: part(name),
                reason: "not between -36000 and 36000 degrees; for example 180.0".to_owned(),
            })
        };
        match *self {
            Self::Clover {
                radius_m,
                gamma_per_s,
                revolutions,
            } => {
                positive(&part("radius_m"), radius_m, 1e7, "500.0")?;
                positive(&part("gamma_per_s"), gamma_per_s, 10.0, "0.0166667")?;
                positive(&part("revolutions"), revolutions, 1e4, "2.0")?;
            }
            Self::Arc {
                centre_m,
                radius_m,
                from_deg,
                sweep_deg,
                speed_m_s,
            } => {
                point("centre_m", centre_m)?;
                positive(&part("radius_m"), radius_m, 1e7, "430.0")?;
                angle("from_deg", from_deg)?;
                angle("sweep_deg", sweep_deg)?;
                positive(&part("speed_m_s"), speed_m_s, 1e4, "8.5")?;
            }
            Self::Line {
                from_m,
                to_m,
                speed_m_s,
            } => {
                point("from_m", from_m)?;
                point("to_m", to_m)?;
                positive(&part("speed_m_s"), speed_m_s, 1e4, "8.5")?;
                let length = (to_m.0 - from_m.0).hypot(to_m.1 - from_m.1);
                positive(&part("to_m"), length, 1e8, "a point other than from_m")?;
            }
            Self::Stay {
                at_m,
                heading_deg,
                seconds,
            } => {
                point("at_m", at_m)?;
                angle("heading_deg", heading_deg)?;
                positive(&part("seconds"), seconds, WAY_SECONDS_MAX, "20.0")?;
            }
        }
        let seconds = self.seconds();
        positive(&part("seconds"), seconds, WAY_SECONDS_MAX, "540.0")
    }
}

/// Why there is no track.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TrackError {
    #[error("the way has no segment")]
    Empty,
    #[error("the way takes {0:.0} s, longer than a day")]
    TooLong(f64),
}

/// A way as a table of positions and lengths.
#[derive(Debug, Clone)]
pub struct Track {
    begin_s: f64,
    end_s: f64,
    /// Position and length along the way at every `SAMPLE_S` from `begin_s` on.
    samples: Vec<(f64, f64, f64)>,
    /// Directions in which nodes are placed beyond the table's first and last length.
    headings: [(f64, f64); 2],
}

impl Track {
    /// `reach_m`: how far nodes may be from the middle.
    pub fn new(segments: &[Segment], reach_m: f64) -> Result<Self, TrackError> {
        let (Some(first), Some(last)) = (segments.first(), segments.last()) else {
            return Err(TrackError::Empty);
        };
        let seconds: f64 = segments.iter().map(Segment::seconds).sum();
        if seconds > WAY_SECONDS_MAX {
            return Err(TrackError::TooLong(seconds));
        }
        let before_s = reach_s(reach_m, |t| first.at(-t));
        let last_from = seconds - last.seconds();
        let after_s = reach_s(reach_m, |t| last.at(last.seconds() + t));
        let count = ((before_s + seconds + after_s) / SAMPLE_S).ceil() as usize + 1;
        let mut samples: Vec<(f64, f64, f64)> = Vec::with_capacity(count);
        let mut segment = 0;
        let mut from_s = 0.0;
        for index in 0..count {
            let t = index as f64 * SAMPLE_S - before_s;
            while segment + 1 < segments.len() && t >= from_s + segments[segment].seconds() {
                from_s += segments[segment].seconds();
                segment += 1;
            }
            let (x, y) = segments[segment].at(t - from_s);
            let length = samples
                .last()
                .map_or(0.0, |last| last.2 + (x - last.0).hypot(y - last.1));
            samples.push((x, y, length));
        }
        debug_assert!(from_s <= last_from + 1e-6);
        let headings = [heading(first, 0.0), heading(last, last.seconds())];
        Ok(Self {
            begin_s: -before_s,
            end_s: seconds,
            samples,
            headings,
        })
    }

    /// Duration of the way itself.
    pub fn seconds(&self) -> f64 {
        self.end_s
    }

    /// Where a node is that is so many metres ahead of the middle, measured along the way (7), (8).
    pub fn position(&self, at_s: f64, ahead_m: f64) -> (f64, f64) {
        let last = self.samples.len() - 1;
        let place = ((at_s - self.begin_s) / SAMPLE_S).clamp(0.0, last as f64);
        let index = (place as usize).min(last.saturating_sub(1));
        let (one, two) = (self.samples[index], self.samples[(index + 1).min(last)]);
        let share = place - index as f64;
        let middle = one.2 + (two.2 - one.2) * share;
        if ahead_m == 0.0 {
            return between(one, two, share);
        }
        let wanted = middle + ahead_m;
        if wanted <= 0.0 || wanted >= self.samples[last].2 {
            let (end, side) = if ahead_m < 0.0 { (0, 0) } else { (last, 1) };
            let beyond = wanted - self.samples[end].2;
            let from = self.samples[end];
            let heading = self.headings[side];
            return (from.0 + heading.0 * beyond, from.1 + heading.1 * beyond);
        }
        let upper = self.samples.partition_point(|sample| sample.2 < wanted);
        let (one, two) = (self.samples[upper - 1], self.samples[upper]);
        between(one, two, (wanted - one.2) / (two.2 - one.2).max(1e-12))
    }
}

fn between(one: (f64, f64, f64), two: (f64, f64, f64), share: f64) -> (f64, f64) {
    (
        one.0 + (two.0 - one.0) * share,
        one.1 + (two.1 - one.1) * share,
    )
}

/// How long a curve must be continued to be `reach_m` long; zero for one that stands still.
fn reach_s(reach_m: f64, at: impl Fn(f64) -> (f64, f64)) -> f64 {
    let mut length = 0.0;
    let mut last = at(0.0);
    let mut t = 0.0;
    while length < reach_m && t < BEYOND_S_MAX {
        t += SAMPLE_S;
        let next = at(t);
        length += (next.0 - last.0).hypot(next.1 - last.1);
        last = next;
        if length == 0.0 {
            return 0.0;
        }
    }
    // A whole number of samples, so that time zero is one of them.
    (t / SAMPLE_S).round() * SAMPLE_S
}

fn heading(segment: &Segment, t: f64) -> (f64, f64) {
    if let Segment::Stay { heading_deg, .. } = segment {
        let angle = heading_deg.to_radians();
        return (angle.cos(), angle.sin());
    }
    let (one, two) = (segment.at(t - 1e-3), segment.at(t + 1e-3));
    let length = (two.0 - one.0).hypot(two.1 - one.1).max(1e-12);
    ((two.0 - one.0) / length, (two.1 - one.1) / length)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const CLOVER: Segment = Segment::Clover {
        radius_m: 500.0,
        gamma_per_s: 0.05 / 3.0,
        revolutions: 2.0,
    };

    /// Appendix: the speed is 25 m/s at the origin and about 8.5 m/s at the ends of the leaves.
    #[test]
    fn the_clover_has_the_papers_speeds() {
        let speed = |t: f64| {
            let (one, two) = (CLOVER.at(t - 1e-4), CLOVER.at(t + 1e-4));
            (two.0 - one.0).hypot(two.1 - one.1) / 2e-4
        };
        let quarter = std::f64::consts::FRAC_PI_2 / 0.05;
        assert!((speed(quarter) - 25.0).abs() < 0.01);
        assert!((speed(0.0) - 25.0 / 3.0).abs() < 0.01);
        assert!((CLOVER.seconds() - 376.99).abs() < 0.01);
    }

    #[test]
    fn head_and_tail_are_half_a_convoy_away_along_the_way() {
        let line = Segment::Line {
            from_m: (0.0, 0.0),
            to_m: (1000.0, 0.0),
            speed_m_s: 10.0,
        };
        let track = Track::new(&[line], 100.0).unwrap();
        for t in [0.0, 3.3, 50.0, 100.0] {
            let (head, tail) = (track.position(t, 100.0), track.position(t, -100.0));
            assert!((head.0 - (10.0 * t + 100.0)).abs() < 1e-6, "{t} {head:?}");
            assert!((tail.0 - (10.0 * t - 100.0)).abs() < 1e-6, "{t} {tail:?}");
        }
        // On the clover the way between them is 200 m long, by (16).
        let track = Track::new(&[CLOVER], 100.0).unwrap();
        let integral = |from: f64, to: f64| {
            let steps = 20_000;
            let width = (to - from) / f64::from(steps);
            (0..steps)
                .map(|step| {
                    let t = from + (f64::from(step) + 0.5) * width;
                    (1.0 + 8.0 * (0.05 * t).sin().powi(2)).sqrt() * 500.0 * 0.05 / 3.0 * width
                })
                .sum::<f64>()
        };
        let at = 40.0;
        let mut ahead = 0.0;
        while integral(at, at + ahead) < 100.0 {
            ahead += 0.01;
        }
        let (head, expected) = (track.position(at, 100.0), CLOVER.at(at + ahead));
        assert!((head.0 - expected.0).hypot(head.1 - expected.1) < 0.5);
    }

    #[test]
    fn a_convoy_that_stands_has_its_heading() {
        let stay = Segment::Stay {
            at_m: (-200.0, -200.0),
            heading_deg: 45.0,
            seconds: 20.0,
        };
        let track = Track::new(&[stay], 100.0).unwrap();
        let head = track.position(7.0, 100.0);
        assert!((head.0 + 129.289).abs() < 1e-3 && (head.1 + 129.289).abs() < 1e-3);
    }
}
