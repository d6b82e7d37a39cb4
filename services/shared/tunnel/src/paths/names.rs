//! Names of paths, and the agreement on the keepalive, on a stream of the session.
//!
//! The proxy sees path ids and addresses; only the client knows the access network of a path. So
//! the client posts to `/.well-known/braid/paths` a line `<path id> <name>` whenever a path gets a
//! name, until the session ends.
//!
//! On the same stream both ends agree on the keepalive (`multipath::KeepaliveProposer`). The client
//! proposes with `keepalive <interval in ms> <silent intervals>`, and the proxy accepts with the
//! same line. The client confirms with `agreed` and the same numbers. The header `braid-keepalive:
//! v=1` says that a proxy answers proposals. Terms are applied before the line that announces them
//! is written.
//!
//! The header `braid-rest: v=1` of either end says that it asks before it judges a path that rests
//! (`multipath::Rest`). The client's is in the request and the proxy's in the answer. The client
//! tolerates rest from before its request until an answer without the header. An end rests once it
//! has read the header of the other.
//!
//! The schedule of the steering rules goes the same way (`ranks`), to a proxy that says that it
//! reads it. Its number (`orders`) goes to a proxy that reads numbers.
//!
//! A proxy without the resource refuses it. Then paths have no names at the proxy, and both ends
//! keep the default keepalive.

mod ranks;

use std::{io, sync::Arc, time::Duration};

use futures::StreamExt;
use multipath::{Keepalive, KeepaliveAcceptor, KeepaliveProposer, KeepaliveTerms, Rest};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    sync::watch,
};
use tokio_util::codec::{FramedRead, LinesCodec};

use crate::{
    http::stream::ConnectStream,
    paths::{
        Paths,
        name::{NAME_BYTES_MAX, is_name},
        orders::Order,
    },
};
use ranks::{Arriving, RankLine};

/// Longest line: a rank with the name of an access, its place, rank and weight.
const LINE_BYTES_MAX: usize = NAME_BYTES_MAX + 36;

/// The client's end.
pub(crate) struct Telling {
    pub(crate) paths: Arc<Paths>,
    /// The policy in force.
    pub(crate) keepalive: watch::Receiver<Keepalive>,
    /// The terms in force, for the upkeep.
    pub(crate) terms: watch::Sender<KeepaliveTerms>,
    pub(crate) proxy_answers: bool,
    /// The steering rules of this session.
    pub(crate) schedule: watch::Receiver<Order>,
    pub(crate) takes_schedules: bool,
    /// It reads their numbers too.
    pub(crate) takes_numbers: bool,
    pub(crate) rest: Rest,
}

impl Telling {
    /// Sends the names of the paths to the proxy, and agrees on the keepalive, until the session
    /// ends.
    pub(crate) async fn run(mut self, stream: ConnectStream) -> io::Result<()> {
        let (receive, mut send) = tokio::io::split(stream);
        let mut answers = FramedRead::new(receive, LinesCodec::new_with_max_length(LINE_BYTES_MAX));
        let mut proposer = KeepaliveProposer::new(self.proxy_answers);
        proposer.set_rest(self.rest);
        self.terms.send_replace(proposer.terms());
        let mut named = self.paths.watch_names();
        let mut sent = Vec::new();
        let mut scheduled = Order::default();
        loop {
            let order = self.schedule.borrow_and_update().clone();
            let is_news = match self.takes_numbers {
                true => order.number != scheduled.number,
                false => order.schedule != scheduled.schedule,
            };
            if self.takes_schedules && is_news {
                let number = self.takes_numbers.then_some(order.number);
                let lines = ranks::lines(&order.schedule, number);
                send.write_all(lines.as_bytes()).await?;
            }
            let told = order.number;
            scheduled = order;
            proposer.want(*self.keepalive.borrow_and_update());
            if let Some(proposal) = proposer.propose() {
                self.terms.send_replace(proposer.terms());
                write(&mut send, Line::Keepalive(proposal)).await?;
            }
            let names = named.borrow_and_update().clone();
            for (id, name) in names.iter() {
                if !sent.contains(id) {
                    write(&mut send, Line::Name(*id, name)).await?;
                }
            }
            send.flush().await?;
            self.paths.orders.tell(told);
            sent = names.keys().copied().collect();
            let changed = tokio::select! {
                changed = named.changed() => changed,
                changed = self.keepalive.changed() => changed,
                changed = self.schedule.changed() => changed,
                answer = answers.next(), if self.proxy_answers => {
                    let line = match answer {
                        Some(line) => line.map_err(io::Error::other)?,
                        None => return Ok(()),
                    };
                    let Some(Line::Keepalive(accepted)) = parse(&line) else {
                        return Err(io::ErrorKind::InvalidData.into());
                    };
                    if proposer.on_accept(accepted) {
                        self.terms.send_replace(proposer.terms());
                        write(&mut send, Line::Agreed(accepted)).await?;
                    }
                    Ok(())
                }
            };
            if changed.is_err() {
                return Ok(());
            }
        }
    }
}

