//! The gateway beside the patient accepts samples from sensors, stores them on disk and checks them
//! by rules. It sends them to the core over every access network.
//!
//! ```text
//! from_sensors -> intake -> edge_rules -> journal (alerts)  -> to_ingest == to_proxy ==> ingest
//!                       \---------------> journal (vitals) /
//!                                         paths -> to_path_telemetry == to_proxy ==> path-telemetry
//! from_applications (HTTP CONNECT, SOCKS5, TUN) == to_proxy ==> TCP, UDP or IP destinations
//! ```

pub mod alarms;
pub mod clock;
pub mod config;
pub mod edge_rules;
pub mod from_applications;
pub mod from_ingest;
pub mod from_sensors;
pub mod held;
pub mod intake;
pub mod journal;
pub mod rule_states;
pub mod rules_in_force;
mod sensor_clocks;
pub mod steering;
pub mod to_dashboard;
pub mod to_ingest;
pub mod to_path_telemetry;
pub mod to_proxy;

use std::{io, path::Path, sync::Arc, time::Duration};

use futures::future::select_all;
use service_kit::{
    CheckHandle, ConfigError, Context, ServiceConfig, Warning,
    grpc::ServeError,
    tls::{Identity, IdentityError, PeerId},
};
use tokio::{
    net::TcpListener,
    sync::{Notify, broadcast::error::RecvError, watch},
    task::JoinHandle,
};
use tunnel::{Interface, StartError, TunError, Tunnel, Urgency, steering_rules::Document};

pub use config::{Config, TunTcp};

