//! The asking end of `braid probe`; sans-IO, in microseconds of any monotonic clock.

use std::collections::VecDeque;

use path_probe::{
    AsymmetricEwma, Check, Choice, Client, Command, Connectivity, Ewma, OneWayLoss, Payload,
    Target, optimise,
};
use serde::Serialize;

/// Probes whose answers are awaited; an answer to an older one is ignored.
const OUTSTANDING_MAX: usize = 4_096;
/// Shortest T_KA that tuning chooses, so that an extreme goal does not fill the path with probes.
const T_KA_US_MIN: u64 = 10_000;
/// Time constants of the printed round trip, and of the loss that the optimiser plans for.
const RTT_TAU_S: f64 = 1.0;
const LOSS_WORSE_TAU_S: f64 = 2.0;
const LOSS_BETTER_TAU_S: f64 = 20.0;

/// Chance that a path of the stated loss shows none.
const MISSED: f64 = 0.05;

/// Aim of the optimiser.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Goal {
    pub detection_s: f64,
    pub false_alarm_s: f64,
    /// Its choice is obeyed.
    pub tune: bool,
}

/// The optimiser's choice for the path as measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Advice {
    pub k: u32,
    pub t_ka_ms: f64,
}

/// The bound that follows from no loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct NoLoss {
    /// Probes of the way that carried fewer.
    pub probes: u32,
    /// The loss is below this with a confidence of 95 %.
    pub below: f64,
}

impl NoLoss {
    fn of(probes: u32) -> Option<NoLoss> {
        let below = |probes| 1.0 - MISSED.powf(1.0 / f64::from(probes));
        (probes > 0).then(|| NoLoss {
            probes,
            below: below(probes),
        })
    }
}

/// One report, or the summary of all.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    pub at_s: f64,
    pub sent: u64,
    pub answered: u64,
    pub rtt_ms: Option<f64>,
    pub rtt_min_ms: Option<f64>,
    pub rtt_max_ms: Option<f64>,
    pub loss_up: Option<f64>,
    pub loss_down: Option<f64>,
    /// Where no packet was lost since the beginning.
    pub no_loss: Option<NoLoss>,
    pub is_up: bool,
    pub downs: u64,
    pub k: u32,
    pub t_ka_ms: f64,
    pub advice: Option<Advice>,
    /// Why there is no advice.
    pub no_advice: Option<String>,
}

/// Extremes of the round trips, in milliseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Extremes {
    min_ms: Option<f64>,
    max_ms: Option<f64>,
}

impl Extremes {
    fn add(&mut self, rtt_ms: f64) {
        self.min_ms = Some(self.min_ms.map_or(rtt_ms, |min| min.min(rtt_ms)));
        self.max_ms = Some(self.max_ms.map_or(rtt_ms, |max| max.max(rtt_ms)));
    }
}

/// Counters of one answer: sent here and received there, sent there and received here.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    up: (u32, u32),
    down: (u32, u32),
}

pub(super) struct Prober {
    client: Client,
    check: Check,
    connectivity: Connectivity,
    goal: Goal,
    /// Sequence number of the oldest awaited answer, and which ones have come.
    oldest: u32,
    awaited: VecDeque<bool>,
    sent: u64,
    answered: u64,
    downs: u64,
    /// Sequence number and counters of the newest answer.
    newest: Option<(u32, Counted)>,
    rtt: Ewma,
    rtt_s_sum: f64,
    rtts: u64,
    recent: Extremes,
    all: Extremes,
    up: OneWayLoss,
    down: OneWayLoss,
    losses: [AsymmetricEwma; 2],
    /// Counters from which the summary counts.
    base: Counted,
    last_s: f64,
}

