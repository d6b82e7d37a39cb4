//! `braid paths`: the paths of a running gateway or proxy as a table, once or live.
//!
//! The admin listener's `/paths` holds counters. Rates and shares are the differences of two
//! answers that are one interval apart.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::Serialize;
use service_kit::path_table::{AllPaths, PathRow};

use crate::admin_address::AdminAddress;
use crate::health;
use crate::process::{self, CLEAR, Failure, print};

/// Bytes of an answer that are read; the largest table has about half as many.
const ANSWER_BYTES_MAX: u64 = 8 << 20;
const INTERVAL_MS: std::ops::RangeInclusive<u64> = 100..=60_000;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  braid paths                       `braid up` or a gateway of this host, once\n  braid paths --watch               live, until Ctrl-C\n  braid paths 127.0.0.1:9102        a proxy: the paths of all its gateways\n  braid paths 127.0.0.1:9102 --gateway gw-7 --json\n\nRATE UP and RATE DOWN are as the asked end sends and receives. SHARE is the path's part of its\ngateway's bytes. MONTH counts IP bytes since the access's reset day. RULE and MODE are\nthose of the flows that may use the path now. Only a gateway has MONTH, RANK, MODE and RULE."
)]
pub struct PathsCommand {
    #[command(flatten)]
    at: AdminAddress,
    /// Only the paths of this gateway.
    #[arg(long, value_name = "GATEWAY")]
    gateway: Option<String>,
    /// Print the table again after each interval until interrupted.
    #[arg(long, default_value_t = false)]
    watch: bool,
    /// Print JSON; with --watch one line for each interval.
    #[arg(long, default_value_t = false)]
    json: bool,
    /// Milliseconds over which rates are measured, 100 to 60,000.
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    interval_ms: u64,
}

/// A row with what two answers say together.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Shown {
    service: String,
    #[serde(flatten)]
    row: PathRow,
    up_bits_per_s: f64,
    down_bits_per_s: f64,
    share: f64,
}

/// A path is the same in two answers if all of these are.
type Id = (String, String, u64, u64);

fn id(service: &str, row: &PathRow) -> Id {
    let (service, gateway) = (service.to_owned(), row.gateway.clone());
    (service, gateway, row.session, row.path_id)
}

impl PathsCommand {
    pub fn run(self) -> Result<(), Failure> {
        if !INTERVAL_MS.contains(&self.interval_ms) {
            let reason = format!(
                "--interval-ms: {} is not within {} to {}; for example: --interval-ms 1000",
                self.interval_ms,
                INTERVAL_MS.start(),
                INTERVAL_MS.end()
            );
            return Err(Failure::other(reason));
        }
        process::block_on(self.show())?
    }

    async fn show(self) -> Result<(), Failure> {
        let interval = Duration::from_millis(self.interval_ms);
        let clears = self.watch && !self.json && std::io::stdout().is_terminal();
        let at = self.at.get();
        let mut before = self.ask(at)?;
        let mut asked_at = Instant::now();
        loop {
            tokio::time::sleep(interval).await;
            let after = self.ask(at)?;
            let passed = asked_at.elapsed();
            asked_at = Instant::now();
            let shown = shown(&before, &after, passed);
            let left_out = after.services.iter().map(|it| it.left_out).sum();
            let text = match (self.json, self.watch) {
                (true, true) => serde_json::to_string(&shown).map(|it| it + "\n"),
                (true, false) => serde_json::to_string_pretty(&shown).map(|it| it + "\n"),
                (false, _) => Ok(table(&shown, left_out)),
            };
            let text = text.map_err(Failure::other)?;
            print(&format!("{}{text}", if clears { CLEAR } else { "" }))?;
            if !self.watch {
                return Ok(());
            }
            before = after;
        }
    }

    fn ask(&self, at: SocketAddr) -> Result<AllPaths, Failure> {
        let named = self.gateway.as_deref().unwrap_or_default();
        if !named.is_empty() && !named.bytes().all(is_plain) {
            return Err(Failure::other(format!(
                "--gateway: {named:?} is no name of a gateway; for example: --gateway gw-7"
            )));
        }
        let page = match named {
            "" => "/paths".to_owned(),
            gateway => format!("/paths?gateway={gateway}"),
        };
        let answer = health::get(at, &page, ANSWER_BYTES_MAX);
        let (status, body) = answer.map_err(|error| self.at.unanswered(at, &error))?;
        match status {
            200 => serde_json::from_str(&body)
                .map_err(|error| Failure::other(format!("{at}: not a table of paths: {error}"))),
            404 => Err(Failure::other(format!(
                "{at}: neither a gateway nor a proxy of this release answers there"
            ))),
            other => Err(Failure::other(format!("{at}: status {other}"))),
        }
    }
}

