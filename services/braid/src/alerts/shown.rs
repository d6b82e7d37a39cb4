//! Alerts, their history and silences, as lines or as JSON.

use alerting::documents::SILENCE;
use alerting::silence::Silence;
use contracts::alerts::{Alert, AlertCount, Document, Notice, NoticeOutcome, NoticeRecord};
use contracts::vitals::Priority;
use serde_json::{Value, json};
use store::{AlertsQuery, OpenAlerts, Scope, StoredDocument};

use crate::audit::Asker;
use crate::process::{self, Failure};
use crate::tenancy::Tenancy;

const HOUR_US: f64 = 3_600e6;

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

fn given(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// Null: the alert is of no patient, of no gateway, or acknowledged by nobody.
fn json(alert: &Alert) -> Value {
    json!({
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

pub async fn history(
    id: &str,
    as_json: bool,
    asker: &Asker,
    tenancy: Tenancy,
) -> Result<(), Failure> {
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
    let notices = store.notices(&scope, id).await.map_err(Failure::other)?;
    if as_json {
        let transitions: Vec<Value> = transitions.iter().map(transition_json).collect();
        let notices: Vec<Value> = notices.iter().filter_map(notice_json).collect();
        return process::json(&json!({"transitions": transitions, "notices": notices}));
    }
    for alert in &transitions {
        let by = match alert.acknowledged_by.as_str() {
            "" => String::new(),
            by => format!(" (by {by})"),
        };
        println!(
            "{}  {}  {} {}{by}",
            process::when(alert.recorded_us),
            alert.revision,
            state(alert),
            alert.summary,
        );
    }
    for record in &notices {
        let Some(notice) = &record.notice else {
            continue;
        };
        let outcome = record.outcome.as_ref().map_or("waits".to_owned(), |it| {
            let result = result(it);
            format!("{result} after {} attempts {}", it.attempts, it.detail)
        });
        println!(
            "{}  {}  {} {}: {}",
            process::when(notice.created_us),
            reason(notice),
            notice.channel,
            notice.recipient,
            outcome.trim_end()
        );
    }
    Ok(())
}

fn reason(notice: &Notice) -> String {
    let name = notice.reason().as_str_name();
    name.trim_start_matches("NOTICE_REASON_").to_lowercase()
}

fn result(outcome: &NoticeOutcome) -> String {
    let name = outcome.result().as_str_name();
    name.trim_start_matches("NOTICE_RESULT_").to_lowercase()
}

fn transition_json(alert: &Alert) -> Value {
    let mut shown = json(alert);
    shown["revision"] = alert.revision.into();
    shown["recorded"] = process::when(alert.recorded_us).into();
    shown
}

/// Without an outcome the notice waits.
fn notice_json(record: &NoticeRecord) -> Option<Value> {
    let notice = record.notice.as_ref()?;
    let outcome = record.outcome.as_ref().map(|it| {
        json!({
            "result": result(it),
            "attempts": it.attempts,
            "detail": given(&it.detail),
        })
    });
    Some(json!({
        "created": process::when(notice.created_us),
        "reason": reason(notice),
        "channel": notice.channel,
        "recipient": given(&notice.recipient),
        "people": notice.people,
        "step": notice.step,
        "outcome": outcome,
    }))
}

pub async fn silences(as_json: bool, asker: &Asker, tenancy: Tenancy) -> Result<(), Failure> {
    let store = tenancy.store.open().await?;
    let now_us = contracts::now_us();
    let (tenant, detail) = (&tenancy.tenant, ", silences".to_owned());
    asker
        .reads(&*store, tenant, "read documents", "", detail)
        .await?;
    let silences = store
        .stored_documents(&Scope::Tenant(tenancy.tenant), SILENCE, now_us)
        .await;
    let silences = silences.map_err(Failure::other)?.into_iter();
    let silences = silences.filter_map(StoredDocument::readable);
    if as_json {
        return process::json(&silences.map(|it| silence_json(&it)).collect::<Vec<_>>());
    }
    for silence in silences {
        println!(
            "{}  {}  for another {:.1} h  by {}: {}",
            silence.subject,
            silence.body,
            (silence.until_us - now_us) as f64 / HOUR_US,
            silence.author,
            silence.reason
        );
    }
    Ok(())
}

/// Null: the silence holds for every patient, or for every rule.
fn silence_json(silence: &Document) -> Value {
    let mut shown = json!({
        "id": silence.subject,
        "since": process::when(silence.at_us),
        "until": process::when(silence.until_us),
        "author": silence.author,
        "reason": silence.reason,
    });
    match Silence::from_json(&silence.body) {
        Ok(of) => {
            shown["patient"] = given(&of.patient).into();
            shown["rule"] = given(&of.rule).into();
        }
        Err(error) => shown["error"] = error.to_string().into(),
    }
    shown
}
