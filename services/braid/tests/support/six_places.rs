//! Reads what is wrong in a process at the six places that say it.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::program::{eventually, http, run};

/// Codes of the banners that the page shows to this session.
fn banners(page: SocketAddr, token: &str) -> Option<BTreeSet<String>> {
    let mut stream = TcpStream::connect(page).ok()?;
    write!(
        stream,
        "POST /braid.query.v1.QueryService/ListPatients HTTP/1.1\r\nhost: {page}\r\n\
         connection: close\r\nauthorization: Bearer {token}\r\n\
         content-type: application/grpc-web+proto\r\ncontent-length: 5\r\n\r\n\0\0\0\0\0"
    )
    .ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let text = String::from_utf8_lossy(&answer).into_owned();
    // The codes are ASCII and stand in the message as they are.
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    let body = answer.windows(4).position(|it| it == b"\r\n\r\n")? + 4;
    let body = unchunked(&answer[body..], text.contains("transfer-encoding: chunked"));
    let length = u32::from_be_bytes(body.get(1..5)?.try_into().ok()?) as usize;
    let message = body.get(5..5 + length)?;
    let ward = <contracts::query::ListPatientsResponse as prost::Message>::decode(message).ok()?;
    Some(ward.warnings.into_iter().map(|it| it.code).collect())
}

fn unchunked(body: &[u8], is_chunked: bool) -> Vec<u8> {
    let (mut rest, mut whole) = (body, Vec::new());
    while is_chunked && let Some(end) = rest.windows(2).position(|it| it == b"\r\n") {
        let length = std::str::from_utf8(&rest[..end]).unwrap_or_default();
        let length = usize::from_str_radix(length, 16).unwrap_or(0);
        whole.extend_from_slice(&rest[end + 2..end + 2 + length]);
        rest = &rest[(end + 4 + length).min(rest.len())..];
        if length == 0 {
            break;
        }
    }
    if is_chunked { whole } else { body.to_vec() }
}

/// Six places and what each says is wrong, as "service/name".
pub struct Places {
    pub ready: BTreeSet<String>,
    alive: BTreeSet<String>,
    metrics: BTreeSet<String>,
    doctor: BTreeSet<String>,
    log: BTreeSet<String>,
    page: BTreeSet<String>,
}

impl Places {
    pub fn look(
        admin: SocketAddr,
        page: SocketAddr,
        log: &str,
        data: &str,
        token: &str,
    ) -> Option<Places> {
        let listed = |path: &str| -> Option<BTreeSet<String>> {
            let (_, body) = http(admin, "GET", path, "", "").ok()?;
            let answer: serde_json::Value = serde_json::from_str(&body).ok()?;
            let wrong = answer["wrong"].as_array()?.iter();
            let name = |it: &serde_json::Value| {
                Some(format!(
                    "{}/{}",
                    it["service"].as_str()?,
                    it["name"].as_str()?
                ))
            };
            wrong.map(name).collect()
        };
        let (_, metrics) = http(admin, "GET", "/metrics", "", "").ok()?;
        let label = |line: &str, name: &str| {
            let (_, after) = line.split_once(&format!("{name}=\""))?;
            Some(after.split_once('"')?.0.to_owned())
        };
        let metrics = metrics.lines().filter(|it| it.starts_with("braid_wrong{"));
        let metrics =
            metrics.map(|it| Some(format!("{}/{}", label(it, "service")?, label(it, "name")?)));
        let admin = admin.to_string();
        let (_, doctor, _) = run(&["doctor", "--data", data, "--admin", &admin, "--json"]);
        let doctor: serde_json::Value = serde_json::from_str(&doctor).ok()?;
        let found = doctor.as_array()?.iter();
        let found = found.filter(|it| it["subject"] == admin.as_str() && it["state"] != "ok");
        let found = found.map(|it| {
            let (service, rest) = it["says"].as_str()?.split_once(", ")?;
            Some(format!("{service}/{}", rest.split_once(':')?.0))
        });
        let mut logged = BTreeSet::new();
        for line in log.lines().filter(|it| it.contains("wrong service=")) {
            let line = line.replace('"', "");
            let word = |name: &str| {
                let (_, after) = line.split_once(&format!("{name}="))?;
                after.split_whitespace().next().map(str::to_owned)
            };
            let name = format!("{}/{}", word("service")?, word("name")?);
            match line.contains("no longer wrong") {
                true => logged.remove(&name),
                false => logged.insert(name),
            };
        }
        Some(Places {
            ready: listed("/readyz")?,
            alive: listed("/healthz")?,
            metrics: metrics.collect::<Option<_>>()?,
            doctor: found.collect::<Option<_>>()?,
            log: logged,
            page: banners(page, token)?,
        })
    }

    /// The page has a banner of its own for some, which then says more.
    pub fn agree(&self) -> bool {
        let is_shown = |it: &String| {
            let (service, name) = it.split_once('/').unwrap();
            self.page.contains(it) || self.page.contains(name) || service == "process"
        };
        let is_listed = |code: &String| {
            let of = |it: &String| it == code || it.ends_with(&format!("/{code}"));
            self.ready.iter().any(of)
        };
        [&self.alive, &self.metrics, &self.doctor, &self.log]
            .iter()
            .all(|it| **it == self.ready)
            && self.ready.iter().all(is_shown)
            && self.page.iter().all(is_listed)
    }

    pub fn show(&self) -> String {
        let Places {
            ready,
            alive,
            metrics,
            doctor,
            log,
            page,
        } = self;
        format!(
            "readyz {ready:?}\nhealthz {alive:?}\nmetrics {metrics:?}\ndoctor {doctor:?}\nlog {log:?}\npage {page:?}"
        )
    }
}

/// Waits until the places agree and name this. Each look takes a moment, in which something may
/// begin or end.
pub fn agree(what: &str, name: &str, mut look: impl FnMut() -> Option<Places>) {
    let mut last = String::new();
    let until = std::panic::AssertUnwindSafe(|| {
        eventually(what, || {
            let Some(places) = look() else {
                return false;
            };
            last = places.show();
            places.ready.contains(name) && places.agree()
        });
    });
    if let Err(error) = std::panic::catch_unwind(until) {
        eprintln!("{last}");
        std::panic::resume_unwind(error);
    }
    println!("{what}:\n{last}\n");
}
