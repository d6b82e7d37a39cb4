//! Sends e-mail by SMTP: TLS from the start (`smtps`), STARTTLS required (`smtp`), or unencrypted
//! to this machine only (`smtp-plain`). One attempt is one connection.

use std::{path::Path, time::Duration};

use lettre::{
    AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor,
    message::{Mailbox, header::ContentType},
    transport::smtp::{
        authentication::Credentials,
        client::{Certificate, CertificateStore, Tls, TlsParameters},
    },
};
use service_kit::{
    ConfigError, Secret,
    config::parse_address,
    https::{bare_host, certificates, is_loopback},
};
use sha2::{Digest, Sha256};

/// One attempt, from connecting to the server's last answer.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// The flags of a service about its mail server.
pub struct Settings<'a> {
    /// `None`: no server is configured.
    pub url: Option<&'a str>,
    pub user: Option<&'a str>,
    pub password: Option<&'a Secret>,
    pub ca: Option<&'a Path>,
    pub from: Option<&'a str>,
    pub to: &'a [String],
}

impl Settings<'_> {
    /// Compose passes an unset variable as an empty string, which means none.
    fn without_empty(&self) -> Settings<'_> {
        Settings {
            url: self.url.filter(|it| !it.is_empty()),
            user: self.user.filter(|it| !it.is_empty()),
            password: self.password.filter(|it| !it.expose().is_empty()),
            ca: self.ca.filter(|it| !it.as_os_str().is_empty()),
            from: self.from.filter(|it| !it.is_empty()),
            to: self.to,
        }
    }
}

pub struct Mailer {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
}

/// One letter to one person.
#[derive(Clone, Debug)]
pub struct Letter<'a> {
    pub to: &'a str,
    pub subject: String,
    pub text: String,
    /// Same for every attempt, so that a mail system can recognise a repetition.
    pub key: &'a str,
}

/// Why a letter was not sent.
#[derive(Debug)]
pub struct Unsent {
    pub reason: String,
    /// Whether a later attempt may succeed.
    pub is_retryable: bool,
    /// Whether the server refused this letter, and may take another one.
    pub is_of_letter: bool,
}

pub fn is_address(text: &str) -> bool {
    text.parse::<lettre::Address>().is_ok()
}

impl Mailer {
    /// `None`: no server is configured.
    pub fn new(settings: &Settings<'_>) -> Result<Option<Mailer>, ConfigError> {
        let settings = settings.without_empty();
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
        for address in settings.to.iter().filter(|it| !it.is_empty()) {
            if !is_address(address) {
                return Err(ConfigError::new(
                    "email_to",
                    format!("{address:?} is not an address"),
                    "--email-to ward@example.org",
                ));
            }
        }
        Ok(Some(Mailer {
            transport: builder.build(),
            from,
        }))
    }

    pub async fn send(&self, letter: &Letter<'_>) -> Result<(), Unsent> {
        let message = self.message(letter).map_err(|reason| Unsent {
            reason,
            is_retryable: false,
            is_of_letter: true,
        })?;
        match tokio::time::timeout(CALL_LIMIT, self.transport.send(message)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                // Refused credentials are for an operator to fix. Any other permanent error
                // concerns this letter.
                let is_of_letter = error.is_permanent()
                    && !error.status().is_some_and(|code| {
                        ["530", "534", "535", "538"].contains(&code.to_string().as_str())
                    });
                Err(Unsent {
                    is_retryable: !is_of_letter,
                    is_of_letter: is_of_letter || error.is_transient(),
                    reason: error.to_string(),
                })
            }
            Err(_) => Err(Unsent {
                reason: format!("no answer within {} s", CALL_LIMIT.as_secs()),
                is_retryable: true,
                is_of_letter: false,
            }),
        }
    }

    fn message(&self, letter: &Letter<'_>) -> Result<Message, String> {
        let to: lettre::Address = letter
            .to
            .parse()
            .map_err(|_| format!("{:?} is not an address", letter.to))?;
        let hash = Sha256::digest(letter.key.as_bytes());
        let id: String = hash
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to))
            .subject(&letter.subject)
            .message_id(Some(format!("<{id}@{}>", self.from.email.domain())))
            .header(ContentType::TEXT_PLAIN)
            .body(letter.text.clone())
            .map_err(|error| error.to_string())
    }
}
