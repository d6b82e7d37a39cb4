//! The dashboard: shows the ward to people, live, and takes their acknowledgements.
//!
//! It reads the store ([`from_store`]) and the ends of the topics ([`from_bus`]), folds both into
//! the [`ward_view`], and serves a web page with gRPC-web ([`to_browser`]). It writes audit rows,
//! the public halves of its keys ([`tokens`]), and gateways' tokens, certificates and revocations
//! ([`gateways`]). Acknowledgements and documents go through alerting's API ([`to_alerting`]).
//!
//! Any number of replicas may run. Each follows the bus from its end without a group and can
//! rebuild everything from the store. Sessions live in the store ([`sessions`]), so they
//! outlive a replica and hold at each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bus::Bus;
use service_kit::Context;
use service_kit::tls::authority::LocalAuthority;
use store::Store;

pub mod accounts;
mod canary;
mod config;
mod expiring;
pub mod explain;
mod from_bus;
mod from_gateway;
mod from_store;
pub mod gateways;
mod hashing;
pub mod kiosks;
mod live;
pub mod moment;
mod outage;
pub mod patients;
pub mod sensors;
mod sessions;
mod shared_document;
mod system;
mod to_alerting;
mod to_browser;
mod to_identity_provider;
mod to_links;
mod to_people;
mod tokens;
mod unregistered;
mod untold;
mod ward_view;
mod warnings;

pub use config::{Config, MailConfig};

/// How often the page looks for what is wrong in this process.
const LOOK_EACH: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] service_kit::ConfigError),
    #[error("identity: {0}")]
    Identity(#[from] service_kit::tls::IdentityError),
    #[error("the authority: {0}")]
    Authority(#[from] service_kit::tls::authority::AuthorityError),
    #[error("client: {0}")]
    Client(#[from] service_kit::grpc::ChannelError),
    #[error(transparent)]
    Serve(#[from] service_kit::grpc::ServeError),
}

/// Serves until shutdown is requested and returns after open requests have ended.
pub async fn run(
    config: Config,
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    context: Context,
) -> Result<(), RunError> {
    let identity = if config.identity.is_set() {
        Some(service_kit::tls::Identity::load(&config.identity)?)
    } else {
        None
    };
    let clients = to_browser::Clients {
        alerting: to_alerting::client(&config.alerting_url, identity.as_ref())?,
        links: to_links::client(&config.links_url, identity.as_ref())?,
    };
    let oidc = to_identity_provider::Oidc::new(&config.oidc)?;
    if let Some(oidc) = oidc.clone() {
        let shutdown = context.shutdown().clone();
        context
            .tasks()
            .spawn(async move { oidc.keep_keys(shutdown).await });
    }
    let issuer = match &config.authority {
        Some(dir) => Some(Arc::new(from_gateway::CertificateIssuer {
            store: Arc::clone(&store),
            authority: LocalAuthority::open(dir)?,
        })),
        None => None,
    };
    let tls = match (&identity, config.tls) {
        (Some(identity), true) => Some(identity.server_config(false, &[b"h2", b"http/1.1"])),
        _ => None,
    };
    let ways = to_people::Ways::new(&config.canary, &config.mail)?;
    let recipients = to_people::Recipients::new(&config.mail.administrators());
    let recipients = to_people::SharedRecipients::new(recipients.into());
    let listener = service_kit::grpc::bind(config.listen, "listen").await?;

    let rules = vitals::RuleSet::default_set();
    let live = Arc::new(live::Live::new(rules, context.clock().clone()));
    let clock = service_kit::own_clock::watch(context.clone());
    context.tasks().spawn(clock);
    context
        .tasks()
        .spawn(show_process(live.clone(), context.clone()));
    let readers = from_bus::follow_all(&bus, &live, &context);
    warn_ahead(&ways, &recipients, &store, &live, &context);
    let (people, telling) = to_people::People::new(ways, recipients.clone(), &store, &context);
    context.tasks().spawn(telling);
    system::start(
        &bus,
        &store,
        &live,
        &readers,
        config.canary.within(),
        people,
        &context,
    );
    context.tasks().spawn(from_store::keep_fresh(
        store.clone(),
        live.clone(),
        recipients,
        context.clone(),
    ));
    context.tasks().spawn(from_store::keep_counts(
        store.clone(),
        live.clone(),
        context.shutdown().clone(),
    ));
    context.tasks().spawn(live::publish_snapshots(
        live.clone(),
        context.shutdown().clone(),
    ));

    context.tasks().spawn(to_alerting::untold::follow(
        live.clone(),
        clients.alerting.clone(),
        context.clone(),
    ));

    let app = to_browser::App::new(
        &config,
        store,
        live,
        clients,
        issuer,
        oidc,
        context.shutdown().clone(),
    );
    let sessions = Arc::clone(&app.sessions);
    context
        .tasks()
        .spawn(sessions.keep_checked(context.shutdown().clone()));
    service_kit::grpc::serve(listener, "page", to_browser::router(app), tls, &context).await?;
    context.drain_tasks().await;
    Ok(())
}

/// The page shows what is wrong in this process, and the process what the page shows.
async fn show_process(live: Arc<live::Live>, context: Context) {
    let shown = live.clone();
    context.also(Arc::new(move || shown.warnings.lock().wrong()));
    loop {
        let wrong = context.wrong(Instant::now());
        live.warnings.lock().on_process(wrong, live.now_us());
        tokio::select! {
            () = context.shutdown().requested() => return,
            () = tokio::time::sleep(LOOK_EACH) => {}
        }
    }
}

/// Starts the warnings of what would fail later: people who would not be told, and certificates
/// that run out.
fn warn_ahead(
    ways: &to_people::Ways,
    recipients: &to_people::SharedRecipients,
    store: &Arc<dyn Store>,
    live: &Arc<live::Live>,
    context: &Context,
) {
    context.tasks().spawn(untold::watch(
        ways.kinds(),
        recipients.clone(),
        live.clone(),
        context.clone(),
    ));
    context.tasks().spawn(expiring::watch(expiring::Watch {
        store: store.clone(),
        live: live.clone(),
        recipients: recipients.clone(),
        mailer: ways.mailer(),
        context: context.clone(),
    }));
}
