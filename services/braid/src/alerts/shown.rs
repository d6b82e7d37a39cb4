//! Alerts and their history, as lines or as JSON.

use contracts::alerts::{Alert, AlertCount};
use contracts::vitals::Priority;
use store::{AlertsQuery, OpenAlerts, Scope};

use crate::audit::Asker;
use crate::process::{self, Failure};
use crate::tenancy::Tenancy;

pub async fn list(
    query: AlertsQuery,
    as_json: bool,
    asker: &Asker,
    tenancy: Tenancy,
) -> Result<(), Failure> {
    let store = tenancy.store.open().await?;
    let of = query.patient.as_deref().unwrap_or_default();
    asker
        .reads(&*store, &tenancy.tenant, "read alerts", of, String::new())
        .await?;
    let scope = Scope::Tenant(tenancy.tenant);
    let alerts = store.alerts(&scope, &query).await;
    let alerts = alerts.map_err(Failure::other)?;
    if as_json {
        process::json(&alerts.iter().map(json).collect::<Vec<_>>())?;
    } else {
        for alert in &alerts {
            println!("{}", line(alert));
        }
    }
    let totals = store.open_alerts(&scope, query.patient.as_deref()).await;
    let totals = totals.map_err(Failure::other)?;
    if let Some(more) = more(&OpenAlerts::beside(&totals, &alerts)) {
        // Standard output is the list alone where a program reads it.
        match as_json {
            true => eprintln!("{more}"),
            false => println!("{more}"),
        }
    }
    Ok(())
}

/// The number of open alerts that a list omits; `None` if there are none.
fn more(counts: &[AlertCount]) -> Option<String> {
    let omitted = counts.iter().filter(|count| count.omitted > 0);
    let parts: Vec<String> = omitted
        .map(|count| {
            format!(
                "{} more of {} priority",
                count.omitted,
                name(count.priority())
            )
        })
        .collect();
    (!parts.is_empty()).then(|| format!("{} (a larger --limit lists them)", parts.join(", ")))
}

fn name(priority: Priority) -> String {
    let name = priority.as_str_name().to_lowercase();
    name.trim_start_matches("priority_").to_owned()
}

fn line(alert: &Alert) -> String {
    // An alert about a gateway, or about the core, has no patient.
    let whose = [&alert.patient, &alert.gateway]
        .into_iter()
        .find(|it| !it.is_empty());
    format!(
        "{}  {}  {}  {}  {}  {}",
        process::when(alert.since_us),
        alert.id,
        state(alert),
        name(alert.priority()),
        whose.map_or("-", String::as_str),
        alert.summary
    )
}

/// Null: the alert is of no patient, of no gateway, or acknowledged by nobody.
fn json(alert: &Alert) -> serde_json::Value {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    serde_json::json!({
        "id": alert.id,
        "state": state(alert),
        "priority": name(alert.priority()),
        "patient": given(&alert.patient),
        "gateway": given(&alert.gateway),
        "rule": alert.rule,
        "text": alert.summary,
        "since": process::when(alert.since_us),
        "changed": process::when(alert.changed_us),
        "acknowledged_by": given(&alert.acknowledged_by),
        "note": given(&alert.note),
    })
}

fn state(alert: &Alert) -> String {
    let name = alert.state().as_str_name();
    name.trim_start_matches("ALERT_STATE_").to_lowercase()
}

pub async fn history(id: &str, asker: &Asker, tenancy: Tenancy) -> Result<(), Failure> {
    let store = tenancy.store.open().await?;
    let scope = Scope::Tenant(tenancy.tenant.clone());
    let transitions = store
        .alert_history(&scope, id)
        .await
        .map_err(Failure::other)?;
    if transitions.is_empty() {
        return Err(Failure::other(format!(
            "there is no alert {id:?} in this tenant"
        )));
    }
    let patient = transitions.first().map_or("", |alert| &alert.patient);
    let detail = format!(", history of {id}");
    asker
        .reads(&*store, &tenancy.tenant, "read alerts", patient, detail)
        .await?;
    for alert in transitions {
        println!(
            "{}  {}  {} {}{}",
            process::when(alert.recorded_us),
            alert.revision,
            state(&alert),
            alert.summary,
            if alert.acknowledged_by.is_empty() {
                String::new()
            } else {
                format!(" (by {})", alert.acknowledged_by)
            }
        );
    }
    for record in store.notices(&scope, id).await.map_err(Failure::other)? {
        let Some(notice) = record.notice else {
            continue;
        };
        let outcome = record.outcome.map_or("waits".to_owned(), |outcome| {
            let result = outcome
                .result()
                .as_str_name()
                .trim_start_matches("NOTICE_RESULT_")
                .to_lowercase();
            format!(
                "{result} after {} attempts {}",
                outcome.attempts, outcome.detail
            )
        });
        println!(
            "{}  {}  {} {}: {}",
            process::when(notice.created_us),
            notice
                .reason()
                .as_str_name()
                .trim_start_matches("NOTICE_REASON_")
                .to_lowercase(),
            notice.channel,
            notice.recipient,
            outcome.trim_end()
        );
    }
    Ok(())
}
