//! Configuration of the notification channels.

use std::path::PathBuf;

use calendar::Zone;
use mail::Mailer;
use service_kit::{ConfigError, Secret, config::parse_address};
use sha2::{Digest, Sha256};

use super::{
    channel::Channel,
    email::Email,
    mqtt::{self, Mqtt},
    webhook::Webhook,
};
use crate::{
    proof::Pace,
    routing::{Channels, EMAIL, MQTT, WEBHOOK},
};

/// A shorter interval would fill letter boxes. A longer one would prove nothing about today.
const PROVE_EVERY_S: (u64, u64) = (60, 30 * 86_400);
/// Longest grouping window. A longer one would delay bad news too much.
const GROUP_S_MAX: u64 = 300;

#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct Options {
    /// Each alert is POSTed here as JSON; https needs a webhook_ca.
    #[arg(long, value_name = "URL")]
    pub webhook: Option<Secret>,
    /// Sent with each webhook call as `Authorization: Bearer`.
    #[arg(long, value_name = "TOKEN")]
    pub webhook_token: Option<Secret>,
    /// Certificate authorities trusted for an https webhook (PEM).
    #[arg(long, value_name = "FILE")]
    pub webhook_ca: Option<PathBuf>,
    /// Signs each webhook call as `braid-signature: t=SECONDS,v1=HEX`: HMAC-SHA256 over
    /// `SECONDS.BODY`.
    #[arg(long, value_name = "SECRET")]
    pub webhook_secret: Option<Secret>,
    /// Second signing secret while the receiver changes to it.
    #[arg(long, value_name = "SECRET")]
    pub webhook_secret_next: Option<Secret>,
    /// Mail server: smtps:// (TLS), smtp:// (STARTTLS, required) or smtp-plain:// (this machine
    /// only).
    #[arg(long, value_name = "URL")]
    pub smtp: Option<String>,
    /// User name at the mail server; none: no sign-in.
    #[arg(long, value_name = "NAME")]
    pub smtp_user: Option<String>,
    /// Password of that user.
    #[arg(long, value_name = "PASSWORD")]
    pub smtp_password: Option<Secret>,
    /// Certificate authorities trusted for the mail server (PEM); default: those of the system.
    #[arg(long, value_name = "FILE")]
    pub smtp_ca: Option<PathBuf>,
    /// Sender of e-mails.
    #[arg(long, value_name = "ADDRESS")]
    pub email_from: Option<String>,
    /// Recipients of alerts of a tenant without a team, and where no step reaches a person.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub email_to: Vec<String>,
    /// MQTT broker: mqtts:// (needs an mqtt_ca) or mqtt:// (this machine only).
    #[arg(long, value_name = "URL")]
    pub mqtt: Option<String>,
    /// User name at the broker; none: no sign-in.
    #[arg(long, value_name = "NAME")]
    pub mqtt_user: Option<String>,
    /// Password of that user.
    #[arg(long, value_name = "PASSWORD")]
    pub mqtt_password: Option<Secret>,
    /// Certificate authorities trusted for the broker (PEM).
    #[arg(long, value_name = "FILE")]
    pub mqtt_ca: Option<PathBuf>,
    /// Alerts go to the topic PREFIX/TENANT/PATIENT/PRIORITY.
    #[arg(long, value_name = "PREFIX", default_value = "braid/alerts")]
    pub mqtt_prefix: String,
    /// When a channel fails for longer, the next step of the escalation follows at once. The
    /// notices stay queued until the channel works again.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    pub give_up_s: u64,
    /// Interval of heartbeats to the webhook and to the broker, which their receivers confirm.
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400)]
    pub prove_every_s: u64,
    /// Interval of heartbeats to each address of e-mail, which people confirm by a link.
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400)]
    pub prove_people_every_s: u64,
    /// Address at which people open the page; messages link to the alert there. Without it they
    /// carry no link.
    #[arg(long, value_name = "URL")]
    pub public_url: Option<String>,
    /// IANA time zone of the times in messages about tenants whose team names none.
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub time_zone: String,
    /// E-mails about one patient within this time go as one, unless one is more urgent; 0: one by
    /// one.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub group_s: u64,
}

