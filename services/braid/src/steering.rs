//! `braid steering`: steering rules, checked and explained before they hold, put and shown as
//! documents of the store.

mod freshness;
mod newest;
mod unknown;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use dashboard::explain::{Described, SUBJECT, explain};
use store::{DOCUMENTS_MAX, STEERING, Scope};
use tunnel::steering_rules::{
    AccessState, Document, Flow, Measurement, Measurements, Used, decide,
};

use crate::audit::Asker;
use crate::decisions;
use crate::process::{self, Failure, say, when};
use crate::signed::{By, Signed};
use crate::tenancy::Tenancy;

use freshness::FreshnessCommand;
use newest::newest;

#[derive(Debug, clap::Subcommand)]
pub enum SteeringCommand {
    /// Report whether steering documents can be used, and what is wrong with them.
    #[command(after_help = "Example:\n  braid steering check steering.toml")]
    Check {
        /// Documents as TOML or JSON.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Put a document in force for all gateways of a tenant. They follow without a reconnect.
    #[command(
        after_help = "Examples:\n  braid steering put steering.toml --by \"Eve\" --reason \"LTE is capped\"\n  braid steering put --none --by \"Eve\" --reason \"trial is over\""
    )]
    Put {
        /// The document as TOML or JSON.
        #[arg(value_name = "FILE", required_unless_present = "none")]
        file: Option<PathBuf>,
        /// Take the rules back: every access is used.
        #[arg(long, conflicts_with = "file", default_value_t = false)]
        none: bool,
        #[command(flatten)]
        signed: Signed,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Print the document in force, and which gateways follow which version.
    #[command(after_help = "Example:\n  braid steering show --by \"Eve\"")]
    Show {
        #[command(flatten)]
        asker: Asker,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Set how old vitals may be when gateways upload them, as a new version of the document in
    /// force; without MS print what holds. Alerts never wait.
    #[command(
        after_help = "Examples:\n  braid steering freshness 1000 --by \"Eve\" --reason \"SIM cards are capped\"\n  braid steering freshness 10000 --gateway gw-7 --by \"Eve\" --reason prepaid\n  braid steering freshness --none --gateway gw-7 --by \"Eve\" --reason \"flat rate\"\n  braid steering freshness --by \"Eve\""
    )]
    Freshness(FreshnessCommand),
    /// List the versions that were put: number, time, author and reason.
    #[command(after_help = "Example:\n  braid steering history --by \"Eve\"")]
    History {
        /// Print JSON.
        #[arg(long, default_value_t = false)]
        json: bool,
        #[command(flatten)]
        asker: Asker,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Print which rule decides about a destination, which accesses it takes in which order, and
    /// why the others do not.
    #[command(
        after_help = "Examples:\n  braid steering explain deb.example.org:443 --file steering.toml \\\n      --access wifi:20 --access lte:45:0.01:4.9\n  braid steering explain 10.0.0.7:554 --file steering.toml \\\n      --application user:video --access wifi\n  braid steering explain deb.example.org:443 --gateway gw-1 --by \"Eve\""
    )]
    Explain(ExplainCommand),
}

#[derive(Debug, clap::Args)]
pub struct ExplainCommand {
    /// Name or address, with a port or without.
    #[arg(value_name = "DESTINATION")]
    destination: String,
    /// The document as TOML or JSON, also the own one of a gateway. Absent: the one in force.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Answer for this gateway: its accesses, its measurements and the document it obeys.
    #[arg(long, value_name = "GATEWAY", conflicts_with = "accesses")]
    gateway: Option<String>,
    /// An access: its name, and as known its round trip in ms and its loss (0 to 1). Then the GB of
    /// its month, week and day so far.
    #[arg(
        long = "access",
        value_name = "NAME[:RTT[:LOSS[:GB[:GB[:GB]]]]]",
        required_unless_present = "gateway"
    )]
    accesses: Vec<String>,
    /// applications, applications-prompt, tun, vitals, alerts or user:NAME.
    #[arg(long, value_name = "NAME", default_value = "applications")]
    application: String,
    /// alert, prompt or bulk.
    #[arg(long, value_name = "URGENCY", default_value = "bulk")]
    urgency: String,
    /// tcp, udp or ip.
    #[arg(long, value_name = "PROTOCOL", default_value = "tcp")]
    protocol: String,
    /// Answer as for a gateway of this group of the document.
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Print the decision as JSON.
    #[arg(long, default_value_t = false)]
    json: bool,
    #[command(flatten)]
    by: By,
    #[command(flatten)]
    tenancy: Tenancy,
}

