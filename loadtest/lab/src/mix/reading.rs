//! The messages that a receiver has read, from a stream and from its copy.

use std::time::Duration;

use super::Message;
use super::copying::Copying;

/// Record of the receiver.
#[derive(Debug, Clone, Default)]
pub struct Noted {
    /// Delay of each message, in the order of their making.
    pub delays: Vec<Duration>,
    /// From the beginning to the last byte of the page.
    pub page: Option<Duration>,
}

#[derive(Debug, Default)]
pub(super) struct Reading {
    /// Messages that have been read, and their bytes.
    messages: usize,
    bytes: u64,
    /// The next message of the copy, and the bytes before it.
    next_copy: usize,
    copied_bytes: u64,
}

impl Reading {
    /// Takes in so many bytes of the stream and of its copy. Returns when the messages were made
    /// that can be read now, in order. A copy that comes before an earlier message is of no use.
    pub(super) fn go_on(&mut self, messages: &[Message], [got, copied]: [u64; 2]) -> Vec<Duration> {
        let mut read = Vec::new();
        while let Some(message) = messages.get(self.messages) {
            self.pass_useless(messages, copied);
            let by_copy = self.next_copy == self.messages && self.copy_has_come(messages, copied);
            if self.bytes + message.bytes <= got || by_copy {
                read.push(message.at);
                self.bytes += message.bytes;
                self.messages += 1;
            } else if self.copy_has_come(messages, copied) {
                self.pass_copy(messages);
            } else {
                break;
            }
        }
        read
    }

    /// Passes copies of messages that have been read, and messages without a copy.
    fn pass_useless(&mut self, messages: &[Message], copied: u64) {
        while let Some(message) = messages.get(self.next_copy)
            && (!Copying::carries(message.bytes)
                || self.next_copy < self.messages && self.copy_has_come(messages, copied))
        {
            self.pass_copy(messages);
        }
    }

    fn copy_has_come(&self, messages: &[Message], copied: u64) -> bool {
        let next = messages.get(self.next_copy);
        next.is_some_and(|message| self.copied_bytes + message.bytes <= copied)
    }

    fn pass_copy(&mut self, messages: &[Message]) {
        if let Some(message) = messages.get(self.next_copy) {
            if Copying::carries(message.bytes) {
                self.copied_bytes += message.bytes;
            }
            self.next_copy += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_both_counts_in_order() {
        let message = |ms, bytes| Message {
            at: Duration::from_millis(ms),
            bytes,
        };
        // The second one has no copy.
        let messages = [
            message(0, 10),
            message(1, 100_000),
            message(2, 20),
            message(3, 5),
        ];
        let mut reading = Reading::default();
        let mut read = |got| reading.go_on(&messages, got).len();
        assert_eq!(read([0, 10]), 1);
        assert_eq!(read([10, 10]), 0);
        // The copy of the third one comes before the second one.
        assert_eq!(read([10, 30]), 0);
        assert_eq!(read([100_010, 30]), 1);
        assert_eq!(read([100_030, 30]), 1);
        assert_eq!(read([100_030, 35]), 1);
        assert_eq!(read([100_035, 35]), 0);
    }
}
