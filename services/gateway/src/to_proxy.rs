//! The tunnel to the proxy: its start, its access networks and the connections through it.

mod outage;
mod uplink;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use outage::{Outage, answers};
use service_kit::{Backoff, Context, Warning, tls::Identity};
use tokio::sync::broadcast::error::RecvError;
use tunnel::{AccessRule, Interface, Transport, Tunnel, TunnelConfig};

pub use uplink::{Through, Uplink};

use crate::{Config, RunError};

/// Interval of looks at the paths. Their own events come in between.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for a name server at the start; later the tunnel asks again.
const RESOLVE_MAX: Duration = Duration::from_secs(3);

/// Starts the tunnel on the access networks of the configuration, or on `interfaces` instead.
pub(crate) async fn start(
    config: &Config,
    identity: &Identity,
    interfaces: Option<Vec<Interface>>,
    context: &Context,
) -> Result<Tunnel, RunError> {
    let (v4, v6) = resolve(&config.proxy).await?;
    let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
    let mut tunnel_config = TunnelConfig::new(
        v4.or(v6).unwrap_or(unknown),
        config.proxy_name.clone(),
        identity.client_config(&[]),
    );
    tunnel_config.proxy_other_family = v4.and(v6);
    tunnel_config.proxy_host = Some(config.proxy.clone());
    let rules = config.access_rules()?;
    let follows = interfaces.is_none();
    // Emulated links carry only UDP.
    tunnel_config.fallback = config.tcp_fallback && follows;
    let tunnel = Tunnel::start(tunnel_config, interfaces.unwrap_or_default())?;
    if follows {
        context.tasks().spawn(follow(tunnel.clone(), rules));
    }
    context
        .tasks()
        .spawn(watch_transport(tunnel.clone(), context.clone()));
    Ok(tunnel)
}

/// Warns while the tunnel uses a transport other than QUIC, and while no path answers.
async fn watch_transport(tunnel: Tunnel, context: Context) {
    let warning = context.health().warning("transport");
    let no_network = context.health().warning("no-network");
    let (mut events, mut outage) = (tunnel.events(), Outage::default());
    loop {
        let answers = answers(tunnel.transport(), &tunnel.paths());
        no_network.set(outage.on_look(answers, Instant::now()));
        let stand_in = tunnel
            .transport()
            .filter(|&transport| transport != Transport::Quic);
        warning.set(stand_in.map(|transport| Warning {
            says: format!("UDP gets no answer: the tunnel uses HTTP/2 over {transport}"),
            to_do: "open UDP to the proxy's port in the access networks".to_owned(),
        }));
        tokio::select! {
            // A slow subscriber looks again as well.
            event = events.recv() => if let Err(RecvError::Closed) = event {
                return;
            },
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = context.shutdown().requested() => return,
        }
    }
}

/// The proxy's addresses, one of each family; none if its name does not resolve yet, since there
/// may be no network at the start.
async fn resolve(proxy: &str) -> Result<(Option<SocketAddr>, Option<SocketAddr>), RunError> {
    let looked_up = tokio::time::timeout(RESOLVE_MAX, tokio::net::lookup_host(proxy)).await;
    let found: Vec<SocketAddr> = match looked_up {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => {
            return Err(RunError::Proxy {
                proxy: proxy.to_owned(),
                source: error,
            });
        }
        Ok(Err(error)) => {
            tracing::warn!(proxy, %error, "the proxy's name does not resolve yet");
            Vec::new()
        }
        Err(_) => {
            tracing::warn!(proxy, "no name server answers yet");
            Vec::new()
        }
    };
    let of_family = |ipv6| found.iter().find(|at| at.is_ipv6() == ipv6).copied();
    Ok((of_family(false), of_family(true)))
}

/// Keeps the tunnel's access networks in step with the rules. Without netlink, fixed addresses are
/// taken once.
async fn follow(tunnel: Tunnel, rules: Vec<AccessRule>) {
    let mut backoff = Backoff::for_reconnect();
    while let Err(error) = tunnel.follow(rules.clone()).await {
        tracing::warn!(%error, "access networks are not followed");
        for rule in &rules {
            let (name, local_ip, device) = match rule {
                AccessRule::Address {
                    name,
                    local_ip,
                    device,
                } => (name, *local_ip, device.as_deref()),
                AccessRule::Routed { name } => (name, IpAddr::from([0, 0, 0, 0]), None),
                AccessRule::Devices { .. } | AccessRule::Subnet { .. } => continue,
            };
            let known = tunnel.interfaces().iter().any(|(known, _)| known == name);
            if !known {
                let attached = Interface::bind(name, local_ip, device)
                    .and_then(|interface| tunnel.attach(interface).map_err(io::Error::other));
                if let Err(error) = attached {
                    tracing::warn!(name, %error, "access network not usable");
                }
            }
        }
        backoff.wait().await;
    }
}
