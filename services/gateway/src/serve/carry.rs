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
    resources::Resources,
    steering::{Flows, Steering},
    to_path_telemetry::Telemetry,
};

pub(crate) async fn carry(
    config: &Config,
    resources: &mut Resources,
    context: &Context,
) -> Result<TunnelTasks, RunError> {
    let shutdown = context.shutdown();
    let steering = steering(config, resources);
    context.tasks().spawn(steering.run(shutdown.clone()));
    show_paths(config, resources, context);
    let telemetry = (!config.path_telemetry.is_empty()).then(|| {
        let telemetry = telemetry(config, resources);
        context.tasks().spawn(telemetry.run(shutdown.clone()))
    });
    let listeners = std::mem::take(&mut resources.listeners);
    let applications = (!listeners.is_empty()).then(|| {
        let serving = applications(config, resources).run(listeners, context.clone());
        context.tasks().spawn(serving)
    });
    let packets = match &config.tun {
        Some(name) => {
            let opened = open_tun(name, config, resources, context).await?;
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

fn steering(config: &Config, resources: &Resources) -> Steering {
    let tunnel = resources.tunnel.clone();
    (resources.flows).publish_to(move |schedule| tunnel.set_schedule(schedule));
    Steering {
        gateway: resources.gateway.clone(),
        freshness: resources.freshness.clone(),
        tunnel: resources.tunnel.clone(),
        flows: resources.flows.clone(),
        in_force: resources.in_force.subscribe(),
        data_dir: config.data_dir.clone(),
        clock: Moment::now,
        alarms: resources.alarms.clone(),
    }
}

/// Serves the table of paths at the admin listener, and records it on demand.
fn show_paths(config: &Config, resources: &Resources, context: &Context) {
    let shown = (
        resources.gateway.clone(),
        resources.tunnel.clone(),
        resources.flows.clone(),
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

fn telemetry(config: &Config, resources: &Resources) -> Telemetry {
    Telemetry {
        journals: resources.journals.clone(),
        gateway: resources.gateway.clone(),
        uplink: Arc::clone(&resources.uplink),
        url: config.path_telemetry.clone(),
        interval: Duration::from_millis(config.path_report_interval_ms),
        beat: Duration::from_secs(config.path_report_beat_s),
        clock: Moment::now,
        tunnel: Some(resources.tunnel.clone()),
        steering: Some((resources.in_force.clone(), resources.kept.clone())),
        flows: resources.flows.clone(),
    }
}

fn applications(config: &Config, resources: &Resources) -> Applications {
    Applications {
        tunnel: resources.tunnel.clone(),
        flows: resources.flows.clone(),
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
    resources: &Resources,
    context: &Context,
) -> Result<Packets, RunError> {
    let (tunnel, flows) = (&resources.tunnel, resources.flows.clone());
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
