//! From options to a store that works: connect, check the server, bring the schema up to date.

use deadpool_postgres::{Connect, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use futures::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_postgres::{
    Client, Config, NoTls, Socket,
    config::SslMode,
    tls::{MakeTlsConnect, TlsConnect},
};

use super::{
    TimescaleOptions,
    edition::Edition,
    fault, migrate,
    open_error::{EXTENSION_LEAST, OpenError},
    tls::{self, MakeRustls},
};

/// A caller waits this long for a connection of the pool, and for a new one to be made.
const POOL_WAIT: std::time::Duration = std::time::Duration::from_secs(10);

#[derive(Clone)]
pub struct Server {
    config: Config,
    tls: Option<MakeRustls>,
    pub address: String,
}

impl Server {
    pub fn new(options: &TimescaleOptions) -> Result<Server, OpenError> {
        let (config, address) = options.config()?;
        let tls = match (config.get_ssl_mode(), &options.tls_roots) {
            (SslMode::Disable, _) | (_, None) => None,
            (_, Some(roots)) => Some(MakeRustls(tls::client_config(roots).map_err(|reason| {
                OpenError::Tls {
                    address: address.clone(),
                    reason: format!("the file of authorities {reason}"),
                }
            })?)),
        };
        Ok(Server {
            config,
            tls,
            address,
        })
    }

    /// A connection outside of the pools, without a limit on statements; ends when the client is
    /// dropped.
    pub async fn connect(&self) -> Result<Client, OpenError> {
        let refused = |e: tokio_postgres::Error| OpenError::from_server(&self.address, &e);
        let client = match &self.tls {
            None => {
                let (client, connection) = self.config.connect(NoTls).await.map_err(refused)?;
                tokio::spawn(drive(connection));
                client
            }
            Some(tls) => {
                let connected = self.config.connect(tls.clone()).await;
                let (client, connection) = connected.map_err(refused)?;
                tokio::spawn(drive(connection));
                client
            }
        };
        client
            .batch_execute("SET statement_timeout = 0; SET lock_timeout = 0")
            .await
            .map_err(refused)?;
        Ok(client)
    }

    pub fn pool(&self, connections_max: usize) -> Result<Pool, OpenError> {
        let how = ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        };
        let config = self.config.clone();
        let manager = match &self.tls {
            None => Manager::from_connect(config, Connecting(NoTls), how),
            Some(tls) => Manager::from_connect(config, Connecting(tls.clone()), how),
        };
        Pool::builder(manager)
            .max_size(connections_max)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(POOL_WAIT))
            .create_timeout(Some(POOL_WAIT))
            .recycle_timeout(Some(POOL_WAIT))
            .build()
            .map_err(|e| OpenError::Url(e.to_string()))
    }

    /// Checks the extension and brings the schema up to date (or says that it is not). Returns the
    /// version before and after.
    pub async fn prepare(&self, migrate: bool) -> Result<(Edition, migrate::Applied), OpenError> {
        let client = self.connect().await?;
        let failed = |e: tokio_postgres::Error| OpenError::from_server(&self.address, &e);
        extension(&client, &self.address, migrate).await?;
        let license = client
            .query_one("SELECT current_setting('timescaledb.license', true)", &[])
            .await
            .map_err(failed)?;
        let edition = Edition {
            community: license.get::<_, Option<&str>>(0) == Some("timescale"),
        };
        let applied = migrate::run(&client, &self.address, edition, migrate).await?;
        Ok((edition, applied))
    }
}

/// A server as [`Server::examine`] found it.
#[derive(Debug, Clone)]
pub struct Examined {
    pub address: String,
    /// Version of PostgreSQL.
    pub version: String,
    /// Version of the extension.
    pub extension: String,
    pub edition: Edition,
    pub schema: i32,
    /// Its clock less ours, known to half the round trip.
    pub clock_ahead_us: i64,
    pub round_trip: std::time::Duration,
}

impl Server {
    /// The present state; changes nothing.
    pub async fn examine(&self) -> Result<Examined, OpenError> {
        let (edition, applied) = self.prepare(false).await?;
        let client = self.connect().await?;
        let failed = |e: tokio_postgres::Error| OpenError::from_server(&self.address, &e);
        let question = client
            .prepare(
                "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8, current_setting('server_version'),
                        (SELECT extversion FROM pg_extension WHERE extname = 'timescaledb')",
            )
            .await
            .map_err(failed)?;
        let (asked, asked_at) = (std::time::Instant::now(), std::time::SystemTime::now());
        let row = client.query_one(&question, &[]).await.map_err(failed)?;
        let round_trip = asked.elapsed();
        let ours = asked_at + round_trip / 2;
        let ours_us = ours
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| {
                i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
            });
        Ok(Examined {
            address: self.address.clone(),
            version: row.get(1),
            extension: row.get(2),
            edition,
            schema: applied.to,
            clock_ahead_us: row.get::<_, i64>(0) - ours_us,
            round_trip,
        })
    }
}

/// Makes the pool's connections as the pool itself would, but what ends one is said in words: the
/// pool's own line is `db error`.
struct Connecting<T>(T);

impl<T> Connect for Connecting<T>
where
    T: MakeTlsConnect<Socket> + Clone + Sync + Send + 'static,
    T::Stream: Sync + Send,
    T::TlsConnect: Sync + Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    fn connect(
        &self,
        config: &Config,
    ) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        let (config, tls) = (config.clone(), self.0.clone());
        Box::pin(async move {
            let (client, connection) = config.connect(tls).await?;
            Ok((client, tokio::spawn(drive(connection))))
        })
    }
}

async fn drive(connection: impl Future<Output = Result<(), tokio_postgres::Error>>) {
    // A task that waits on the client gets the error too.
    if let Err(error) = connection.await {
        tracing::debug!(reason = fault::explain(&error), "a connection ended");
    }
}

async fn extension(client: &Client, address: &str, create: bool) -> Result<(), OpenError> {
    let failed = |e: tokio_postgres::Error| OpenError::from_server(address, &e);
    const FIND: &str = "SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'";
    let mut found = client.query_opt(FIND, &[]).await.map_err(failed)?;
    if found.is_none() && !create {
        // The database was never migrated; migrating installs the extension too.
        return Err(OpenError::Older {
            found: 0,
            known: migrate::newest(),
        });
    }
    if found.is_none() {
        let created = client
            .batch_execute("CREATE EXTENSION IF NOT EXISTS timescaledb")
            .await;
        // Two processes that create it at once: one of them fails, and it is there. A server that
        // did not load the library closes the connection.
        let refused = created.err().filter(|e| e.as_db_error().is_some());
        found = match (client.query_opt(FIND, &[]).await, refused) {
            (Ok(None) | Err(_), Some(refused)) => {
                return Err(OpenError::Extension(fault::explain(&refused)));
            }
            (again, _) => again.map_err(failed)?,
        };
    }
    let version: String = found.map_or_else(String::new, |row| row.get(0));
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < EXTENSION_LEAST {
        return Err(OpenError::ExtensionOld { found: version });
    }
    Ok(())
}
