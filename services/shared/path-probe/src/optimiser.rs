//! The probing interval, and the number of unanswered intervals after which a path is given up
//! (4.3, appendix II).

/// Largest K; a path that needs a larger K is not worth probing, and the target is refused.
pub const K_MAX: u32 = 10_000;

/// The goals of the connectivity check, and the properties of the path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    pub rtt_avg_s: f64,
    /// Loss of one direction, 0 to below 1.
    pub loss: f64,
    /// T_Ravg max: the mean time until a dead path is detected.
    pub responsiveness_s_max: f64,
    /// T_fp min: the mean time between two false alarms.
    pub false_positive_interval_s_min: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub k: u32,
    pub t_ka_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Infeasible {
    #[error("half a round trip takes longer than the whole detection may")]
    RttTooLong,
    #[error("at this loss no number of probes distinguishes a dead path from a lossy path")]
    LossTooHigh,
    #[error("not a number, or outside its range")]
    Input,
}

/// T_Rmax (1).
pub fn responsiveness_max_s(choice: Choice, rtt_max_s: f64) -> f64 {
    (f64::from(choice.k) + 1.0) * choice.t_ka_s + rtt_max_s
}

/// T_Ravg (2).
pub fn responsiveness_avg_s(choice: Choice, rtt_avg_s: f64) -> f64 {
    (f64::from(choice.k) + 0.5) * choice.t_ka_s + rtt_avg_s / 2.0
}

/// p_fp (3): K probes in a row are lost in either direction.
pub fn false_positive_probability(loss: f64, k: u32) -> f64 {
    (2.0 * loss - loss * loss).powi(k.min(K_MAX) as i32)
}

/// T_fp (4): mean time between two false alarms.
pub fn false_positive_interval_s(choice: Choice, loss: f64) -> f64 {
    choice.t_ka_s / false_positive_probability(loss, choice.k)
}

/// The smallest K that satisfies (8), and the largest T_KA that (6) permits with that K.
pub fn optimise(target: Target) -> Result<Choice, Infeasible> {
    let Target {
        rtt_avg_s,
        loss,
        responsiveness_s_max,
        false_positive_interval_s_min,
    } = target;
    let known = [
        rtt_avg_s,
        loss,
        responsiveness_s_max,
        false_positive_interval_s_min,
    ]
    .iter()
    .all(|value| value.is_finite() && *value >= 0.0);
    if !known {
        return Err(Infeasible::Input);
    }
    if loss >= 1.0 {
        return Err(Infeasible::LossTooHigh);
    }
    let budget_s = responsiveness_s_max - rtt_avg_s / 2.0;
    if budget_s <= 0.0 {
        return Err(Infeasible::RttTooLong);
    }
    (1..=K_MAX)
        .map(|k| Choice {
            k,
            t_ka_s: budget_s / (f64::from(k) + 0.5),
        })
        .find(|choice| {
            false_positive_interval_s_min * false_positive_probability(loss, choice.k)
                < choice.t_ka_s
        })
        .ok_or(Infeasible::LossTooHigh)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const PAPER: Target = Target {
        rtt_avg_s: 0.1,
        loss: 0.05,
        responsiveness_s_max: 0.5,
        false_positive_interval_s_min: 1e5,
    };

    /// Figure 8.
    #[test]
    fn the_papers_example() {
        let choice = optimise(PAPER).unwrap();
        assert_eq!(choice.k, 7);
        assert!((choice.t_ka_s - 0.060).abs() < 1e-12, "{}", choice.t_ka_s);
        assert!((responsiveness_avg_s(choice, 0.1) - 0.5).abs() < 1e-12);
        assert!(false_positive_interval_s(choice, 0.05) > 1e5);
        assert!((responsiveness_max_s(choice, 0.15) - 0.63).abs() < 1e-12);
        let fewer = Choice {
            k: 6,
            t_ka_s: 0.45 / 6.5,
        };
        assert!(
            false_positive_interval_s(fewer, 0.05) < 1e5,
            "6 would not do"
        );
    }

    /// Figures 9 to 11: K grows with loss and with T_fp, and falls as T_R grows; T_KA does the
    /// opposite.
    #[test]
    fn the_papers_sweeps_are_monotone() {
        let rising = |targets: Vec<Target>| {
            let choices: Vec<Choice> = targets.into_iter().map(|t| optimise(t).unwrap()).collect();
            assert!(
                choices
                    .windows(2)
                    .all(|w| w[0].k <= w[1].k && w[0].t_ka_s >= w[1].t_ka_s)
            );
            (choices[0].k, choices[choices.len() - 1].k)
        };
        let loss = |loss| Target { loss, ..PAPER };
        assert_eq!(
            rising((1..=16).map(|i| loss(f64::from(i) * 0.005)).collect()),
            (3, 8)
        );
        let apart = |exponent| Target {
            false_positive_interval_s_min: 10_f64.powi(exponent),
            ..PAPER
        };
        assert_eq!(rising((2..=6).map(apart).collect()), (3, 8));
        let within = |step: i32| {
            optimise(Target {
                responsiveness_s_max: 0.08 + 0.12 * f64::from(step),
                ..PAPER
            })
            .unwrap()
        };
        let choices: Vec<Choice> = (0..=16).map(within).collect();
        assert!(
            choices
                .windows(2)
                .all(|w| w[0].k >= w[1].k && w[0].t_ka_s < w[1].t_ka_s)
        );
    }

    #[test]
    fn infeasible_targets_are_refused() {
        let without_loss = optimise(Target { loss: 0.0, ..PAPER }).unwrap();
        assert_eq!(without_loss.k, 1);
        assert_eq!(
            optimise(Target {
                rtt_avg_s: 1.0,
                ..PAPER
            }),
            Err(Infeasible::RttTooLong)
        );
        assert_eq!(
            optimise(Target { loss: 1.0, ..PAPER }),
            Err(Infeasible::LossTooHigh)
        );
        assert_eq!(
            optimise(Target {
                loss: f64::NAN,
                ..PAPER
            }),
            Err(Infeasible::Input)
        );
        assert_eq!(
            optimise(Target {
                rtt_avg_s: -1.0,
                ..PAPER
            }),
            Err(Infeasible::Input)
        );
    }
}