use crate::{
    alarms::Alarms,
    clock::{CoreClock, Moment},
    edge_rules::at_start::{self, AtStart},
    from_applications::{Applications, Packets, Redirected},
    from_ingest::Follower,
    intake::Intake,
    journal::{Condition, Directory, Journal, Limits, recovery},
    steering::{Flows, InForce, Kept, Steering},
    to_dashboard::CertificateError,
    to_ingest::{Courier, DeadLetters, FromMemory, Options},
    to_path_telemetry::{JournalsWaiting, Telemetry},
    to_proxy::{Through, Uplink},
};

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("the gateway's certificate: {0}")]
    Identity(#[from] IdentityError),
    #[error("{0}")]
    Certificate(#[from] to_dashboard::CertificateError),
    #[error("the certificate names {0}, which is no gateway")]
    NotAGateway(PeerId),
    #[error("{path}: {source}")]
    Directory { path: String, source: io::Error },
    #[error(transparent)]
    Journal(#[from] recovery::OpenError),
    #[error("the proxy {proxy}: {source}")]
    Proxy { proxy: String, source: io::Error },
    #[error(transparent)]
    Tunnel(#[from] StartError),
    #[error("{0}")]
    Tun(#[from] TunError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("a task failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Runs a gateway until shutdown is requested and its work has drained. `interfaces` replace those
/// of the configuration, for example by emulated links.
pub async fn run(
    config: Config,
    interfaces: Option<Vec<Interface>>,
    context: Context,
) -> Result<(), RunError> {
    config.validate()?;
    // A renewal that a crash interrupted is completed before the files are read.
    service_kit::tls::renewal::finish(&config.identity).map_err(CertificateError::from)?;
    if let Some(token) = &config.enrol
        && !config
            .certificate_client()
            .enrol(token, context.shutdown())
            .await?
    {
        return Ok(());
    }
    let identity = Identity::load(&config.identity)?;
    if !config.enrol_url.is_empty() {
        let before = Duration::from_secs(u64::from(config.renew_before_days) * 86_400);
        let renewing = config.certificate_client().keep_renewed(
            identity.clone(),
            before,
            config.enrol.clone(),
            context.shutdown().clone(),
        );
        context.tasks().spawn(renewing);
    }
    let gateway = match identity.peer_id()? {
        PeerId::Gateway(gateway) => gateway.id,
        other => return Err(RunError::NotAGateway(other)),
    };
    let applications = bind_applications(&config, &context).await?;
    let tunnel = to_proxy::start(&config, &identity, interfaces, &context).await?;
    let uplink: Arc<dyn Uplink> = Arc::new(Through {
        tunnel: tunnel.clone(),
        identity,
    });
    let journals = JournalsWaiting::default();
    let (in_force, kept) = open_steering(&config)?;
    let flows = Flows::default();
    let alarms = Alarms::default();
    let steering = Steering {
        tunnel: tunnel.clone(),
        flows: flows.clone(),
        in_force: in_force.subscribe(),
        data_dir: config.data_dir.clone(),
        clock: Moment::now,
        alarms: alarms.clone(),
    };
    context
        .tasks()
        .spawn(steering.run(context.shutdown().clone()));
    let shown = (gateway.clone(), tunnel.clone(), flows.clone());
    context.show_paths(Arc::new(move |only| {
        let (gateway, tunnel, flows) = &shown;
        match only.is_none_or(|only| only == gateway) {
            true => flows.rows(gateway, &tunnel.paths()),
            false => Vec::new(),
        }
    }));
    let telemetry = (!config.path_telemetry.is_empty()).then(|| Telemetry {
        journals: journals.clone(),
        gateway: gateway.clone(),
        uplink: Arc::clone(&uplink),
        url: config.path_telemetry.clone(),
        interval: Duration::from_millis(config.path_report_interval_ms),
        beat: Duration::from_secs(config.path_report_beat_s),
        clock: Moment::now,
        tunnel: Some(tunnel.clone()),
        steering: Some((in_force, kept)),
    });
    let telemetry = telemetry.map(|telemetry| {
        context
            .tasks()
            .spawn(telemetry.run(context.shutdown().clone()))
    });
    let applications = (!applications.is_empty()).then(|| {
        let serving = Applications {
            tunnel: tunnel.clone(),
            flows: flows.clone(),
            options: from_applications::Options {
                token: config.applications_token.clone(),
                connections_max: config.applications_connections_max,
                idle_max: Duration::from_secs(config.applications_idle_timeout_s),
            },
        };
        context
            .tasks()
            .spawn(serving.run(applications, context.clone()))
    });
    let packets = match &config.tun {
        Some(name) => {
            let warning = context.health().warning("tun");
            let opened = Packets::open(name, config.tun_routes, tunnel.clone(), warning).await?;
            if config.tun_tcp == TunTcp::Streams {
                redirect_tcp(name, &tunnel, flows.clone(), &opened, &context);
            }
            let carrying = opened.run(context.shutdown().clone());
            Some(context.tasks().spawn(carrying))
        }
        None => None,
    };
    let served = match config.ingest.is_empty() {
        true => carry_only(&tunnel, &context).await,
        false => serve_with(config, gateway, uplink, &journals, alarms, &context).await,
    };
    context.shutdown().request();
    if let Some(packets) = packets {
        packets.await?;
    }
    if let Some(applications) = applications {
        applications.await?;
    }
    if let Some(telemetry) = telemetry {
        telemetry.await?;
    }
    tunnel.close().await;
    served
}

/// A gateway without sensors: ready while a session with the proxy is up.
async fn carry_only(tunnel: &Tunnel, context: &Context) -> Result<(), RunError> {
    let session = context.health().check("session");
    let mut events = tunnel.events();
    loop {
        match tunnel.transport() {
            Some(_) => session.ok(),
            None => session.failing("no session with the proxy"),
        }
        tokio::select! {
            // A slow subscriber looks again as well.
            event = events.recv() => if let Err(RecvError::Closed) = event {
                return Ok(());
            },
            () = context.shutdown().requested() => return Ok(()),
        }
    }
}

/// TCP connections to the TUN device become streams. Where the kernel does not redirect them they
/// stay packets, with a warning.
fn redirect_tcp(device: &str, tunnel: &Tunnel, flows: Flows, packets: &Packets, context: &Context) {
    let warning = context.health().warning("tun-tcp");
    let announced = packets.announced();
    match Redirected::start(device, tunnel.clone(), flows, announced, warning) {
        Ok(redirected) => {
            let serving = redirected.run(context.shutdown().clone());
            context.tasks().spawn(serving);
        }
        Err(error) => context.health().warning("tun-tcp").set(Some(Warning {
            says: format!("TCP connections to {device} go as packets, over one path each: {error}"),
            to_do: "give the gateway NET_ADMIN on a kernel with nftables, or --tun-tcp packets"
                .to_owned(),
        })),
    }
}

/// The steering document that holds at the start: the one that path-telemetry handed out last, or
/// the file of the configuration.
fn open_steering(config: &Config) -> Result<(watch::Sender<Arc<InForce>>, Kept), RunError> {
    let own = match &config.steering {
        Some(file) => InForce {
            version: 0,
            document: read_steering(file)?,
        },
        None => InForce::default(),
    };
    let kept = Kept::new(config.data_dir.join("steering.json"));
    let in_force = kept.read().unwrap_or(own);
    Ok((watch::Sender::new(Arc::new(in_force)), kept))
}

fn read_steering(file: &Path) -> Result<Document, ConfigError> {
    const EXAMPLE: &str = "--steering steering.toml";
    let text = std::fs::read_to_string(file).map_err(|error| {
        ConfigError::new("steering", format!("{}: {error}", file.display()), EXAMPLE)
    })?;
    Document::from_text(&text, &file.display().to_string())
        .map_err(|error| ConfigError::new("steering", error.to_string(), EXAMPLE))
}

/// Binds and announces the listeners for applications, each with the urgency of its streams.
async fn bind_applications(
    config: &Config,
    context: &Context,
) -> Result<Vec<(TcpListener, Urgency)>, RunError> {
    let mut listeners = Vec::new();
    for (field, address) in config.application_addresses() {
        let listener = service_kit::grpc::bind(address, field).await?;
        let (name, urgency) = match field {
            "applications" => (from_applications::LISTENER, Urgency::Bulk),
            _ => (from_applications::LISTENER_PROMPT, Urgency::Prompt),
        };
        let bound = listener.local_addr().map_err(ServeError::LocalAddress)?;
        context.listening(name, bound);
        listeners.push((listener, urgency));
    }
    Ok(listeners)
}

/// The gateway without its tunnel.
pub async fn serve(
    config: Config,
    gateway: String,
    uplink: Arc<dyn Uplink>,
    context: &Context,
) -> Result<(), RunError> {
    serve_with(
        config,
        gateway,
        uplink,
        &JournalsWaiting::default(),
        Alarms::default(),
        context,
    )
    .await
}

async fn serve_with(
    config: Config,
    gateway: String,
    uplink: Arc<dyn Uplink>,
    journals: &JournalsWaiting,
    alarms: Alarms,
    context: &Context,
) -> Result<(), RunError> {
    keep_private(&config)?;
    let AtStart {
        rules,
        file,
        in_force,
        states,
    } = at_start::open(&config).await?;
    let listener = service_kit::grpc::bind(config.listen, "listen").await?;
    let (vitals, vitals_watch) =
        open_journal(&config, "vitals", config.vitals_limits(), context).await?;
    let (alerts, alerts_watch) =
        open_journal(&config, "alerts", config.alerts_limits(), context).await?;
    let counted = (vitals.clone(), alerts.clone());
    journals.open(move || counted.0.waiting() + counted.1.waiting());

    let dead_letters = Arc::new(DeadLetters::new(config.data_dir.join("rejected.jsonl")));
    let (follower, answers) = Follower::new();
    let core = Arc::new(CoreClock::default());
    context.tasks().spawn(clock::watch(
        Moment::now,
        Arc::clone(&core),
        context.health().warning("clock"),
        context.shutdown().clone(),
    ));
    let following = follower.following();
    let courier = |options: Options,
                   journal: &Journal<Directory>,
                   check: CheckHandle,
                   rules: Option<Follower>,
                   urgent: Arc<Notify>| {
        let courier = Courier {
            options,
            journal: journal.clone(),
            uplink: Arc::clone(&uplink),
            url: config.ingest.clone(),
            dead_letters: Arc::clone(&dead_letters),
            check,
            clock: Moment::now,
            core: Arc::clone(&core),
            rules,
            alarmed: alarms.watch(),
            urgent,
        };
        context
            .tasks()
            .spawn(courier.run(context.shutdown().clone()))
    };
    // Alerts first: their connection is the first on a narrow network.
    let urgent = Arc::<Notify>::default();
    let mut couriers = [
        courier(
            Options::ALERTS,
            &alerts,
            context.health().check("alerts-uplink"),
            None,
            Arc::default(),
        ),
        courier(
            config.vitals_options(),
            &vitals,
            context.health().check("vitals-uplink"),
            Some(follower),
            Arc::clone(&urgent),
        ),
    ];
    let intake = Intake::new(gateway, vitals.clone(), alerts.clone(), rules).hurrying(urgent);
    let intake = intake.with_core(core).while_following(following);
    let intake = intake.with_alarms(alarms.clone());
    let intake = Arc::new(intake.with_states(states));
    let from_memory = FromMemory {
        intake: Arc::clone(&intake),
        uplink: Arc::clone(&uplink),
        url: config.ingest.clone(),
        clock: Moment::now,
    };
    let telling = context
        .tasks()
        .spawn(from_memory.run(context.shutdown().clone()));
    let (again, warning) = (
        Arc::clone(&intake),
        context.health().warning("alerts-in-memory"),
    );
    let shutdown = context.shutdown().clone();
    context
        .tasks()
        .spawn(async move { again.try_again(warning, shutdown).await });
    let keeping = from_ingest::keep(
        answers,
        in_force,
        file,
        Arc::clone(&intake),
        context.health().warning("rules"),
    );
    context.tasks().spawn(keeping);
    let sensors = from_sensors::serve(listener, intake, config.sensor_token.clone(), context);
    let served = tokio::select! {
        served = sensors => served.map_err(RunError::from),
        failed = failure_of(&mut couriers) => Err(failed),
    };
    context.shutdown().request();
    for courier in couriers.into_iter().filter(|it| !it.is_finished()) {
        courier.await?;
    }
    telling.await?;
    alerts.close().await;
    vitals.close().await;
    alerts_watch.abort();
    vitals_watch.abort();
    served
}

/// Ends when a courier has panicked. Otherwise samples would be accepted until the journal is full,
/// without a report. The process ends, and its supervisor restarts it; accepted samples are on
/// disk.
async fn failure_of(couriers: &mut [JoinHandle<()>]) -> RunError {
    match select_all(couriers).await.0 {
        Err(failed) => RunError::Task(failed),
        Ok(()) => std::future::pending().await,
    }
}

async fn open_journal(
    config: &Config,
    class: &'static str,
    limits: Limits,
    context: &Context,
) -> Result<(Journal<Directory>, JoinHandle<()>), RunError> {
    let check = context.health().check(match class {
        "alerts" => "alerts-journal",
        _ => "vitals-journal",
    });
    let path = config.data_dir.join("journal").join(class);
    let options = journal::Options {
        class,
        limits,
        gather: config.gather(),
    };
    let (journal, summary) = tokio::task::spawn_blocking(move || {
        let directory = Directory::open(&path).map_err(|source| RunError::Directory {
            path: path.display().to_string(),
            source,
        })?;
        Journal::open(directory, options).map_err(RunError::from)
    })
    .await??;
    tracing::info!(
        class,
        segments = summary.segments,
        waiting = summary.waiting,
        "journal open"
    );
    if summary.damaged_segments > 0 {
        tracing::error!(
            class,
            segments = summary.damaged_segments,
            "the journal is damaged; lost samples are reported as gaps"
        );
    }
    let mut condition = journal.condition();
    let watch = tokio::spawn(async move {
        loop {
            match &*condition.borrow_and_update() {
                Condition::Writable => check.ok(),
                Condition::Failing(reason) => check.failing(reason.clone()),
            }
            if condition.changed().await.is_err() {
                return;
            }
        }
    });
    Ok((journal, watch))
}

/// Waiting readings must not be readable by other users of this machine.
fn keep_private(config: &Config) -> Result<(), RunError> {
    let refused = config.data_dir.join("rejected.jsonl");
    private_files::folder(&config.data_dir)
        .and_then(|()| private_files::folder(&config.data_dir.join("journal")))
        .and_then(|()| private_files::mend_file(&refused))
        .and_then(|()| private_files::mend_file(&refused.with_extension("jsonl.1")))
        .map_err(|source| RunError::Directory {
            path: config.data_dir.display().to_string(),
            source,
        })
}
