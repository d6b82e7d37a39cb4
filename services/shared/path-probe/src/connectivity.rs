//! The connectivity check (4.3): a probe every T_KA; without a response for K T_KA the path is
//! down.
//!
//! Invariant: probing never stops, so a path that answers again is found. Detection takes at most
//! T_Rmax = (K+1) T_KA + RTTmax (1).

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    pub k: u32,
    pub t_ka_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Probe,
    Down,
    Up,
}

#[derive(Clone, Debug)]
pub struct Connectivity {
    check: Check,
    next_us: u64,
    last_response_us: u64,
    is_up: bool,
    /// The next poll reports this first.
    came_up: bool,
    probe_due: bool,
}

impl Connectivity {
    /// A path counts as up, and as answered at `now_us`, when it is opened.
    pub fn new(check: Check, now_us: u64) -> Connectivity {
        Connectivity {
            check,
            next_us: now_us,
            last_response_us: now_us,
            is_up: true,
            came_up: false,
            probe_due: false,
        }
    }

    /// Sets new parameters, from the next interval on.
    pub fn set_check(&mut self, check: Check) {
        self.check = check;
    }

    pub fn is_up(&self) -> bool {
        self.is_up
    }

    pub fn next_deadline_us(&self) -> u64 {
        self.next_us
    }

    /// A probe's response, or another proof that the peer received a packet.
    pub fn on_response(&mut self, now_us: u64) {
        self.last_response_us = self.last_response_us.max(now_us);
        if !self.is_up {
            self.is_up = true;
            self.came_up = true;
        }
    }

    /// Must be called until `None`, at each deadline and after each response.
    pub fn poll(&mut self, now_us: u64) -> Option<Command> {
        if std::mem::take(&mut self.came_up) {
            return Some(Command::Up);
        }
        if std::mem::take(&mut self.probe_due) {
            return Some(Command::Probe);
        }
        if now_us < self.next_us {
            return None;
        }
        // A caller that missed intervals does not send their probes later.
        let t_ka_us = self.check.t_ka_us.max(1);
        let late = (now_us - self.next_us) / t_ka_us;
        self.next_us += (late + 1) * t_ka_us;
        let time_out_us = u64::from(self.check.k) * t_ka_us;
        if self.is_up && now_us.saturating_sub(self.last_response_us) > time_out_us {
            self.is_up = false;
            self.probe_due = true;
            return Some(Command::Down);
        }
        Some(Command::Probe)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Choice, false_positive_interval_s, responsiveness_max_s};

    /// SplitMix64: sufficient randomness for a test, with the same values on every machine.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }

        fn unit(&mut self) -> f64 {
            (self.next() >> 11) as f64 / (1_u64 << 53) as f64
        }
    }

    const CHECK: Check = Check {
        k: 7,
        t_ka_us: 60_000,
    };

    /// Runs a path until `end_us` and cuts it at `cut_us`. Returns the times of `Down`.
    fn run(
        seed: u64,
        loss: f64,
        rtt_us: (u64, u64),
        check: Check,
        cut_us: u64,
        end_us: u64,
    ) -> Vec<u64> {
        let mut random = Random(seed);
        let mut path = Connectivity::new(check, 0);
        let mut responses = BTreeSet::new();
        let mut downs = Vec::new();
        loop {
            let response = responses.first().copied();
            let now = response.map_or(path.next_deadline_us(), |at: u64| {
                at.min(path.next_deadline_us())
            });
            if now > end_us {
                return downs;
            }
            if response == Some(now) {
                responses.remove(&now);
                path.on_response(now);
            }
            while let Some(command) = path.poll(now) {
                match command {
                    Command::Down => downs.push(now),
                    Command::Up => {}
                    Command::Probe => {
                        let rtt = rtt_us.0 + random.next() % (rtt_us.1 - rtt_us.0 + 1);
                        let lost = random.unit() < loss || random.unit() < loss;
                        let (there, back) = (now + rtt / 2, now + rtt);
                        if !lost && there < cut_us && back < cut_us {
                            responses.insert(back);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_cut_is_detected_in_time() {
        let mut random = Random(1);
        let choice = Choice {
            k: CHECK.k,
            t_ka_s: 0.06,
        };
        let bound_us = (responsiveness_max_s(choice, 0.12) * 1e6) as u64;
        for seed in 0..1000 {
            let cut = 1_000_000 + random.next() % 1_000_000;
            let downs = run(seed, 0.0, (20_000, 120_000), CHECK, cut, cut + 2 * bound_us);
            assert_eq!(downs.len(), 1);
            assert!(
                downs[0] > cut && downs[0] - cut <= bound_us,
                "{}",
                downs[0] - cut
            );
        }
    }

    #[test]
    fn false_alarms_are_no_more_frequent_than_predicted() {
        // 20 % loss in each direction makes false alarms frequent enough to count.
        let check = Check { k: 4, ..CHECK };
        let choice = Choice { k: 4, t_ka_s: 0.06 };
        let hours_us = 2 * 3600 * 1_000_000;
        let predicted = hours_us as f64 / 1e6 / false_positive_interval_s(choice, 0.2);
        let measured = run(7, 0.2, (20_000, 50_000), check, u64::MAX, hours_us).len() as f64;
        assert!(measured <= predicted, "{measured} > {predicted}");
        assert!(
            measured > predicted / 3.0,
            "{measured} of {predicted}: the check is not vacuous"
        );
    }

    #[test]
    fn a_path_that_answers_again_comes_up() {
        let mut path = Connectivity::new(Check { k: 2, t_ka_us: 100 }, 0);
        assert_eq!(path.poll(0), Some(Command::Probe));
        for at in [100, 200] {
            assert_eq!(path.poll(at), Some(Command::Probe));
        }
        assert_eq!(path.poll(300), Some(Command::Down));
        assert_eq!(path.poll(300), Some(Command::Probe));
        assert_eq!(path.poll(300), None);
        path.on_response(350);
        assert_eq!(path.poll(350), Some(Command::Up));
        assert!(path.is_up());
        // After a pause one probe is sent and not a burst.
        path.on_response(9_990);
        assert_eq!(path.poll(10_000), Some(Command::Probe));
        assert_eq!(path.poll(10_000), None);
        assert_eq!(path.next_deadline_us(), 10_100);
    }
}
