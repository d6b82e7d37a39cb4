//! active-pb (5.3): within each T_KA the next outgoing packet carries the probe. Without a packet
//! the probe goes alone at the interval's end. Two probes are at most 2 T_KA apart.

#[derive(Clone, Debug)]
pub struct Piggyback {
    t_ka_us: u64,
    interval_end_us: u64,
    carried: bool,
    /// Longest packet that may carry a probe without exceeding the path's MTU.
    carrier_bytes_max: usize,
}

impl Piggyback {
    pub fn new(t_ka_us: u64, carrier_bytes_max: usize, now_us: u64) -> Piggyback {
        Piggyback {
            t_ka_us: t_ka_us.max(1),
            interval_end_us: now_us + t_ka_us.max(1),
            carried: false,
            carrier_bytes_max,
        }
    }

    pub fn next_deadline_us(&self) -> u64 {
        self.interval_end_us
    }

    /// Whether an outgoing packet carries the probe.
    pub fn on_packet(&mut self, now_us: u64, bytes: usize) -> bool {
        // After the interval's end, `poll` begins the next interval.
        let takes =
            !self.carried && bytes <= self.carrier_bytes_max && now_us < self.interval_end_us;
        self.carried |= takes;
        takes
    }

    /// Whether a probe must go alone. Begins the next interval when this interval is over.
    pub fn poll(&mut self, now_us: u64) -> bool {
        if now_us < self.interval_end_us {
            return false;
        }
        let late = (now_us - self.interval_end_us) / self.t_ka_us;
        self.interval_end_us += (late + 1) * self.t_ka_us;
        !std::mem::take(&mut self.carried) || late > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_probe_an_interval_at_most_two_intervals_apart() {
        let mut piggyback = Piggyback::new(100, 1200, 0);
        let (mut probes, mut alone) = (vec![0_u64], 0);
        for now in 1..=10_000 {
            if piggyback.poll(now) {
                probes.push(now);
                alone += 1;
            }
            // Traffic comes in bursts, and every second packet is too long.
            let is_busy = (now / 1000) % 2 == 0;
            if is_busy && now % 7 == 0 {
                let bytes = if now % 14 == 0 { 1400 } else { 200 };
                if piggyback.on_packet(now, bytes) {
                    probes.push(now);
                }
            }
        }
        assert!(probes.windows(2).all(|pair| pair[1] - pair[0] <= 200));
        assert!((95..=101).contains(&probes.len()), "{}", probes.len());
        assert!(
            (45..=55).contains(&alone),
            "{alone}: alone only where there is no traffic"
        );
    }
}
