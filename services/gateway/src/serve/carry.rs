//! Starts what uses the tunnel beside the line from sensors to ingest.

use std::{sync::Arc, time::Duration};

use service_kit::{Context, Warning, path_table::PathTable};
use tokio::sync::broadcast::error::RecvError;
use tunnel::Tunnel;

use crate::{
    Config, RunError,
    clock::Moment,
    config::TunTcp,
    drain::TunnelTasks,
    from_applications::{self, Applications, Dns, Packets, Redirected},
    parts::Parts,
    steering::{Flows, Steering},
    to_path_telemetry::Telemetry,
};

pub(crate) async fn carry(
    config: &Config,
    parts: &mut Parts,
    context: &Context,
) -> Result<TunnelTasks, RunError> {
    let shutdown = context.shutdown();
    let steering = steering(config, parts);
    context.tasks().spawn(steering.run(shutdown.clone()));
    show_paths(config, parts, context);
    let telemetry = (!config.path_telemetry.is_empty()).then(|| {
        let telemetry = telemetry(config, parts);
        context.tasks().spawn(telemetry.run(shutdown.clone()))
    });
    let listeners = std::mem::take(&mut parts.listeners);
    let applications = (!listeners.is_empty()).then(|| {
        let serving = applications(config, parts).run(listeners, context.clone());
        context.tasks().spawn(serving)
    });
    let packets = match &config.tun {
        Some(name) => {
            let opened = open_tun(name, config, parts, context).await?;
            Some(context.tasks().spawn(opened.run(shutdown.clone())))
        }
        None => None,
    };
    Ok(TunnelTasks {
        packets,
        applications,
        telemetry,
    })
}

fn steering(config: &Config, parts: &Parts) -> Steering {
    let tunnel = parts.tunnel.clone();
    (parts.flows).publish_to(move |schedule| tunnel.set_schedule(schedule));
    Steering {
        gateway: parts.gateway.clone(),
        freshness: parts.freshness.clone(),
        tunnel: parts.tunnel.clone(),
        flows: parts.flows.clone(),
        in_force: parts.in_force.subscribe(),
        data_dir: config.data_dir.clone(),
        clock: Moment::now,
        alarms: parts.alarms.clone(),
    }
}

/// Serves the table of paths at the admin listener, and records it on demand.
fn show_paths(config: &Config, parts: &Parts, context: &Context) {
    let shown = (
        parts.gateway.clone(),
        parts.tunnel.clone(),
        parts.flows.clone(),
    );
    let table: PathTable = Arc::new(move |only| {
        let (gateway, tunnel, flows) = &shown;
        match only.is_none_or(|only| only == gateway) {
            true => flows.rows(gateway, &tunnel.paths()),
            false => Vec::new(),
        }
    });
    context.record_paths(config.data_dir.join("qlog"), Arc::clone(&table));
    context.show_paths(table);
}

fn telemetry(config: &Config, parts: &Parts) -> Telemetry {
    Telemetry {
        journals: parts.journals.clone(),
        gateway: parts.gateway.clone(),
        uplink: Arc::clone(&parts.uplink),
        url: config.path_telemetry.clone(),
        interval: Duration::from_millis(config.path_report_interval_ms),
        beat: Duration::from_secs(config.path_report_beat_s),
        clock: Moment::now,
        tunnel: Some(parts.tunnel.clone()),
        steering: Some((parts.in_force.clone(), parts.kept.clone())),
        flows: parts.flows.clone(),
    }
}

fn applications(config: &Config, parts: &Parts) -> Applications {
    Applications {
        tunnel: parts.tunnel.clone(),
        flows: parts.flows.clone(),
        options: from_applications::Options {
            token: config.applications_token.clone(),
            connections_max: config.applications_connections_max,
            idle_max: Duration::from_secs(config.applications_idle_timeout_s),
        },
    }
}

async fn open_tun(
    name: &str,
    config: &Config,
    parts: &Parts,
    context: &Context,
) -> Result<Packets, RunError> {
    let (tunnel, flows) = (&parts.tunnel, parts.flows.clone());
    let warning = context.health().warning("tun");
    let routes = config.tun_routes;
    let opened = Packets::open(name, routes, tunnel.clone(), flows.clone(), warning).await?;
    if config.tun_tcp == TunTcp::Streams {
        redirect_tcp(name, tunnel, flows.clone(), &opened, context);
    }
    if let Some(resolver) = config.resolver() {
        Dns::start(name, resolver, tunnel.clone(), flows, opened.own(), context);
    }
    Ok(opened)
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

/// A gateway without sensors is ready while a session with the proxy is up.
pub(crate) async fn without_sensors(tunnel: &Tunnel, context: &Context) -> Result<(), RunError> {
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
