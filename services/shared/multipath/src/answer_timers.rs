//! Timers of a message that waits for its answer: when a copy is sent on a second stream, and when
//! the answer is overdue. The gateway's sender and the lab's vitals use the same timers.
//!
//! The copy follows so soon that no loss is known yet. It is in another packet, perhaps on another
//! path, so a lost packet or an undetected dead path costs no round trip. The receiver recognises
//! copies by their number. An answer is overdue after the mean and four deviations, as for a
//! retransmission timer.

use std::time::Duration;

const DEVIATIONS: u32 = 4;
/// A copy follows after this part of the usual time, within these bounds. It is then in another
/// packet even on a slow link, and unnecessary where answers come at once.
const COPY_PART: u32 = 8;
const COPY_AFTER_MIN: Duration = Duration::from_millis(5);
/// Longest time without an answer until a copy is sent.
const COPY_AFTER_MAX: Duration = Duration::from_millis(60);
/// Values before the first answer.
const COPY_AFTER_FIRST: Duration = Duration::from_millis(15);

/// Usual time to an answer: mean and deviation, as of a retransmission timer.
#[derive(Debug, Clone, Copy, Default)]
pub struct AnswerTimers {
    usual: Option<(Duration, Duration)>,
}

impl AnswerTimers {
    /// The answer to a message that was sent once came after `sample`.
    pub fn learn(&mut self, sample: Duration) {
        self.usual = Some(match self.usual {
            None => (sample, sample / 2),
            Some((mean, deviation)) => (
                (mean * 7 + sample) / 8,
                (deviation * 3 + mean.abs_diff(sample)) / 4,
            ),
        });
    }

    /// Time after which an answer is overdue; unknown before the first one.
    pub fn overdue_after(&self) -> Option<Duration> {
        self.usual
            .map(|(mean, deviation)| mean + deviation * DEVIATIONS)
    }

    /// Time without an answer after which a copy is sent.
    pub fn copy_after(&self) -> Duration {
        self.usual.map_or(COPY_AFTER_FIRST, |(mean, _)| {
            (mean / COPY_PART).clamp(COPY_AFTER_MIN, COPY_AFTER_MAX)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_copy_follows_at_once_and_the_alarm_after_what_is_usual() {
        let mut answers = AnswerTimers::default();
        assert_eq!(answers.overdue_after(), None);
        assert_eq!(answers.copy_after(), COPY_AFTER_FIRST);
        for _ in 0..100 {
            answers.learn(40 * MS);
        }
        assert_eq!(answers.copy_after(), 5 * MS);
        let overdue = answers.overdue_after().unwrap_or_default();
        assert!(overdue >= 40 * MS && overdue < 45 * MS, "{overdue:?}");
        answers.learn(200 * MS);
        assert!(answers.overdue_after() > Some(150 * MS));
        for (usual, after) in [(160, 20), (400, 50), (2_000, 60)] {
            let mut answers = AnswerTimers::default();
            answers.learn(Duration::from_millis(usual));
            assert_eq!(answers.copy_after(), Duration::from_millis(after));
        }
        answers.learn(Duration::ZERO);
        for _ in 0..100 {
            answers.learn(Duration::ZERO);
        }
        assert_eq!(answers.copy_after(), COPY_AFTER_MIN);
    }
}
