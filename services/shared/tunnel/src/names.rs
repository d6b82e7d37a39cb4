//! The proxy sees path ids and addresses; which access network is behind a path only the client knows. So the client posts to
//! `/.well-known/braid/paths` one line `<path id> <name>` whenever a path gets a name, for as long as the session lasts.
//! A proxy that does not know the resource refuses it, and nothing else depends on it.

use std::{io, sync::Arc};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::{paths::Paths, stream::ConnectStream};

/// Longest name of an access network; a longer one is cut by the client and refused by the server.
pub(crate) const NAME_BYTES_MAX: usize = 32;

/// Longest line: a path id of 32 bits, a blank, the name and the line's end.
const LINE_BYTES_MAX: u64 = NAME_BYTES_MAX as u64 + 12;

/// Tells the peer the names of the paths until the session ends.
pub(crate) async fn tell(mut stream: ConnectStream, paths: Arc<Paths>) -> io::Result<()> {
    let mut named = paths.watch_names();
    let mut told = Vec::new();
    loop {
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
        if named.changed().await.is_err() {
            return Ok(());
        }
    }
}

/// Takes in what the client tells. Ends with the stream, or at the first line that is no such line.
pub(crate) async fn learn(stream: ConnectStream, paths: Arc<Paths>) -> io::Result<()> {
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
        let (id, name) = parse(&line).ok_or(io::ErrorKind::InvalidData)?;
        paths.set_name(id, name);
    }
}

fn parse(line: &str) -> Option<(u32, &str)> {
    let (id, name) = line.strip_suffix('\n')?.split_once(' ')?;
    is_name(name).then_some((id.parse().ok()?, name))
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
        assert_eq!(parse("3 wifi\n"), Some((3, "wifi")));
        for refused in [
            "3 wifi",
            "wifi\n",
            "-1 wifi\n",
            "3 \n",
            "3 wi fi\n",
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
