use std::time::Duration;

use tokio_postgres::{Config, config::Host, config::SslMode};

use super::OpenError;

const DAY: u64 = 24 * 3600;
/// Connections of one process that write; a write beyond waits for one. Each has one transaction,
/// so this is also how many partitions' batches are under way at once.
const WRITERS_MAX: usize = 6;
/// Connections of one process that ask; separate, so that charts never hold up rows.
const READERS_MAX: usize = 6;

/// Where the server is and how it is used.
#[derive(Clone)]
pub struct TimescaleOptions {
    /// `postgres://USER@HOST:PORT/DATABASE`, without a password.
    pub url: String,
    /// Empty: the server asks for none.
    pub password: String,
    /// Certificates in PEM of the authorities that may vouch for the server. Needed unless the
    /// server is on this machine or the URL says `sslmode=disable`.
    pub tls_roots: Option<Vec<u8>>,
    /// False: an old schema is an error instead of being brought up to date.
    pub migrate: bool,
    pub writers_max: usize,
    pub readers_max: usize,
    /// A statement of a service is given up after this long.
    pub statement_limit: Duration,
    pub ages: Ages,
}

/// How long each kind is kept; `Duration::MAX`: for ever.
#[derive(Clone, Debug)]
pub struct Ages {
    pub vitals: Duration,
    pub waveforms: Duration,
    pub minutes: Duration,
    pub hours: Duration,
    pub paths: Duration,
    pub alerts: Duration,
    pub audit: Duration,
}

impl Default for Ages {
    /// Vitals 90 days, waveforms 3, their minutes a year, their hours 5 years, paths 14 days,
    /// alerts and audit 3 years.
    fn default() -> Ages {
        let days = |days| Duration::from_secs(days * DAY);
        Ages {
            vitals: days(90),
            waveforms: days(3),
            minutes: days(365),
            hours: days(5 * 365),
            paths: days(14),
            alerts: days(3 * 365),
            audit: days(3 * 365),
        }
    }
}

impl TimescaleOptions {
    pub fn new(url: impl Into<String>, password: impl Into<String>) -> TimescaleOptions {
        TimescaleOptions {
            url: url.into(),
            password: password.into(),
            tls_roots: None,
            migrate: true,
            writers_max: WRITERS_MAX,
            readers_max: READERS_MAX,
            statement_limit: Duration::from_secs(30),
            ages: Ages::default(),
        }
    }

    /// The configuration for tokio-postgres, and `HOST:PORT` for messages.
    pub(super) fn config(&self) -> Result<(Config, String), OpenError> {
        let mut config: Config = self
            .url
            .parse()
            .map_err(|e: tokio_postgres::Error| OpenError::Url(super::fault::explain(&e)))?;
        if config.get_password().is_some() {
            return Err(OpenError::Url(
                "holds a password, which would show in logs: give it apart".to_owned(),
            ));
        }
        let address = address(&config)?;
        if config.get_user().is_none() || config.get_dbname().is_none() {
            return Err(OpenError::Url("names no user or no database".to_owned()));
        }
        if !self.password.is_empty() {
            config.password(&self.password);
        }
        // tokio-postgres would fall back to plain text; here either the URL says so or the server
        // is on this machine.
        if config.get_ssl_mode() == SslMode::Prefer {
            let local = config.get_hosts().iter().all(is_local);
            config.ssl_mode(if local && self.tls_roots.is_none() {
                SslMode::Disable
            } else {
                SslMode::Require
            });
        }
        if config.get_ssl_mode() != SslMode::Disable && self.tls_roots.is_none() {
            return Err(OpenError::Tls {
                address,
                reason: "no authority is given that may vouch for the server".to_owned(),
            });
        }
        let own = config.get_options().unwrap_or_default().to_owned();
        config
            .options(format!(
                "-c statement_timeout={} -c idle_in_transaction_session_timeout=60s -c lock_timeout=10s \
                 -c synchronous_commit=on -c jit=off -c timezone=UTC -c client_min_messages=warning {own}",
                self.statement_limit.as_millis()
            ))
            .application_name("braid")
            .connect_timeout(Duration::from_secs(5))
            // A connection that a firewall forgot or a dead machine held shows within 20 s.
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(3))
            .keepalives_retries(3)
            .tcp_user_timeout(Duration::from_secs(20));
        Ok((config, address))
    }
}

fn address(config: &Config) -> Result<String, OpenError> {
    let port = config.get_ports().first().copied().unwrap_or(5432);
    match config.get_hosts().first() {
        Some(Host::Tcp(host)) => Ok(format!("{host}:{port}")),
        Some(Host::Unix(path)) => Ok(format!("{}:{port}", path.display())),
        None => Err(OpenError::Url("names no host".to_owned())),
    }
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost"
                || name
                    .parse::<std::net::IpAddr>()
                    .is_ok_and(|ip| ip.is_loopback())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        match TimescaleOptions::new(url, "secret").config() {
            Ok((config, _)) => panic!("{url} was taken: {config:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn an_url_that_cannot_be_right_is_refused_without_showing_a_password() {
        assert!(refused("postgres://u:hunter2@h/d").contains("password"));
        assert!(!refused("postgres://u:hunter2@h/d").contains("hunter2"));
        assert!(refused("postgres://h/d").contains("user"));
        assert!(refused("postgres://u@127.0.0.1").contains("database"));
        assert!(refused("postgres://u@h/d?sslmode=what").contains("sslmode"));
    }

    #[test]
    fn nothing_leaves_this_machine_in_the_clear_unless_the_url_says_so() {
        assert!(refused("postgres://u@db.example/d").contains("vouch"));
        let mode = |url: &str, roots: Option<Vec<u8>>| {
            let options = TimescaleOptions {
                tls_roots: roots,
                ..TimescaleOptions::new(url, "")
            };
            options
                .config()
                .map(|(config, _)| config.get_ssl_mode())
                .ok()
        };
        assert_eq!(
            mode("postgres://u@localhost/d", None),
            Some(SslMode::Disable)
        );
        assert_eq!(
            mode("postgres://u@127.0.0.1/d", None),
            Some(SslMode::Disable)
        );
        assert_eq!(
            mode("postgres://u@127.0.0.1/d", Some(Vec::new())),
            Some(SslMode::Require)
        );
        assert_eq!(
            mode("postgres://u@h/d?sslmode=disable", None),
            Some(SslMode::Disable)
        );
        assert_eq!(
            mode("postgres://u@h/d", Some(Vec::new())),
            Some(SslMode::Require)
        );
    }
}
