//! Whether a channel works, and since when it does not. Sans-IO: takes results and monotonic times.

use service_kit::Warning;

/// A channel that fails for longer is a warning. A shorter outage is a restart of the receiver.
const WARN_AFTER_US: i64 = 60_000_000;

#[derive(Debug, Default)]
pub(super) struct ChannelState {
    /// The first failure since the last success, and the reason of the last one.
    failing: Option<(i64, String)>,
    /// It works again, and what waits for it is not due yet.
    has_returned: bool,
}

impl ChannelState {
    pub(super) fn on_success(&mut self) {
        self.has_returned |= self.failing.take().is_some();
    }

    /// Once after each return.
    pub(super) fn take_returned(&mut self) -> bool {
        std::mem::take(&mut self.has_returned)
    }

    /// Making the waiting notices due has failed.
    pub(super) fn put_back_returned(&mut self) {
        self.has_returned = true;
    }

    pub(super) fn on_failure(&mut self, now_us: i64, reason: &str) {
        let since_us = self
            .failing
            .as_ref()
            .map_or(now_us, |(since_us, _)| *since_us);
        self.failing = Some((since_us, reason.to_owned()));
    }

    pub(super) fn failing_us(&self, now_us: i64) -> Option<i64> {
        let (since_us, _) = self.failing.as_ref()?;
        Some((now_us - since_us).max(0))
    }

    pub(super) fn warning(&self, channel: &str, now_us: i64) -> Option<Warning> {
        let failing_us = self.failing_us(now_us)?;
        let (_, reason) = self.failing.as_ref()?;
        (failing_us > WARN_AFTER_US).then(|| Warning {
            // The age would make another text of it at each look.
            says: format!("the channel {channel} takes no notice: {}", shown(reason)),
            to_do: format!("start or correct the receiver of {channel}; notices wait for it"),
        })
    }
}

/// A receiver's text is data: it is shown in one line of bounded length.
fn shown(reason: &str) -> String {
    /// Characters of a reason in a warning. The rest is cut.
    const CHARS_MAX: usize = 200;
    let line = reason.chars().take(CHARS_MAX);
    line.map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_that_fails_for_more_than_a_minute_is_a_warning_until_a_success() {
        let mut state = ChannelState::default();
        state.on_success();
        assert!(!state.take_returned(), "it worked before");
        state.on_failure(1_000_000, "answered 500");
        state.on_failure(50_000_000, "no answer\r\nwithin 10 s");
        assert_eq!(state.warning("webhook", 61_000_000), None, "a restart");
        let warning = state.warning("webhook", 61_000_001);
        let says = warning.map(|it| it.says).unwrap_or_default();
        assert!(
            says.ends_with("webhook takes no notice: no answer  within 10 s"),
            "{says}"
        );
        assert_eq!(state.failing_us(61_000_000), Some(60_000_000));
        state.on_success();
        assert!(state.take_returned() && !state.take_returned(), "once");
        assert_eq!(state.warning("webhook", 200_000_000), None);
        assert_eq!(state.failing_us(200_000_000), None);
    }
}
