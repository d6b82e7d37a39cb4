//! The mail server by which the dashboard notifies people when alerting cannot.

use std::path::PathBuf;

use mail::{Mailer, Settings};
use service_kit::{ConfigError, Secret};

/// Use the settings of alerting. The dashboard sends no alerts by them.
#[derive(Clone, Debug, Default, clap::Args, serde::Serialize)]
pub struct MailConfig {
    /// Mail server: smtps:// (TLS), smtp:// (STARTTLS, required) or smtp-plain:// (this machine
    /// only). By it people are told when alerts stop coming through, and of certificates that end.
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
    /// Administrators who are told beside the people of each tenant's team.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub email_to: Vec<String>,
}

impl MailConfig {
    /// `None`: no server is configured.
    pub(crate) fn mailer(&self) -> Result<Option<Mailer>, ConfigError> {
        Mailer::new(&Settings {
            url: self.smtp.as_deref(),
            user: self.smtp_user.as_deref(),
            password: self.smtp_password.as_ref(),
            ca: self.smtp_ca.as_deref(),
            from: self.email_from.as_deref(),
            to: &self.email_to,
        })
    }

    /// Compose passes an unset variable as an empty string, which means none.
    pub(crate) fn administrators(&self) -> Vec<String> {
        let addresses = self.email_to.iter();
        addresses.filter(|it| !it.is_empty()).cloned().collect()
    }
}