/// Needs no escape in a URL.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// The rows of the second answer, in the order of service, gateway and path.
fn shown(before: &AllPaths, after: &AllPaths, passed: Duration) -> Vec<Shown> {
    let mut earlier = BTreeMap::new();
    for service in &before.services {
        for row in &service.paths {
            let bytes = (row.sent_bytes, row.received_bytes);
            earlier.insert(id(&service.service, row), bytes);
        }
    }
    let seconds = passed.as_secs_f64().max(1e-3);
    let mut rows = Vec::new();
    let mut totals: BTreeMap<(String, String), f64> = BTreeMap::new();
    for service in &after.services {
        for row in &service.paths {
            let id = id(&service.service, row);
            // A path that is new has carried all its bytes since the first answer.
            let (sent, received) = earlier.get(&id).copied().unwrap_or_default();
            let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 * 8.0 / seconds;
            let (up, down) = (
                rate(row.sent_bytes, sent),
                rate(row.received_bytes, received),
            );
            *totals.entry((id.0.clone(), id.1)).or_default() += up + down;
            rows.push(Shown {
                service: id.0,
                row: row.clone(),
                up_bits_per_s: up,
                down_bits_per_s: down,
                share: 0.0,
            });
        }
    }
    for shown in &mut rows {
        let key = (shown.service.clone(), shown.row.gateway.clone());
        let total = totals.get(&key).copied().unwrap_or_default();
        if total > 0.0 {
            shown.share = (shown.up_bits_per_s + shown.down_bits_per_s) / total;
        }
    }
    rows.sort_by_cached_key(|it| {
        let row = &it.row;
        let name = (it.service.clone(), row.gateway.clone(), row.path.clone());
        (name, row.session, row.path_id)
    });
    rows
}

const HEAD: [&str; 12] = [
    "GATEWAY",
    "PATH",
    "STATE",
    "RATE UP",
    "RATE DOWN",
    "RTT",
    "LOSS",
    "SHARE",
    "MONTH",
    "RANK",
    "MODE",
    "RULE",
];
/// Columns of figures are aligned to the right.
const FIGURES: std::ops::RangeInclusive<usize> = 3..=8;

fn table(rows: &[Shown], left_out: usize) -> String {
    let mut lines = vec![HEAD.map(str::to_owned)];
    lines.extend(rows.iter().map(cells));
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, it)| {
            let (cell, width) = it;
            match FIGURES.contains(&column) {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    if rows.is_empty() {
        text += "no path is open\n";
    }
    if left_out > 0 {
        text += &format!("{left_out} more paths are left out; name one with --gateway\n");
    }
    text
}

fn cells(shown: &Shown) -> [String; 12] {
    let row = &shown.row;
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let named = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    [
        printable(&row.gateway),
        printable(&row.path),
        row.state.clone(),
        rate(shown.up_bits_per_s),
        rate(shown.down_bits_per_s),
        format!("{:.1} ms", row.rtt_ms),
        or_none(row.loss.map(|loss| format!("{:.1} %", loss * 100.0))),
        format!("{:.0} %", shown.share * 100.0),
        or_none(row.month_bytes.map(bytes)),
        or_none(named(&row.rank)),
        or_none(named(&printable(&row.modes.join(", ")))),
        or_none(named(&printable(&row.rules.join(", ")))),
    ]
}

/// Names come from other machines; control characters would reach the terminal.
fn printable(text: &str) -> String {
    text.chars().filter(|it| !it.is_control()).collect()
}

fn rate(bits_per_s: f64) -> String {
    match bits_per_s {
        rate if rate >= 999_500.0 => format!("{:.1} Mbit/s", rate / 1e6),
        rate => format!("{:.1} kbit/s", rate / 1e3),
    }
}

fn bytes(bytes: u64) -> String {
    match bytes as f64 {
        bytes if bytes >= 999.5e6 => format!("{:.2} GB", bytes / 1e9),
        bytes => format!("{:.1} MB", bytes / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use service_kit::path_table::ServicePaths;

    use super::*;

    fn row(path: &str, session: u64, sent_bytes: u64, received_bytes: u64) -> PathRow {
        PathRow {
            gateway: "gw-1".to_owned(),
            path: path.to_owned(),
            session,
            state: "available".to_owned(),
            rtt_ms: 20.25,
            sent_bytes,
            received_bytes,
            ..PathRow::default()
        }
    }

    fn answer(rows: Vec<PathRow>) -> AllPaths {
        AllPaths {
            services: vec![ServicePaths::new("gateway", rows)],
        }
    }

    #[test]
    fn rates_and_shares_are_those_of_the_interval() {
        let before = answer(vec![row("wifi", 1, 1_000_000, 0), row("lte", 2, 0, 500)]);
        let wifi = PathRow {
            loss: Some(0.012),
            month_bytes: Some(4_260_000_000),
            rank: "active".to_owned(),
            rules: vec!["bulk".to_owned(), "video\x1b[2J".to_owned()],
            modes: vec!["auto".to_owned(), "priority".to_owned()],
            ..row("wifi", 1, 1_375_000, 0)
        };
        // Another session of the same access begins at zero.
        let after = answer(vec![wifi, row("lte", 3, 0, 125_000)]);
        let shown = shown(&before, &after, Duration::from_secs(2));
        assert_eq!(
            table(&shown, 3),
            "GATEWAY  PATH  STATE         RATE UP     RATE DOWN      RTT   LOSS  SHARE    MONTH  \
             RANK    MODE            RULE\n\
             gw-1     lte   available  0.0 kbit/s  500.0 kbit/s  20.2 ms      -   25 %        -  \
             -       -               -\n\
             gw-1     wifi  available  1.5 Mbit/s    0.0 kbit/s  20.2 ms  1.2 %   75 %  4.26 GB  \
             active  auto, priority  bulk, video[2J\n\
             3 more paths are left out; name one with --gateway\n"
        );
        let json = serde_json::to_value(&shown[1]).unwrap_or_default();
        assert_eq!(json["path"], "wifi");
        assert_eq!(json["share"], 0.75);
        assert_eq!(table(&[], 0).lines().last(), Some("no path is open"));
    }
}