impl SteeringCommand {
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Self::Check { files } => {
                for file in &files {
                    let document = read(file)?;
                    let (rules, accesses) = (document.rules.len(), document.accesses.len());
                    let (groups, file) = (document.groups.len(), file.display());
                    say(&format!(
                        "{file}: {rules} rules, {accesses} accesses, {groups} groups"
                    ))?;
                }
            }
            Self::Put {
                file,
                signed,
                tenancy,
                ..
            } => {
                let document = file.as_deref().map(read).transpose()?;
                process::block_on(put(document, &signed, &tenancy))??;
            }
            Self::Show { asker, tenancy } => process::block_on(show(&asker, tenancy))??,
            Self::History {
                json,
                asker,
                tenancy,
            } => process::block_on(history(json, &asker, tenancy))??,
            Self::Freshness(freshness) => freshness.run()?,
            Self::Explain(explain) => explain.run()?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The document of a file, checked.
pub fn read(file: &Path) -> Result<Document, Failure> {
    let place = file.display().to_string();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::other(format!("{place}: {error}")))?;
    Document::from_text(&text, &place).map_err(Failure::other)
}

async fn put(
    document: Option<Document>,
    signed: &Signed,
    tenancy: &Tenancy,
) -> Result<(), Failure> {
    let body = document.as_ref().map(Document::to_json);
    let body = body.unwrap_or_default();
    let put = decisions::put(tenancy, STEERING, SUBJECT, signed, 0, &body).await?;
    let version = put.version;
    say(&format!(
        "version {version} is put; gateways follow within two minutes"
    ))?;
    if let Some(document) = document {
        let store = tenancy.store.open().await?;
        for note in unknown::notes(&*store, &tenancy.tenant, &document).await? {
            say(&note)?;
        }
    }
    Ok(())
}

async fn show(asker: &Asker, tenancy: Tenancy) -> Result<(), Failure> {
    let Some(newest) = newest(asker, &tenancy).await? else {
        return say("no steering document was ever put");
    };
    let (at, author, reason) = (when(newest.at_us), &newest.author, &newest.reason);
    say(&format!(
        "# version {}, {at}, {author}: {reason}",
        newest.version
    ))?;
    if newest.body.is_empty() {
        say("# taken back: every access is used")?;
    } else {
        let document = Document::from_json(&newest.body, STEERING).map_err(Failure::other)?;
        process::print(&format!("{}\n", document.to_toml().trim_end()))?;
    }
    let store = tenancy.store.open().await?;
    let mut follows = std::collections::BTreeMap::new();
    let scope = Scope::Tenant(tenancy.tenant);
    let known = store.gateways(&scope).await.map_err(Failure::other)?;
    store::each_latest_path(store.as_ref(), &scope, 0, |report| {
        if report.end() == contracts::paths::End::Gateway {
            let seen = (
                report.time_us,
                report.steering_version,
                report.steering_is_own,
            );
            let entry = follows.entry(report.gateway).or_insert((0i64, 0u32, false));
            *entry = (*entry).max(seen);
        }
    })
    .await
    .map_err(Failure::other)?;
    for gateway in known.iter().filter(|it| !follows.contains_key(&it.id)) {
        say(&format!(
            "# {}: unknown, it has reported nothing",
            gateway.id
        ))?;
    }
    for (gateway, (seen_us, version, is_own)) in follows {
        let state = match version {
            version if version == newest.version => "in force".to_owned(),
            0 if is_own => "a file of its own".to_owned(),
            0 => "none".to_owned(),
            version => format!("version {version}"),
        };
        say(&format!("# {gateway}: {state} at {}", when(seen_us)))?;
    }
    Ok(())
}

async fn history(as_json: bool, asker: &Asker, tenancy: Tenancy) -> Result<(), Failure> {
    let store = tenancy.store.open().await?;
    asker.reads_steering(&*store, &tenancy.tenant).await?;
    let scope = Scope::Tenant(tenancy.tenant);
    let history = store.stored_history(&scope, STEERING, SUBJECT, DOCUMENTS_MAX);
    let history = history.await.map_err(Failure::other)?;
    if as_json {
        let shown = history.iter().map(decisions::version_json);
        return process::json(&shown.collect::<Vec<_>>());
    }
    for stored in history {
        let line = match stored.document {
            Ok(document) => {
                let what = match document.body.as_str() {
                    "" => "taken back".to_owned(),
                    body => match Document::from_json(body, STEERING) {
                        Ok(document) => format!("{} rules", document.rules.len()),
                        Err(error) => error.to_string(),
                    },
                };
                let (at, author) = (when(document.at_us), document.author);
                let reason = document.reason;
                format!("{}  {at}  {author}  {what}  {reason}", stored.version)
            }
            Err(error) => format!("{}  cannot be read: {error}", stored.version),
        };
        say(&line)?;
    }
    Ok(())
}

impl ExplainCommand {
    fn run(self) -> Result<(), Failure> {
        let described = Described {
            destination: &self.destination,
            application: &self.application,
            urgency: &self.urgency,
            protocol: &self.protocol,
            group: self.group.as_deref().unwrap_or_default(),
        };
        let flow = described
            .flow()
            .map_err(|error| Failure::other(format!("--{error}")))?;
        if let Some(gateway) = &self.gateway {
            return process::block_on(self.of_gateway(gateway, &flow))?;
        }
        let document = match &self.file {
            Some(file) => read(file)?,
            None => {
                let asker = Asker::of(self.by.clone());
                let newest = process::block_on(newest(&asker, &self.tenancy))??;
                match newest.filter(|newest| !newest.body.is_empty()) {
                    Some(newest) => {
                        Document::from_json(&newest.body, STEERING).map_err(Failure::other)?
                    }
                    None => Document::default(),
                }
            }
        };
        let mut states = Vec::new();
        let mut measurements = Measurements::new();
        for text in &self.accesses {
            let (name, measurement) = access(text)?;
            states.push(AccessState::usable(name.clone()));
            measurements.insert(name, measurement);
        }
        let decision = decide(&document, &flow, &states, &measurements);
        if self.json {
            return process::json(&decision);
        }
        let text = decision.explained(&document);
        process::print(&format!("{}\n", text.trim_end()))
    }

