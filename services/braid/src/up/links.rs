//! The emulated access links and the service that changes them, for the page's buttons and for
//! `braid link`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use contracts::paths::link_service_server::{LinkService, LinkServiceServer};
use contracts::paths::{
    Link, ListLinksRequest, ListLinksResponse, SetLinkRequest, SetLinkResponse,
};
use emulated_link::link::LinkConfig;
use emulated_link::{LinkControl, emulate};
use parking_lot::Mutex;
use service_kit::grpc;
use service_kit::tls::{Identity, PeerId};
use tonic::{Request, Response, Status};
use tunnel::Interface;

use super::config::UpConfig;
use super::first_start::Start;
use super::services::{Services, Stage};
use crate::process::Failure;

/// Lowest rate of a link in bits per second.
const RATE_MIN: u64 = 1_000;
/// Highest rate of a link in bits per second.
const RATE_MAX: u64 = 10_000_000_000;
/// Longest delay of a link in milliseconds; a longer one is refused.
const DELAY_MS_MAX: u32 = 10_000;

struct Entry {
    gateway: String,
    name: String,
    control: LinkControl,
}

/// Two links per gateway, so the number of patients bounds them.
#[derive(Clone)]
pub struct Links {
    entries: Arc<Mutex<Vec<Entry>>>,
}

impl Links {
    pub fn new() -> Links {
        Links {
            entries: Arc::default(),
        }
    }

    /// The access networks of one gateway: sockets on separate loopback addresses, each behind its
    /// link.
    pub fn access_networks(
        &self,
        config: &UpConfig,
        gateway: &str,
        index: u8,
    ) -> Result<Vec<Interface>, Failure> {
        let networks = [
            ("wifi", 1, config.wifi_mbit_per_s, config.wifi_delay_ms),
            ("lte", 2, config.lte_mbit_per_s, config.lte_delay_ms),
        ];
        let mut interfaces = Vec::with_capacity(networks.len());
        for (name, net, mbit_per_s, delay_ms) in networks {
            let address = IpAddr::from(Ipv4Addr::new(127, 0, net, index.saturating_add(1)));
            let plain = Interface::bind(name, address, None).map_err(|error| {
                Failure::other(format!("{address} for the emulated {name}: {error}"))
            })?;
            let link = LinkConfig::new(mbit_per_s * 1e6, Duration::from_millis(delay_ms.into()));
            let seed = config
                .seed
                .wrapping_add(u64::from(index) << 8)
                .wrapping_add(u64::from(net));
            let (socket, control) = emulate(plain.socket, &link, seed);
            interfaces.push(Interface { socket, ..plain });
            self.entries.lock().push(Entry {
                gateway: gateway.to_owned(),
                name: name.to_owned(),
                control,
            });
        }
        Ok(interfaces)
    }

    fn list(&self) -> Vec<Link> {
        self.entries.lock().iter().map(Entry::link).collect()
    }

    fn set(&self, change: &SetLinkRequest) -> Result<Vec<Link>, Status> {
        check(change)?;
        let entries = self.entries.lock();
        let matching: Vec<&Entry> = entries
            .iter()
            .filter(|entry| change.gateway.is_empty() || entry.gateway == change.gateway)
            .filter(|entry| entry.name == change.name)
            .collect();
        if matching.is_empty() {
            return Err(Status::not_found(format!(
                "no gateway has a link {:?}, or not this one: see `braid link list`",
                change.name
            )));
        }
        for entry in &matching {
            entry.apply(change);
        }
        Ok(matching.into_iter().map(Entry::link).collect())
    }
}

fn check(change: &SetLinkRequest) -> Result<(), Status> {
    if change
        .rate_bits_per_s
        .is_some_and(|rate| !(RATE_MIN..=RATE_MAX).contains(&rate))
    {
        return Err(Status::invalid_argument(format!(
            "rate_bits_per_s: outside {RATE_MIN} to {RATE_MAX}, such as 12000000"
        )));
    }
    if change.delay_ms.is_some_and(|delay| delay > DELAY_MS_MAX) {
        return Err(Status::invalid_argument(format!(
            "delay_ms: more than {DELAY_MS_MAX}, such as 35"
        )));
    }
    if change.loss.is_some_and(|loss| !(0.0..=1.0).contains(&loss)) {
        return Err(Status::invalid_argument(
            "loss: outside 0 to 1, such as 0.02",
        ));
    }
    Ok(())
}

impl Entry {
    fn apply(&self, change: &SetLinkRequest) {
        if let Some(rate) = change.rate_bits_per_s {
            self.control.set_rate(rate);
        }
        if let Some(delay) = change.delay_ms {
            self.control
                .set_delay(Duration::from_millis(delay.into()), Duration::ZERO);
        }
        if let Some(loss) = change.loss {
            self.control.set_loss(loss);
        }
        if let Some(up) = change.up {
            self.control.set_up(up);
            tracing::info!(gateway = self.gateway, link = self.name, up, "link changed");
        }
    }

    fn link(&self) -> Link {
        let snapshot = self.control.snapshot();
        Link {
            gateway: self.gateway.clone(),
            name: self.name.clone(),
            up: snapshot.up,
            rate_bits_per_s: snapshot.rate_bits_per_s,
            delay_ms: u32::try_from(snapshot.delay.as_millis()).unwrap_or(u32::MAX),
            loss: snapshot.loss,
        }
    }
}

#[tonic::async_trait]
impl LinkService for Links {
    async fn list_links(
        &self,
        request: Request<ListLinksRequest>,
    ) -> Result<Response<ListLinksResponse>, Status> {
        authorise(&request)?;
        Ok(Response::new(ListLinksResponse { links: self.list() }))
    }

    async fn set_link(
        &self,
        request: Request<SetLinkRequest>,
    ) -> Result<Response<SetLinkResponse>, Status> {
        authorise(&request)?;
        let links = self.set(request.get_ref())?;
        Ok(Response::new(SetLinkResponse { links }))
    }
}

/// Services and the operator are admitted; a gateway must not cut the links of others.
fn authorise<T>(request: &Request<T>) -> Result<(), Status> {
    match request
        .extensions()
        .get::<grpc::Peer>()
        .and_then(|peer| peer.id.as_ref())
    {
        Some(PeerId::Service { .. }) => Ok(()),
        _ => Err(Status::permission_denied(
            "links are changed by services and the operator",
        )),
    }
}

pub async fn serve(
    services: &mut Services,
    start: &Start,
    links: Links,
) -> Result<SocketAddr, Failure> {
    let identity = Identity::load(&start.service("links")?).map_err(Failure::other)?;
    let listener = grpc::bind(SocketAddr::from(([127, 0, 0, 1], 0)), "links").await?;
    let context = services.start("links", Stage::Outside, |context| async move {
        let routes = tonic::service::Routes::new(LinkServiceServer::new(links));
        let tls = identity.server_config(true, &[b"h2"]);
        grpc::serve_routes(listener, "grpc", routes, Some(tls), &context)
            .await
            .map_err(Failure::other)
    });
    services.address(&context, "grpc").await
}
