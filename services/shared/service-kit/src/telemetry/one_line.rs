//! Keeps each event on one line of the log. Text from a peer may contain line breaks, and the part
//! after a break would look like an event of this process.

use std::io::{Result, Write};

/// Receives each event in one piece from the formatter.
pub(super) struct OneLine<W>(pub(super) W);

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> Result<usize> {
        let body = event.strip_suffix(b"\n").unwrap_or(event);
        if !body.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
            self.0.write_all(event)?;
            return Ok(event.len());
        }
        let mut line = Vec::with_capacity(event.len() + 16);
        for byte in body {
            match byte {
                b'\n' => line.extend(b"\\n"),
                b'\r' => line.extend(b"\\r"),
                byte => line.push(*byte),
            }
        }
        line.extend(&event[body.len()..]);
        self.0.write_all(&line)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn text_of_a_peer_begins_no_log_line() {
        let log = Log::default();
        let into = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || OneLine(into.clone()))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let said = "gone\r\n2026-11-23T20:00:00Z  INFO proxy: all is well";
            tracing::warn!(error = %said, "refused");
            tracing::info!("the next");
        });
        let text = String::from_utf8(log.0.lock().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].contains(r"gone\r\n2026"), "{text}");
        assert!(lines[1].ends_with("the next"), "{text}");
    }
}