fn hash(settings: &[Option<String>]) -> String {
    let mut hash = Sha256::new();
    for setting in settings {
        let text = setting.as_deref().unwrap_or_default();
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    let hash = hash.finalize();
    hash.iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

impl Options {
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.build().map(drop)
    }

    /// Compose passes an unset variable as an empty string, which means none.
    pub(super) fn public_url(&self) -> Option<&str> {
        self.public_url.as_deref().filter(|url| !url.is_empty())
    }

    /// How channels are proven. The settings of a channel are named by a short hash, which changes
    /// with them and from which nobody reads them.
    pub(super) fn pace(&self) -> Pace {
        let secret = |it: &Option<Secret>| it.as_ref().map(|it| it.expose().to_owned());
        let webhook = [
            secret(&self.webhook),
            secret(&self.webhook_token),
            secret(&self.webhook_secret),
            secret(&self.webhook_secret_next),
        ];
        let email = [
            self.smtp.clone(),
            self.smtp_user.clone(),
            secret(&self.smtp_password),
            self.email_from.clone(),
        ];
        let mqtt = [
            self.mqtt.clone(),
            self.mqtt_user.clone(),
            secret(&self.mqtt_password),
            Some(self.mqtt_prefix.clone()),
        ];
        let settings = [(WEBHOOK, webhook), (EMAIL, email), (MQTT, mqtt)];
        let us = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX / 4) * 1_000_000;
        Pace {
            every_us: us(self.prove_every_s),
            people_every_us: us(self.prove_people_every_s),
            settings: settings.map(|(channel, of)| (channel, hash(&of))).into(),
        }
    }

    fn validate_intervals(&self) -> Result<(), ConfigError> {
        let (least, most) = PROVE_EVERY_S;
        for (field, seconds, example) in [
            ("prove_every_s", self.prove_every_s, "--prove-every-s 86400"),
            (
                "prove_people_every_s",
                self.prove_people_every_s,
                "--prove-people-every-s 86400",
            ),
        ] {
            if !(least..=most).contains(&seconds) {
                let reason = format!("{seconds} is not from {least} to {most}");
                return Err(ConfigError::new(field, reason, example));
            }
        }
        Ok(())
    }

    pub(super) fn build(&self) -> Result<(Channels, Vec<Channel>), ConfigError> {
        self.validate_intervals()?;
        if self.group_s > GROUP_S_MAX {
            return Err(ConfigError::new(
                "group_s",
                format!("{} is above {GROUP_S_MAX}", self.group_s),
                "--group-s 10",
            ));
        }
        if let Some(url) = self.public_url() {
            let example = "--public-url https://braid.example.org";
            let refused = |reason: String| ConfigError::new("public_url", reason, example);
            let uri = parse_address(url, &["http", "https"]).map_err(refused)?;
            if uri.query().is_some() || url.contains('#') {
                return Err(refused("has a query or a fragment".to_owned()));
            }
        }
        let zone = Zone::parse(&self.time_zone).ok_or_else(|| {
            ConfigError::new(
                "time_zone",
                format!("{:?} is not an IANA time zone", self.time_zone),
                "--time-zone Europe/Berlin",
            )
        })?;
        let mut senders = Vec::new();
        if let Some(url) = &self.webhook {
            let secrets = [
                self.webhook_secret.as_ref(),
                self.webhook_secret_next.as_ref(),
            ];
            let token = self.webhook_token.as_ref();
            senders.push(Channel::Webhook(Webhook::new(
                url,
                token,
                self.webhook_ca.as_deref(),
                secrets,
            )?));
        }
        let mailer = Mailer::new(&mail::Settings {
            url: self.smtp.as_deref(),
            user: self.smtp_user.as_deref(),
            password: self.smtp_password.as_ref(),
            ca: self.smtp_ca.as_deref(),
            from: self.email_from.as_deref(),
            to: &self.email_to,
        })?;
        let has_email = mailer.is_some();
        senders.extend(mailer.map(Email::new).map(Channel::Email));
        if let Some(url) = &self.mqtt {
            let settings = mqtt::Settings {
                url,
                user: self.mqtt_user.as_deref(),
                password: self.mqtt_password.as_ref(),
                ca: self.mqtt_ca.as_deref(),
                prefix: &self.mqtt_prefix,
            };
            senders.push(Channel::Mqtt(Box::new(Mqtt::new(&settings)?)));
        }
        let channels = Channels {
            webhook: self.webhook.is_some(),
            mqtt: self.mqtt.is_some(),
            email: has_email,
            email_to: self
                .email_to
                .iter()
                .filter(|it| !it.is_empty())
                .cloned()
                .collect(),
            zone,
            group_us: i64::try_from(self.group_s).unwrap_or(0) * 1_000_000,
        };
        Ok((channels, senders))
    }
}
