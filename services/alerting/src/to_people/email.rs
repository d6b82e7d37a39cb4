//! E-mail by SMTP: TLS from the start (`smtps`), STARTTLS required (`smtp`), or unencrypted to this
//! machine only (`smtp-plain`). One attempt is one connection.

use std::{path::Path, time::Duration};

use lettre::{
    AsyncSmtpTransport, AsyncTransport, Message as Letter, Tokio1Executor,
    message::{Mailbox, header::ContentType},
    transport::smtp::{
        authentication::Credentials,
        client::{Certificate, CertificateStore, Tls, TlsParameters},
    },
};
use service_kit::{ConfigError, Secret, config::parse_address};
use sha2::{Digest, Sha256};

use super::{
    message::{Message, Undelivered},
    tls::{bare_host, certificates, is_loopback},
};

/// One attempt, from connecting to the server's last answer.
const CALL_LIMIT: Duration = Duration::from_secs(10);

pub(super) struct Email {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
}

pub(super) struct Settings<'a> {
    /// `None`: no server is configured.
    pub url: Option<&'a str>,
    pub user: Option<&'a str>,
    pub password: Option<&'a Secret>,
    pub ca: Option<&'a Path>,
    pub from: Option<&'a str>,
    pub to: &'a [String],
}

impl Email {
    /// `None`: no server is configured.
    pub(super) fn new(settings: &Settings<'_>) -> Result<Option<Email>, ConfigError> {
        let Some(url) = settings.url else {
            return Ok(None);
        };
        let refused =
            |reason: &str| ConfigError::new("smtp", reason, "--smtp smtp://mail.example.org:587");
        let uri = parse_address(url, &["smtp", "smtps", "smtp-plain"])
            .map_err(|reason| refused(&reason))?;
        let host = bare_host(uri.host().ok_or_else(|| refused("has no host"))?);
        let parameters = || -> Result<TlsParameters, ConfigError> {
            let mut builder = TlsParameters::builder(host.clone());
            if let Some(ca) = settings.ca {
                builder = builder.certificate_store(CertificateStore::None);
                for certificate in certificates("smtp_ca", ca)? {
                    let certificate = Certificate::from_der(certificate.to_vec())
                        .map_err(|error| refused(&error.to_string()))?;
                    builder = builder.add_root_certificate(certificate);
                }
            }
            builder.build().map_err(|error| refused(&error.to_string()))
        };
        let (default_port, tls) = match uri.scheme_str() {
            Some("smtps") => (465, Tls::Wrapper(parameters()?)),
            Some("smtp") => (587, Tls::Required(parameters()?)),
            Some("smtp-plain") if is_loopback(&host) => (25, Tls::None),
            Some("smtp-plain") => {
                return Err(refused(
                    "would send health data in the clear to another machine",
                ));
            }
            _ => return Err(refused("is not smtp, smtps or smtp-plain")),
        };
        let mut builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(host.clone())
            .port(uri.port_u16().unwrap_or(default_port))
            .tls(tls)
            .timeout(Some(CALL_LIMIT));
        match (settings.user, settings.password) {
            (Some(user), Some(password)) => {
                builder = builder.credentials(Credentials::new(
                    user.to_owned(),
                    password.expose().to_owned(),
                ));
            }
            (None, None) => {}
            _ => {
                return Err(ConfigError::new(
                    "smtp_password",
                    "user and password go together",
                    "--smtp-user braid --smtp-password ...",
                ));
            }
        }
        let from = settings.from.and_then(|from| from.parse().ok());
        let from = from.ok_or_else(|| {
            ConfigError::new(
                "email_from",
                "is missing or no address",
                "--email-from \"Braid <braid@example.org>\"",
            )
        })?;
        for address in settings.to {
            if address.parse::<lettre::Address>().is_err() {
                return Err(ConfigError::new(
                    "email_to",
                    format!("{address:?} is not an address"),
                    "--email-to ward@example.org",
                ));
            }
        }
        Ok(Some(Email {
            transport: builder.build(),
            from,
        }))
    }

    pub(super) async fn send(&self, message: &Message<'_>) -> Result<(), Undelivered> {
        let letter = self.letter(message).map_err(|reason| Undelivered {
            reason,
            is_retryable: false,
        })?;
        match tokio::time::timeout(CALL_LIMIT, self.transport.send(letter)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(Undelivered {
                // Refused credentials are for an operator to fix. Any other permanent error
                // concerns this message.
                is_retryable: !error.is_permanent()
                    || error.status().is_some_and(|code| {
                        ["530", "534", "535", "538"].contains(&code.to_string().as_str())
                    }),
                reason: error.to_string(),
            }),
            Err(_) => Err(Undelivered {
                reason: format!("no answer within {} s", CALL_LIMIT.as_secs()),
                is_retryable: true,
            }),
        }
    }

    fn letter(&self, message: &Message<'_>) -> Result<Letter, String> {
        let notice = message.first().ok_or("an empty message")?;
        let to: lettre::Address = notice
            .recipient
            .parse()
            .map_err(|_| format!("{:?} is not an address", notice.recipient))?;
        // Every attempt has the same id, so that a mail system can recognise a repetition.
        let hash = Sha256::digest(notice.id.as_bytes());
        let id: String = hash
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Letter::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to))
            .subject(message.subject())
            .message_id(Some(format!("<{id}@{}>", self.from.email.domain())))
            .header(ContentType::TEXT_PLAIN)
            .body(message.text())
            .map_err(|error| error.to_string())
    }
}
