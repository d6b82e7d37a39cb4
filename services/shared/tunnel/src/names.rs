//! The proxy sees path ids and addresses; which access network is behind a path only the client knows. So the client posts to
//! `/.well-known/braid/paths` one line `<path id> <name>` whenever a path gets a name, for as long as the session lasts.
//! A line `keepalive <interval in ms> <silent intervals>` says how often the paths are to be probed, so that both ends follow the
//! policy that the client was given. A proxy that does not know the resource refuses it, and nothing else depends on it.

use std::{io, sync::Arc, time::Duration};

use multipath::Keepalive;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    sync::watch,
};

use crate::{paths::Paths, stream::ConnectStream};

/// Longest name of an access network; a longer one is cut by the client and refused by the server.
pub(crate) const NAME_BYTES_MAX: usize = 32;

/// Longest line: a path id of 32 bits, a blank, the name and the line's end.
const LINE_BYTES_MAX: u64 = NAME_BYTES_MAX as u64 + 12;

/// Tells the peer the names of the paths until the session ends.
pub(crate) async fn tell(
    mut stream: ConnectStream,
    paths: Arc<Paths>,
    mut keepalive: watch::Receiver<Keepalive>,
) -> io::Result<()> {
    let mut named = paths.watch_names();
    let mut told = Vec::new();
    let mut told_keepalive = Keepalive::default();
    loop {
        let wanted = *keepalive.borrow_and_update();
        if wanted != told_keepalive {
            let line = format!(
                "keepalive {} {}\n",
                wanted.interval.as_millis(),
                wanted.silent_intervals
            );
            stream.write_all(line.as_bytes()).await?;
            told_keepalive = wanted;
        }
        let names = named.borrow_and_update().clone();
        for (id, name) in names.iter() {
            if !told.contains(id) {
                stream
                    .write_all(format!("{id} {name}\n").as_bytes())
                    .await?;
            }
        }
        stream.flush().await?;
        told = names.keys().copied().collect();
        let changed = tokio::select! {
            changed = named.changed() => changed,
            changed = keepalive.changed() => changed,
        };
        if changed.is_err() {
            return Ok(());
        }
    }
}

/// Takes in what the client tells. Ends with the stream, or at the first line that is no such line.
pub(crate) async fn learn(
    stream: ConnectStream,
    paths: Arc<Paths>,
    obey: impl Fn(Keepalive),
) -> io::Result<()> {
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        (&mut lines)
            .take(LINE_BYTES_MAX)
            .read_line(&mut line)
            .await?;
        if line.is_empty() {
            return Ok(());
        }
        match parse(&line).ok_or(io::ErrorKind::InvalidData)? {
            Line::Name(id, name) => paths.set_name(id, name),
            Line::Keepalive(keepalive) => obey(keepalive),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Name(u32, &'a str),
    /// Its bounds are the steering's.
    Keepalive(Keepalive),
}

fn parse(line: &str) -> Option<Line<'_>> {
    let (first, rest) = line.strip_suffix('\n')?.split_once(' ')?;
    if first == "keepalive" {
        let (interval, silent) = rest.split_once(' ')?;
        return Some(Line::Keepalive(Keepalive {
            interval: Duration::from_millis(interval.parse::<u32>().ok()?.into()),
            silent_intervals: silent.parse().ok()?,
        }));
    }
    is_name(rest).then_some(Line::Name(first.parse().ok()?, rest))
}

/// Whether an access network may be called so. Names end up in metrics and tables, so their alphabet is small.
pub fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart_or_refused() {
        assert_eq!(parse("3 wifi\n"), Some(Line::Name(3, "wifi")));
        let keepalive = Keepalive {
            interval: Duration::from_millis(60),
            silent_intervals: 7,
        };
        assert_eq!(parse("keepalive 60 7\n"), Some(Line::Keepalive(keepalive)));
        for refused in [
            "3 wifi",
            "wifi\n",
            "-1 wifi\n",
            "3 \n",
            "3 wi fi\n",
            "keepalive 60\n",
            "keepalive -1 7\n",
            "keepalive 60 7 8\n",
            "3 \u{e4}\n",
        ] {
            assert_eq!(parse(refused), None, "{refused:?}");
        }
        assert_eq!(
            parse(&format!("1 {}\n", "x".repeat(NAME_BYTES_MAX + 1))),
            None
        );
    }
}
