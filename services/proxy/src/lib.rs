//! The proxy in the core ends the multipath tunnels of gateways, and connects their streams to
//! permitted destinations.
//!
//! ```text
//! gateway ==paths==> from_gateway (identity, limits) --> to_upstream (allow-list) --> TCP, UDP, IP
//!                         |
//!                         +--> sessions --> path_reports --> outbox --> to_path_telemetry --> gRPC
//! from_path_telemetry --> revocations --> from_gateway
//! ```

mod admission;
mod budget;
mod config;
mod destinations;
mod from_gateway;
mod from_path_telemetry;
mod ip_destinations;
mod leases;
mod outbox;
mod path_reports;
mod path_series;
mod policy;
mod policy_file;
mod reset_key;
mod revocations;
mod sessions;
mod special_addresses;
mod to_path_telemetry;
mod to_upstream;

use std::sync::Arc;

use futures::future::join_all;
use service_kit::{
    ConfigError, Context, ServiceConfig,
    grpc::ChannelError,
    path_table::PathTable,
    tls::{Identity, IdentityError},
};
use tokio::sync::watch;
use tunnel::{BindError, ServerConfig, TunnelServer};

pub use config::Config;

use crate::{
    from_gateway::FromGateway,
    from_path_telemetry::Follower,
    policy_file::PolicyFile,
    revocations::Known,
    sessions::{Limits, Sessions},
    to_path_telemetry::ToPathTelemetry,
    to_upstream::{Upstream, ip_offer::IpOffer},
};

/// Why the proxy could not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("{0}")]
    Config(#[from] ConfigError),
    #[error("identity: {0}")]
    Identity(#[from] IdentityError),
    #[error("{0}")]
    Bind(#[from] BindError),
    #[error("path-telemetry: {0}")]
    Channel(#[from] ChannelError),
}

fn set_up(listen: &mut ServerConfig, config: &Config) -> Result<(), ConfigError> {
    listen.resume = config.resume();
    listen.fallback = config.tcp_fallback;
    listen.server_id = config.server_id()?;
    listen.reset_key = reset_key::reset_key(config, listen.server_id.as_ref());
    Ok(())
}

/// Runs until a shutdown is requested and the open tunnels have ended, or until the drain time is
/// over.
pub async fn run(config: Config, context: Context) -> Result<(), RunError> {
    config.validate()?;
    let listening = context.health().check(service_kit::LISTENER);
    let identity = Identity::load(&config.identity)?;
    let tls = identity.server_config(true, &[tunnel::ALPN]);
    let policy_text = config::read_policy(config.policy.as_ref())?;
    let policy = config.policy(&policy_text)?;
    if policy.is_empty() {
        tracing::warn!(
            "no destination is permitted: every request will be refused (--allow, --allow-private, --policy)"
        );
    }
    let (policy_to, policy) = watch::channel(Arc::new(policy));
    let sessions = Sessions::new(Limits {
        sessions_max: config.sessions_max,
        sessions_per_gateway_max: config.sessions_per_gateway_max,
        tunnels_per_gateway_max: config.tunnels_per_gateway_max,
        plain_per_gateway_max: config.plain_tunnels_per_gateway_max,
        requests_per_second_max: config.requests_per_second_max,
    });
    let shown = sessions.clone();
    let table: PathTable = Arc::new(move |gateway| shown.rows(gateway));
    if let Some(data) = &config.data_dir {
        context.record_paths(data.join("qlog"), Arc::clone(&table));
    }
    context.show_paths(table);
    let ip = config.ip()?.map(|_| Arc::<IpOffer>::default());
    let handing_out = match ip.clone() {
        Some(ip) => {
            let (config, policy) = (config.clone(), policy.clone());
            let settings = move || config.ip().ok().flatten();
            let warning = context.health().warning("tun");
            Some(ip.start(settings, policy, warning).await)
        }
        None => None,
    };
    let upstream = Arc::new(Upstream {
        ip,
        policy: policy.clone(),
        connect_timeout: config.connect_timeout(),
        idle_timeout: config.idle_timeout(),
    });
    let mut listen = ServerConfig::new(config.listen, tls);
    set_up(&mut listen, &config)?;
    let server = Arc::new(TunnelServer::bind(listen)?);
    context.listening("tunnel", server.local_addr());
    listening.ok();

    let tasks = context.tasks().clone();
    let (to, known) = watch::channel(Known::nobody());
    if !config.path_telemetry.is_empty() {
        let channel = service_kit::grpc::channel(&config.path_telemetry, Some(&identity))?;
        to.send_replace(Known::Waiting);
        let follower = Follower {
            channel: channel.clone(),
            to,
            data: config.data_dir.clone(),
            wait: config.revocations_wait(),
            admit_unheard: config.admit_unheard,
            warning: context.health().warning("revocations"),
        };
        tasks.spawn(follower.run(context.shutdown().clone()));
        let reporting = ToPathTelemetry {
            channel,
            sessions: sessions.clone(),
            interval: config.report_interval(),
            clock: context.clock().clone(),
        };
        tasks.spawn(service_kit::own_clock::watch(context.clone()));
        tasks.spawn(reporting.run(context.shutdown().clone()));
    }
    if config.policy.is_some() {
        let file = PolicyFile {
            config: config.clone(),
            to: policy_to,
            warning: context.health().warning("policy"),
        };
        tasks.spawn(file.follow(policy_text, context.shutdown().clone()));
    }
    let from_gateway = FromGateway {
        server: server.clone(),
        sessions: sessions.clone(),
        upstream,
        known,
        policy,
        tasks: tasks.clone(),
    };
    Arc::new(from_gateway).run(context.shutdown().clone()).await;

    server.refuse_new();
    let handles = sessions.handles();
    tracing::info!(sessions = handles.len(), "draining");
    join_all(handles.iter().map(|handle| handle.drain(config.drain()))).await;
    server.close().await;
    if let Some(handing_out) = handing_out {
        handing_out.abort();
    }
    context.drain_tasks().await;
    Ok(())
}
