//! Frames of MLLP: a message between a start byte and two end bytes. Sans-IO.

/// Begins a message.
const START: u8 = 0x0b;
/// End a message, in this order.
const END: [u8; 2] = [0x1c, 0x0d];
/// Bytes of one message. An admission has some kilobytes; documents and pictures are refused.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Bytes between two messages, such as the line feeds of some senders.
const BETWEEN_BYTES_MAX: usize = 1_024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a message is longer than {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
    #[error("bytes outside a message: this is no MLLP, or a plain connection meets TLS")]
    NoFrame,
}

/// Takes bytes as they come, and gives whole messages.
#[derive(Debug, Default)]
pub struct Decoder {
    /// From the start byte on, which is not among them.
    inside: Option<Vec<u8>>,
    between: usize,
}

impl Decoder {
    /// The messages that these bytes complete. After an error the connection is of no use.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, FrameError> {
        let mut messages = Vec::new();
        for &byte in bytes {
            let Some(inside) = &mut self.inside else {
                if byte == START {
                    self.inside = Some(Vec::new());
                    self.between = 0;
                } else {
                    self.between += 1;
                    let is_line_end = matches!(byte, b'\r' | b'\n');
                    if !is_line_end || self.between > BETWEEN_BYTES_MAX {
                        return Err(FrameError::NoFrame);
                    }
                }
                continue;
            };
            inside.push(byte);
            if inside.ends_with(&END) {
                inside.truncate(inside.len() - END.len());
                messages.extend(self.inside.take());
            } else if inside.len() > MESSAGE_BYTES_MAX + END.len() {
                return Err(FrameError::TooLong);
            }
        }
        Ok(messages)
    }

    /// Whether the connection ends within a message.
    pub fn is_inside(&self) -> bool {
        self.inside.is_some()
    }
}

pub fn frame(message: &[u8]) -> Vec<u8> {
    let mut framed = Vec::with_capacity(message.len() + 3);
    framed.push(START);
    framed.extend_from_slice(message);
    framed.extend_from_slice(&END);
    framed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_whole_however_the_bytes_are_split() {
        let mut bytes = frame(b"MSH|1");
        bytes.extend(b"\r\n");
        bytes.extend(frame(b"MSH|2\rPID|1"));
        for size in 1..bytes.len() {
            let mut decoder = Decoder::default();
            let mut found = Vec::new();
            for part in bytes.chunks(size) {
                match decoder.take(part) {
                    Ok(messages) => found.extend(messages),
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(found, [b"MSH|1".to_vec(), b"MSH|2\rPID|1".to_vec()]);
            assert!(!decoder.is_inside());
        }
    }

    #[test]
    fn what_is_no_frame_or_has_no_end_is_refused() {
        let taken = Decoder::default().take(b"GET / HTTP/1.1\r\n");
        assert_eq!(taken, Err(FrameError::NoFrame));
        let mut decoder = Decoder::default();
        assert_eq!(decoder.take(&[START]), Ok(Vec::new()));
        assert!(decoder.is_inside());
        let endless = decoder.take(&vec![b'x'; MESSAGE_BYTES_MAX + 3]);
        assert_eq!(endless, Err(FrameError::TooLong));
    }
}