    /// By what the gateway reported last.
    async fn of_gateway(&self, gateway: &str, flow: &Flow) -> Result<(), Failure> {
        let asker = Asker::of(self.by.clone());
        let (store, tenant) = (self.tenancy.store.open().await?, &self.tenancy.tenant);
        asker.reads_steering(&*store, tenant).await?;
        let own = self.file.as_deref().map(read).transpose()?;
        let own = own.map(|document| document.for_gateway(gateway));
        let explained = explain(&*store, tenant, (gateway, own), flow, contracts::now_us()).await;
        let explained = explained.map_err(Failure::other)?;
        match self.json {
            true => process::json(&explained.decision),
            false => process::print(&format!("{}\n", explained.text.trim_end())),
        }
    }
}

/// `NAME[:RTT[:LOSS[:GB[:GB[:GB]]]]]`
fn access(text: &str) -> Result<(String, Measurement), Failure> {
    let mut parts = text.split(':');
    let name = parts.next().unwrap_or_default().to_owned();
    let mut number = |what: &str, max: f64| match parts.next() {
        None | Some("") => Ok(None),
        Some(part) => match part.parse::<f64>() {
            Ok(value) if (0.0..=max).contains(&value) => Ok(Some(value)),
            _ => Err(Failure::other(format!(
                "--access: {what} {part:?} is not within 0 to {max}; for example: lte:45:0.01:4.9"
            ))),
        },
    };
    let rtt_ms = number("round trip", 60_000.0)?;
    let loss = number("loss", 1.0)?;
    let month_gb = number("month's GB", 1e6)?;
    let week_gb = number("week's GB", 1e6)?;
    let day_gb = number("day's GB", 1e6)?;
    if name.is_empty() || parts.next().is_some() {
        let reason = format!("--access: {text:?} is no access; for example: lte:45:0.01:4.9");
        return Err(Failure::other(reason));
    }
    let measurement = Measurement {
        rtt: rtt_ms.map(|ms| Duration::from_secs_f64(ms / 1e3)),
        loss,
        rate_bytes_per_s: None,
        used: Used {
            day_bytes: (day_gb.unwrap_or(0.0) * 1e9) as u64,
            week_bytes: (week_gb.unwrap_or(0.0) * 1e9) as u64,
            month_bytes: (month_gb.unwrap_or(0.0) * 1e9) as u64,
        },
    };
    Ok((name, measurement))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tunnel::steering_rules::Urgency;

    use super::*;

    const DOCUMENT: &str = r#"
format = 1
[[access]]
name = "lte"
kind = "cellular"
cap_gb = 5
reset_day = 15
time_zone = "Europe/Zurich"
[[rule]]
name = "updates"
match = { destination = ["*.example.org"] }
mode = "priority"
accesses = ["wifi", "cellular"]
"#;

    #[test]
    fn an_explanation_names_rule_order_rejections_and_what_is_left_of_the_cap() {
        let document = Document::from_toml(DOCUMENT, "test").unwrap();
        let flow = Flow::new("applications", Urgency::Bulk).to("deb.example.org:443");
        let mut states = Vec::new();
        let mut measurements = Measurements::new();
        for text in ["wifi:20", "lte:45:0.01:4.9", "sat0"] {
            let (name, measurement) = access(text).unwrap();
            states.push(AccessState::usable(name.clone()));
            measurements.insert(name, measurement);
        }
        let decision = decide(&document, &flow, &states, &measurements);
        assert_eq!(
            decision.explained(&document),
            "rule \"updates\": mode priority\n  1. wifi: active, 100 %\n  2. lte: spill, 0 %\n  \
             wifi (wifi): chosen, allowed\n  \
             lte (cellular): chosen, allowed; 0.100 GB of the cap are left until day 15 (Europe/Zurich)\n  \
             sat0 (satellite): rejected, the rule does not list it\n"
        );
    }

    #[test]
    fn an_access_is_read_or_refused() {
        assert_eq!(access("wifi").unwrap().0, "wifi");
        assert_eq!(
            access("lte:45::2").unwrap().1.used.month_bytes,
            2_000_000_000
        );
        let used = access("lte:45::2:1:0.5").unwrap().1.used;
        assert_eq!(
            (used.week_bytes, used.day_bytes),
            (1_000_000_000, 500_000_000)
        );
        for text in ["", ":1", "lte:x", "lte:1:2", "lte:1:0:1:1:1:1", "lte:-1"] {
            assert!(access(text).is_err(), "{text}");
        }
    }
}
