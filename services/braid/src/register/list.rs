//! Lists the register.

use serde_json::json;
use store::{ASSIGNMENTS_LISTED_MAX, Assignment, Of, Scope, Store};

use super::enter::worn;
use crate::moment::{Moment, shown};
use crate::process::{self, Failure, say};

#[derive(Debug, Default, clap::Args)]
pub struct Filter {
    /// Only this sensor.
    #[arg(long, value_name = "ID", conflicts_with_all = ["gateway", "patient"])]
    device: Option<String>,
    /// Only at this gateway.
    #[arg(long, value_name = "ID", conflicts_with = "patient")]
    gateway: Option<String>,
    /// Only this patient.
    #[arg(long, value_name = "ID")]
    patient: Option<String>,
}

impl Filter {
    /// The patient whose data is asked for; empty: several patients.
    pub fn patient(&self) -> &str {
        self.patient.as_deref().unwrap_or_default()
    }

    fn of(&self) -> Of<'_> {
        match (&self.device, &self.gateway, &self.patient) {
            (Some(device), ..) => Of::Device(device),
            (_, Some(gateway), _) => Of::Gateway(gateway),
            (.., Some(patient)) => Of::Patient(patient),
            _ => Of::Everything,
        }
    }
}

pub async fn run(
    store: &dyn Store,
    scope: &Scope,
    filter: &Filter,
    json: bool,
) -> Result<(), Failure> {
    let found = store.assignments(scope, filter.of()).await;
    let found = found.map_err(Failure::other)?;
    if json {
        let listed: Vec<_> = found.iter().map(as_json).collect();
        return process::json(&listed);
    }
    for it in &found {
        say(&line(it))?;
    }
    let mut text = format!("{} assignments", found.len());
    if found.len() >= ASSIGNMENTS_LISTED_MAX {
        text += ", the newest; name a device, a gateway or a patient for others";
    }
    say(&text)
}

/// The beginning, shown as a time.
pub async fn begun_at(
    store: &dyn Store,
    scope: &Scope,
    device: &str,
    from: Moment,
) -> Result<i64, Failure> {
    let worn = worn(store, scope, device).await?;
    let mut begun = worn.iter().map(|it| it.from_us);
    let found = begun.find(|from_us| shown(*from_us) == shown(from.0));
    found.ok_or_else(|| {
        Failure::other(format!(
            "{device} has no assignment from {}; `braid register list --device {device}` shows them",
            shown(from.0)
        ))
    })
}

fn line(it: &Assignment) -> String {
    format!(
        "{}  {}  at {}  from {} until {}  by {}: {}",
        it.device,
        it.patient,
        it.gateway,
        shown(it.from_us),
        shown(it.until_us),
        it.entered.author,
        it.entered.reason
    )
}

/// Null: the beginning is unknown, or the assignment is open.
fn as_json(it: &Assignment) -> serde_json::Value {
    let end = |us: i64| (us != i64::MIN && us != i64::MAX).then(|| shown(us));
    json!({
        "device": it.device,
        "patient": it.patient,
        "gateway": it.gateway,
        "from": end(it.from_us),
        "until": end(it.until_us),
        "by": it.entered.author,
        "reason": it.entered.reason,
        "entered": shown(it.entered.at_us),
    })
}
