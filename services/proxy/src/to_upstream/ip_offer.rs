//! The offer of IP while its TUN device cannot be used. The proxy serves everything else meanwhile,
//! says so in its readiness, and tries again.

use std::{
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use host_network::TunError;
use service_kit::{Warning, WarningHandle, tls::GatewayId};
use tokio::{sync::watch, task::JoinHandle};
use tunnel::{ConnectRequest, StatusCode};

use super::{
    counted::count_connect,
    ip::{IpSettings, IpUpstream},
};
use crate::policy::Policy;

/// Pause before a device that could not be used is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(crate) struct IpOffer {
    opened: OnceLock<Arc<IpUpstream>>,
}

impl IpOffer {
    /// Opens the device, or goes on trying. The task hands out its packets, and never ends.
    pub(crate) async fn start(
        self: Arc<Self>,
        settings: impl Fn() -> Option<IpSettings> + Send + 'static,
        policy: watch::Receiver<Arc<Policy>>,
        warning: WarningHandle,
    ) -> JoinHandle<()> {
        self.open(settings(), &policy, &warning).await;
        tokio::spawn(async move {
            loop {
                if let Some(ip) = self.opened() {
                    ip.clone().hand_out(warning).await;
                    return;
                }
                tokio::time::sleep(AGAIN_AFTER).await;
                self.open(settings(), &policy, &warning).await;
            }
        })
    }

    async fn open(
        &self,
        settings: Option<IpSettings>,
        policy: &watch::Receiver<Arc<Policy>>,
        warning: &WarningHandle,
    ) {
        let Some(settings) = settings else { return };
        let tun = settings.tun.clone();
        match IpUpstream::open(settings, policy.clone()).await {
            Ok(ip) => {
                // Opened only here.
                let _ = self.opened.set(ip);
                warning.set(None);
            }
            Err(error) => warning.set(Some(Warning {
                says: format!("gateways have no IP, all else goes on: {error}"),
                to_do: to_do(&error, &tun),
            })),
        }
    }

    /// The device, once it is open.
    pub(super) fn opened(&self) -> Option<&Arc<IpUpstream>> {
        self.opened.get()
    }

    /// The gateway is revoked: its addresses are free.
    pub(crate) fn forget(&self, gateway: &GatewayId) {
        if let Some(ip) = self.opened() {
            ip.forget(gateway);
        }
    }

    pub(super) async fn serve(&self, gateway: &GatewayId, request: ConnectRequest) {
        match self.opened() {
            Some(ip) => ip.serve(gateway, request).await,
            None => {
                count_connect("no_device");
                request.refuse(StatusCode::SERVICE_UNAVAILABLE).await;
            }
        }
    }
}

fn to_do(error: &TunError, tun: &str) -> String {
    match error {
        TunError::Open { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            format!(
                "make {tun} with `braid tun` as root, and let the proxy's user open /dev/net/tun \
                 (chmod 666 /dev/net/tun)"
            )
        }
        TunError::Open { .. } | TunError::Keep { .. } => {
            format!("load the kernel's module tun, give the proxy /dev/net/tun, and make {tun}")
        }
        TunError::Down { .. } => format!("ip link set {tun} up"),
        TunError::Configure { .. } | TunError::Taken { .. } | TunError::Netlink(_) => {
            format!("make {tun} with `braid tun`, or give the proxy NET_ADMIN")
        }
    }
}