impl Prober {
    pub(super) fn new(check: Check, goal: Goal, now_us: u64) -> Self {
        Self {
            client: Client::default(),
            check,
            connectivity: Connectivity::new(check, now_us),
            goal,
            oldest: 1,
            awaited: VecDeque::new(),
            sent: 0,
            answered: 0,
            downs: 0,
            newest: None,
            rtt: Ewma::new(RTT_TAU_S),
            rtt_s_sum: 0.0,
            rtts: 0,
            recent: Extremes::default(),
            all: Extremes::default(),
            up: OneWayLoss::default(),
            down: OneWayLoss::default(),
            losses: [(); 2].map(|()| AsymmetricEwma::new(LOSS_WORSE_TAU_S, LOSS_BETTER_TAU_S)),
            base: Counted::default(),
            last_s: 0.0,
        }
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    pub(super) fn is_all_answered(&self) -> bool {
        self.awaited.is_empty()
    }

    pub(super) fn next_deadline_us(&self) -> u64 {
        self.connectivity.next_deadline_us()
    }

    /// Time without an answer after which a probe counts as lost.
    pub(super) fn patience_us(&self) -> u64 {
        u64::from(self.check.k) * self.check.t_ka_us
    }

    /// Must be called until `None`, at each deadline and after each answer.
    pub(super) fn poll(&mut self, now_us: u64) -> Option<Payload> {
        loop {
            match self.connectivity.poll(now_us)? {
                Command::Probe => {
                    self.sent += 1;
                    self.awaited.push_back(true);
                    if self.awaited.len() > OUTSTANDING_MAX {
                        self.forget_oldest();
                    }
                    return Some(self.client.request(now_us, false));
                }
                Command::Down => self.downs += 1,
                Command::Up => {}
            }
        }
    }

    fn forget_oldest(&mut self) {
        self.awaited.pop_front();
        self.oldest = self.oldest.wrapping_add(1);
    }

    /// A duplicate or an answer to no probe changes nothing.
    pub(super) fn on_response(&mut self, now_us: u64, response: &Payload) {
        let place = response.sequence.wrapping_sub(self.oldest) as usize;
        match self.awaited.get_mut(place) {
            Some(awaited) if *awaited => *awaited = false,
            _ => return,
        }
        while self.awaited.front() == Some(&false) {
            self.forget_oldest();
        }
        self.answered += 1;
        self.connectivity.on_response(now_us);
        let seen = self.client.on_response(now_us, response, false);
        if let Some(rtt_us) = seen.rtt_us {
            let rtt_ms = f64::from(rtt_us) / 1e3;
            self.rtt.update(now_us as f64 / 1e6, rtt_ms);
            self.rtt_s_sum += rtt_ms / 1e3;
            self.rtts += 1;
            self.recent.add(rtt_ms);
            self.all.add(rtt_ms);
        }
        let counted = Counted {
            up: (seen.sent, seen.peer_received),
            down: (seen.peer_sent, seen.received),
        };
        let is_newer = |last: u32| response.sequence.wrapping_sub(last) < u32::MAX / 2;
        match self.newest {
            Some((last, before)) if is_newer(last) => {
                let restarted = |now: u32, then: u32| now.wrapping_sub(then) > u32::MAX / 2;
                if restarted(counted.up.1, before.up.1) || restarted(counted.down.0, before.down.0)
                {
                    // The other end has restarted, so its counters begin at zero.
                    self.up = OneWayLoss::starting_at(counted.up.0, counted.up.1);
                    self.down = OneWayLoss::starting_at(counted.down.0, counted.down.1);
                    self.base = counted;
                }
                self.newest = Some((response.sequence, counted));
            }
            Some(_) => {}
            None => self.newest = Some((response.sequence, counted)),
        }
    }

    /// The interval since the last report. With `tune` the optimiser's choice is obeyed from here
    /// on.
    pub(super) fn report(&mut self, at_s: f64) -> Row {
        let newest = self.newest.map(|(_, counted)| counted);
        let loss_up = newest.and_then(|it| self.up.update(it.up.0, it.up.1));
        let loss_down = newest.and_then(|it| self.down.update(it.down.0, it.down.1));
        for (loss, ewma) in [loss_up, loss_down].into_iter().zip(&mut self.losses) {
            if let Some(loss) = loss {
                ewma.update(at_s, loss);
            }
        }
        self.last_s = at_s;
        let recent = std::mem::take(&mut self.recent);
        let losses = self.losses.iter().filter_map(AsymmetricEwma::value);
        let loss = losses.fold(self.least_loss(), f64::max);
        let advice = self.advice(self.rtt.value(), loss);
        if let (true, Some(Ok(choice))) = (self.goal.tune, advice) {
            self.check = Check {
                k: choice.k,
                t_ka_us: ((choice.t_ka_s * 1e6) as u64).max(T_KA_US_MIN),
            };
            self.connectivity.set_check(self.check);
        }
        let row = self.row(recent, advice);
        Row {
            loss_up,
            loss_down,
            ..row
        }
    }

    /// All of it together.
    pub(super) fn summary(&self) -> Row {
        let mean_ms = (self.rtts > 0).then(|| self.rtt_s_sum * 1e3 / self.rtts as f64);
        let (loss_up, loss_down) = self.whole();
        let loss = self.least_loss();
        let row = self.row(self.all, self.advice(mean_ms, loss));
        Row {
            rtt_ms: mean_ms,
            loss_up,
            loss_down,
            ..row
        }
    }

    /// The losses since the beginning.
    fn whole(&self) -> (Option<f64>, Option<f64>) {
        let newest = self.newest.map(|(_, counted)| counted);
        let whole = |base: (u32, u32), now: Option<(u32, u32)>| {
            OneWayLoss::starting_at(base.0, base.1).update(now?.0, now?.1)
        };
        (
            whole(self.base.up, newest.map(|it| it.up)),
            whole(self.base.down, newest.map(|it| it.down)),
        )
    }

    fn no_loss(&self) -> Option<NoLoss> {
        let (Some(0.0), Some(0.0)) = self.whole() else {
            return None;
        };
        let (_, newest) = self.newest?;
        let up = newest.up.0.wrapping_sub(self.base.up.0);
        let down = newest.down.0.wrapping_sub(self.base.down.0);
        NoLoss::of(up.min(down))
    }

    /// The advice plans for no less: few probes without a loss do not show that there is none.
    fn least_loss(&self) -> f64 {
        let (up, down) = self.whole();
        let measured = up.unwrap_or(0.0).max(down.unwrap_or(0.0));
        self.no_loss().map_or(measured, |it| it.below)
    }

    fn row(
        &self,
        extremes: Extremes,
        advice: Option<Result<Choice, path_probe::Infeasible>>,
    ) -> Row {
        Row {
            at_s: self.last_s,
            sent: self.sent,
            answered: self.answered,
            rtt_ms: self.rtt.value(),
            rtt_min_ms: extremes.min_ms,
            rtt_max_ms: extremes.max_ms,
            loss_up: None,
            loss_down: None,
            no_loss: self.no_loss(),
            is_up: self.connectivity.is_up(),
            downs: self.downs,
            k: self.check.k,
            t_ka_ms: self.check.t_ka_us as f64 / 1e3,
            advice: advice.and_then(Result::ok).map(|choice| Advice {
                k: choice.k,
                t_ka_ms: choice.t_ka_s * 1e3,
            }),
            no_advice: advice.and_then(Result::err).map(|error| error.to_string()),
        }
    }

    /// `None`: nothing is measured yet.
    fn advice(
        &self,
        rtt_ms: Option<f64>,
        loss: f64,
    ) -> Option<Result<Choice, path_probe::Infeasible>> {
        Some(optimise(Target {
            rtt_avg_s: rtt_ms? / 1e3,
            loss,
            responsiveness_s_max: self.goal.detection_s,
            false_positive_interval_s_min: self.goal.false_alarm_s,
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use path_probe::Server;

    use super::*;

    const GOAL: Goal = Goal {
        detection_s: 0.5,
        false_alarm_s: 1e5,
        tune: true,
    };
    const CHECK: Check = Check {
        k: 5,
        t_ka_us: 100_000,
    };

    /// Round trips of 100 ms; the server and the answers to the numbers in `lost` can fail.
    fn exchange(prober: &mut Prober, server: &mut Server, now_us: u64, lost: bool) {
        while let Some(request) = prober.poll(now_us) {
            server.on_request(now_us + 50_000, &request, false);
            let response = server.respond(now_us + 50_000, false).unwrap();
            if !lost {
                prober.on_response(now_us + 100_000, &response);
                // A duplicate.
                prober.on_response(now_us + 100_001, &response);
            }
        }
    }

    #[test]
    fn probes_without_a_loss_bound_it_and_the_advice_follows_the_bound() {
        let advised = |turns: u64| {
            let mut prober = Prober::new(CHECK, GOAL, 0);
            let mut server = Server::default();
            for turn in 0..turns {
                exchange(&mut prober, &mut server, turn * 100_000, false);
            }
            let row = prober.summary();
            let bound = row.no_loss.unwrap();
            assert_eq!(u64::from(bound.probes), turns);
            (bound.below, row.advice)
        };
        let (below, few) = advised(25);
        assert!((below - 0.113).abs() < 0.001, "{below}");
        let (below, many) = advised(3_000);
        assert!((below - 0.001).abs() < 0.0001, "{below}");
        let (Some(few), Some(many)) = (few, many) else {
            panic!("{few:?} {many:?}");
        };
        assert!(many.k < few.k, "{many:?} {few:?}");
    }

    #[test]
    fn tuning_obeys_the_optimiser_and_a_restarted_server_is_no_loss() {
        let mut prober = Prober::new(CHECK, GOAL, 0);
        let mut server = Server::default();
        for turn in 0..10 {
            exchange(&mut prober, &mut server, turn * 100_000, false);
        }
        let row = prober.report(1.0);
        assert_eq!((row.sent, row.answered), (10, 10));
        assert_eq!((row.loss_up, row.loss_down), (Some(0.0), Some(0.0)));
        assert_eq!(row.rtt_ms, Some(100.0));
        // Ten probes without a loss leave up to 26 %: T_KA (K + 1/2) + 50 ms = 500 ms.
        assert_eq!((row.k, row.t_ka_ms.round()), (20, 22.0));
        server = Server::default();
        let at = |turn: u64| 1_000_000 + (turn - 10) * 30_000;
        for turn in 10..20 {
            exchange(&mut prober, &mut server, at(turn), false);
        }
        let row = prober.report(6.0);
        assert_eq!((row.loss_up, row.loss_down), (Some(0.0), Some(0.0)));
        assert!(row.is_up);
        for turn in 20..60 {
            exchange(&mut prober, &mut server, at(turn), true);
        }
        let row = prober.report(8.5);
        assert!(!row.is_up && row.downs == 1, "{row:?}");
        assert_eq!(row.loss_down, None, "no answer, no measurement");
    }
}
