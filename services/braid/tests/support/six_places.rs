//! Reads what is wrong in a process at the six places that say it.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::grpc_web;
use super::program::{eventually, http, run};

/// Codes of the banners that the page shows to this session.
fn banners(page: SocketAddr, token: &str) -> Option<BTreeSet<String>> {
    let ward: contracts::query::ListPatientsResponse = grpc_web::call(page, token, "ListPatients")?;
    Some(ward.warnings.into_iter().map(|it| it.code).collect())
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