/// Reads the client's lines. Ends with the stream, or at the first malformed line.
pub(crate) async fn learn(
    stream: ConnectStream,
    paths: &Paths,
    terms: &watch::Sender<KeepaliveTerms>,
    rest: Rest,
) -> io::Result<()> {
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    let mut acceptor = KeepaliveAcceptor::default();
    acceptor.set_rest(rest);
    let mut arriving = Arriving::default();
    loop {
        line.clear();
        (&mut lines)
            .take(LINE_BYTES_MAX as u64)
            .read_line(&mut line)
            .await?;
        if line.is_empty() {
            return Ok(());
        }
        let sent = line.strip_suffix('\n').and_then(parse);
        match sent.ok_or(io::ErrorKind::InvalidData)? {
            Line::Name(id, name) => paths.set_name(id, name),
            Line::Rank(line) => {
                let whole = arriving.on_line(&line).ok_or(io::ErrorKind::InvalidData)?;
                if let Some(order) = whole {
                    paths.orders.receive(order);
                }
            }
            Line::Keepalive(proposal) => {
                let accepted = acceptor.on_propose(proposal);
                terms.send_replace(acceptor.terms());
                // A client of an older release reads no answers; a few bytes for each policy wait
                // in its window.
                write(lines.get_mut(), Line::Keepalive(accepted)).await?;
                lines.get_mut().flush().await?;
            }
            Line::Agreed(keepalive) => {
                acceptor.on_confirm(keepalive);
                terms.send_replace(acceptor.terms());
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Line<'a> {
    Name(u32, &'a str),
    /// Proposed by the client and accepted by the proxy, within the bounds of the agreement.
    Keepalive(Keepalive),
    /// Confirmed by the client.
    Agreed(Keepalive),
    /// Part of a schedule.
    Rank(RankLine<'a>),
}

async fn write(to: &mut (impl AsyncWrite + Unpin), line: Line<'_>) -> io::Result<()> {
    let numbers = |keepalive: Keepalive| {
        let interval_ms = keepalive.interval.as_millis();
        format!("{interval_ms} {}", keepalive.silent_intervals)
    };
    let text = match line {
        Line::Name(id, name) => format!("{id} {name}\n"),
        Line::Keepalive(keepalive) => format!("keepalive {}\n", numbers(keepalive)),
        Line::Agreed(keepalive) => format!("agreed {}\n", numbers(keepalive)),
        // Written as a whole.
        Line::Rank(_) => return Ok(()),
    };
    to.write_all(text.as_bytes()).await
}

/// A line without its line end.
fn parse(line: &str) -> Option<Line<'_>> {
    let (first, rest) = line.split_once(' ')?;
    let keepalive = || {
        let (interval, silent) = rest.split_once(' ')?;
        Some(Keepalive {
            interval: Duration::from_millis(interval.parse::<u32>().ok()?.into()),
            silent_intervals: silent.parse().ok()?,
        })
    };
    match first {
        "keepalive" => keepalive().map(Line::Keepalive),
        "agreed" => keepalive().map(Line::Agreed),
        "schedule" | "rank" => ranks::parse(first, rest).map(Line::Rank),
        id => is_name(rest).then_some(Line::Name(id.parse().ok()?, rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_or_refused() {
        assert_eq!(parse("3 wifi"), Some(Line::Name(3, "wifi")));
        let keepalive = Keepalive {
            interval: Duration::from_millis(60),
            silent_intervals: 7,
        };
        assert_eq!(parse("keepalive 60 7"), Some(Line::Keepalive(keepalive)));
        assert_eq!(parse("agreed 60 7"), Some(Line::Agreed(keepalive)));
        for refused in [
            "wifi",
            "-1 wifi",
            "3 ",
            "3 wi fi",
            "keepalive 60",
            "keepalive -1 7",
            "keepalive 60 7 8",
            "agreed 60",
            "3 \u{e4}",
        ] {
            assert_eq!(parse(refused), None, "{refused:?}");
        }
        assert_eq!(
            parse(&format!("1 {}", "x".repeat(NAME_BYTES_MAX + 1))),
            None
        );
    }
}
