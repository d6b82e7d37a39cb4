//! A gateway in this process, behind two emulated access networks that lose packets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use emulated_link::link::{LinkConfig, Loss};
use emulated_link::{LinkControl, emulate};
use service_kit::Context;
use tunnel::Interface;

use super::core::Core;
use crate::failure::Failure;
use service_kit::config::defaults;

/// Rate and one-way delay of each access network, equal to those of `braid up`.
const NETWORKS: [(&str, u8, f64, u64); 2] = [("wifi", 1, 40e6, 8), ("lte", 2, 12e6, 35)];

pub(super) struct LossyGateway {
    pub(super) links: Vec<LinkControl>,
    /// Address for sensors.
    pub(super) sensors: SocketAddr,
    pub(super) context: Context,
}

impl LossyGateway {
    /// `last`: the last byte of its addresses on the loopback device, `127.0.1.last` and
    /// `127.0.2.last`.
    pub(super) async fn start(
        core: &Core,
        proxy: &str,
        id: &str,
        last: u8,
        loss: f64,
        seed: u64,
    ) -> Result<LossyGateway, Failure> {
        let mut config: gateway::Config = defaults().map_err(Failure::other)?;
        config.listen = (Ipv4Addr::LOCALHOST, 0).into();
        config.data_dir = core.folder().join(id);
        proxy.clone_into(&mut config.proxy);
        config.ingest = core.ingest_url();
        config.path_telemetry = String::new();
        config.identity = core.gateway_identity(id)?;
        let (mut interfaces, mut links) = (Vec::new(), Vec::new());
        for (name, net, bits_per_s, delay_ms) in NETWORKS {
            let address = IpAddr::from([127, 0, net, last]);
            let plain = Interface::bind(name, address, None).map_err(Failure::other)?;
            let link = LinkConfig::new(bits_per_s, Duration::from_millis(delay_ms));
            let link = link.with_loss(Loss::Bernoulli(loss));
            let (socket, control) = emulate(plain.socket, &link, seed + u64::from(net));
            interfaces.push(Interface { socket, ..plain });
            links.push(control);
        }
        let context = Context::new("gateway");
        tokio::spawn({
            let (id, context) = (id.to_owned(), context.clone());
            async move {
                if let Err(error) = gateway::run(config, Some(interfaces), context.clone()).await {
                    eprintln!("bench: gateway {id} ended: {error}");
                }
                context.end();
            }
        });
        let sensors = context.address(gateway::LISTENER).await;
        let sensors =
            sensors.ok_or_else(|| Failure::other(format!("gateway {id} did not start")))?;
        Ok(LossyGateway {
            links,
            sensors,
            context,
        })
    }
}
