//! Which access an application takes, by round trip and one-way loss, with hysteresis.
//!
//! Invariants: an access that is down is left at once. A better access is taken only when it was
//! better by the margin for the whole hold time. So a short change of the estimates moves nothing.

/// Quality that an application needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Calls and games: the round trip; loss in either direction costs as a repetition does.
    Conversation,
    /// Bytes to the client: the throughput of TCP, 1 / (RTT sqrt(loss)), by the loss of that
    /// direction alone.
    Download,
    /// Bytes to the server.
    Upload,
}

/// Estimates of one access.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub up: bool,
    pub rtt_s: f64,
    pub loss_to_server: f64,
    pub loss_to_client: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hysteresis {
    /// Share of the cost by which another access must be better.
    pub margin: f64,
    /// For how long.
    pub hold_s: f64,
}

/// Below this, loss does not limit a transfer.
const LOSS_MIN: f64 = 1e-4;
/// A lost packet is heard of a round trip later, and mostly with a timer's delay.
const REPETITIONS: f64 = 4.0;

impl Need {
    /// The lower, the better; infinite for an access that is down.
    pub fn cost(self, estimate: &Estimate) -> f64 {
        if !estimate.up || !estimate.rtt_s.is_finite() {
            return f64::INFINITY;
        }
        let rtt_s = estimate.rtt_s.max(1e-4);
        let transfer = |loss: f64| rtt_s * loss.clamp(LOSS_MIN, 1.0).sqrt();
        match self {
            Self::Conversation => {
                let loss = crate::round_trip_loss(estimate.loss_to_server, estimate.loss_to_client);
                rtt_s * (1.0 + REPETITIONS * loss)
            }
            Self::Download => transfer(estimate.loss_to_client),
            Self::Upload => transfer(estimate.loss_to_server),
        }
    }
}

/// The choice of one application.
#[derive(Clone, Debug)]
pub struct Selector {
    need: Need,
    hysteresis: Hysteresis,
    current: Option<usize>,
    /// The access that is better, and since when.
    rival: Option<(usize, f64)>,
    handovers: u64,
}

impl Selector {
    pub fn new(need: Need, hysteresis: Hysteresis) -> Selector {
        Selector {
            need,
            hysteresis,
            current: None,
            rival: None,
            handovers: 0,
        }
    }

    pub fn handovers(&self) -> u64 {
        self.handovers
    }

    /// The access to use from now on; none while all are down. Call with each new estimate.
    pub fn choose(&mut self, now_s: f64, accesses: &[Estimate]) -> Option<usize> {
        let costs: Vec<f64> = accesses.iter().map(|it| self.need.cost(it)).collect();
        let finite = (0..costs.len()).filter(|&index| costs[index].is_finite());
        let Some(best) = finite.min_by(|&a, &b| costs[a].total_cmp(&costs[b])) else {
            self.rival = None;
            return None;
        };
        let Some(current) = self
            .current
            .filter(|&it| costs.get(it).is_some_and(|c| c.is_finite()))
        else {
            self.handovers += u64::from(self.current.is_some_and(|it| it != best));
            self.current = Some(best);
            self.rival = None;
            return self.current;
        };
        if best == current || costs[best] > (1.0 - self.hysteresis.margin) * costs[current] {
            self.rival = None;
            return self.current;
        }
        let since_s = match self.rival {
            Some((rival, since_s)) if rival == best => since_s,
            _ => now_s,
        };
        self.rival = Some((best, since_s));
        if now_s - since_s >= self.hysteresis.hold_s {
            self.current = Some(best);
            self.rival = None;
            self.handovers += 1;
        }
        self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(rtt_s: f64, loss_to_server: f64, loss_to_client: f64) -> Estimate {
        Estimate {
            up: true,
            rtt_s,
            loss_to_server,
            loss_to_client,
        }
    }

    const HYSTERESIS: Hysteresis = Hysteresis {
        margin: 0.2,
        hold_s: 2.0,
    };

    #[test]
    fn a_better_access_is_taken_after_the_hold_time_only() {
        let mut selector = Selector::new(Need::Conversation, HYSTERESIS);
        let both = [access(0.1, 0.0, 0.0), access(0.05, 0.0, 0.0)];
        assert_eq!(selector.choose(0.0, &both[..1]), Some(0));
        assert_eq!(selector.choose(1.0, &both), Some(0));
        assert_eq!(selector.choose(2.0, &both), Some(0));
        // For a moment it is no better: the time begins anew.
        assert_eq!(selector.choose(2.5, &[both[0], both[0]]), Some(0));
        assert_eq!(selector.choose(3.0, &both), Some(0));
        assert_eq!(selector.choose(5.0, &both), Some(1));
        assert_eq!(selector.handovers(), 1);
        // A tenth better is within the margin.
        let near = [access(0.045, 0.0, 0.0), both[1]];
        assert_eq!(
            (0..9)
                .map(|at| selector.choose(6.0 + f64::from(at), &near))
                .max(),
            Some(Some(1))
        );
    }

    #[test]
    fn an_access_that_is_down_is_left_at_once() {
        let mut selector = Selector::new(Need::Upload, HYSTERESIS);
        let mut both = [access(0.05, 0.01, 0.0), access(0.3, 0.01, 0.0)];
        assert_eq!(selector.choose(0.0, &both), Some(0));
        both[0].up = false;
        assert_eq!(selector.choose(0.1, &both), Some(1));
        both[1].up = false;
        assert_eq!(selector.choose(0.2, &both), None);
        both[0].up = true;
        assert_eq!(selector.choose(0.3, &both), Some(0));
    }

    #[test]
    fn applications_differ_by_the_direction_that_they_need() {
        let lossy_up = access(0.05, 0.05, 0.0);
        let lossy_down = access(0.05, 0.0, 0.05);
        let best = |need: Need| {
            let mut selector = Selector::new(need, HYSTERESIS);
            selector.choose(0.0, &[lossy_up, lossy_down])
        };
        assert_eq!(best(Need::Upload), Some(1));
        assert_eq!(best(Need::Download), Some(0));
    }
}
