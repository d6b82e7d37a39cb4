//! Alarms in the building: a command and a webhook for a lamp, a buzzer or a siren. They need no
//! network beyond the building.
//!
//! A channel is called when an alert is raised, acknowledged and over, in this order, and one call
//! at a time. A failed call is tried again while the alert is open. After a restart there is a call
//! for each alert that is still open, because the lamp may have restarted as well.

mod command;
mod due;
mod webhook;

use std::{path::Path, sync::Arc, time::Instant};

use contracts::vitals::LocalAlert;
use serde_json::json;
use service_kit::{ConfigError, Secret, Shutdown, Warning, WarningHandle};
use tokio::{task::JoinSet, time::sleep_until};

use self::{
    command::Command,
    due::{Due, Stage, Told},
    webhook::Webhook,
};
use crate::{clock::Moment, from_carers::shown, open_alerts::OpenAlerts};

/// Calls of one channel at once, each for another alert. Further alerts wait for one to end.
const CALLS_MAX: usize = 8;

pub enum Channel {
    Command(Arc<Command>),
    Webhook(Arc<Webhook>),
}

/// The configured channels.
pub fn channels(
    command: Option<&Path>,
    webhook: Option<&Secret>,
    ca: Option<&Path>,
) -> Result<Vec<Channel>, ConfigError> {
    let command = command.filter(|it| !it.as_os_str().is_empty());
    let command = command.map(Command::new).transpose()?;
    let webhook = webhook.filter(|it| !it.expose().is_empty());
    let webhook = webhook.map(|url| Webhook::new(url, ca)).transpose()?;
    let command = command.map(|it| Channel::Command(Arc::new(it)));
    let webhook = webhook.map(|it| Channel::Webhook(Arc::new(it)));
    Ok(command.into_iter().chain(webhook).collect())
}

impl Channel {
    fn name(&self) -> &'static str {
        match self {
            Channel::Command(_) => "command",
            Channel::Webhook(_) => "webhook",
        }
    }

    pub fn warning(&self) -> &'static str {
        match self {
            Channel::Command(_) => "alarm-command",
            Channel::Webhook(_) => "alarm-webhook",
        }
    }

    async fn call(&self, body: Vec<u8>) -> Result<(), String> {
        match self {
            Channel::Command(command) => command.run(body).await,
            Channel::Webhook(webhook) => webhook.call(body).await,
        }
    }
}

/// Calls the channel for every open alert until shutdown.
pub async fn run(channel: Channel, alerts: OpenAlerts, warning: WarningHandle, shutdown: Shutdown) {
    let channel = Arc::new(channel);
    let mut changes = alerts.changes();
    let mut due = Due::default();
    let mut calls = JoinSet::new();
    loop {
        due.on_list(alerts.list(Moment::now()));
        while calls.len() < CALLS_MAX
            && let Some((alert, stage)) = due.next(Instant::now())
        {
            let (channel, body) = (Arc::clone(&channel), body(&alert, stage));
            let told = Told {
                id: alert.id,
                stage,
            };
            calls.spawn(async move { (told, channel.call(body).await) });
        }
        let again_at = due.again_at().filter(|_| calls.len() < CALLS_MAX);
        let again_at = again_at.map(tokio::time::Instant::from_std);
        tokio::select! {
            // A call under way is ended.
            () = shutdown.requested() => return,
            changed = changes.changed() => if changed.is_err() {
                return;
            },
            Some(ended) = calls.join_next(), if !calls.is_empty() => {
                let Ok((told, outcome)) = ended else {
                    continue;
                };
                count(channel.name(), outcome.is_ok());
                warning.set(outcome.as_ref().err().map(|reason| warning_of(&channel, reason)));
                due.on_outcome(&told, outcome.is_ok(), Instant::now());
            }
            () = sleep_until(again_at.unwrap_or_else(tokio::time::Instant::now)),
                if again_at.is_some() => {}
        }
    }
}

fn body(alert: &LocalAlert, stage: Stage) -> Vec<u8> {
    let mut body = json!({ "event": stage.name(), "alert": shown::alert(alert) }).to_string();
    body.push('\n');
    body.into_bytes()
}

fn count(channel: &'static str, is_ok: bool) {
    let outcome = if is_ok { "ok" } else { "failed" };
    metrics::counter!(
        "braid_gateway_local_alarms_total",
        "channel" => channel,
        "outcome" => outcome
    )
    .increment(1);
}

fn warning_of(channel: &Channel, reason: &str) -> Warning {
    let name = channel.name();
    tracing::warn!(
        channel = name,
        reason,
        "an alert did not reach the alarm here"
    );
    Warning {
        says: format!("the alarm in the building ({name}) does not take alerts: {reason}"),
        to_do: format!("mend what --alarm-{name} names; it is tried again while an alert is open"),
    }
}
