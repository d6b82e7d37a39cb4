//! The resources that tasks of a gateway share, opened in the order in which one needs the other.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use service_kit::{
    ConfigError, Context,
    tls::{GatewayId, Identity, PeerId},
};
use tokio::{net::TcpListener, sync::watch};
use tunnel::{Interface, Tunnel, Urgency, steering_rules::Document};

use crate::{
    Config, RunError,
    alarms::Alarms,
    from_applications,
    steering::{Flows, InForce, Kept},
    to_dashboard::CertificateError,
    to_path_telemetry::JournalsWaiting,
    to_proxy::{self, Through, Uplink},
};

pub(crate) struct Resources {
    pub(crate) gateway: String,
    pub(crate) tunnel: Tunnel,
    pub(crate) uplink: Arc<dyn Uplink>,
    /// Bound listeners for applications, each with the urgency of its streams.
    pub(crate) listeners: Vec<(TcpListener, Urgency)>,
    pub(crate) in_force: watch::Sender<Arc<InForce>>,
    pub(crate) kept: Kept,
    pub(crate) flows: Flows,
    pub(crate) alarms: Alarms,
    /// Longest wait of vitals that the steering document gives this gateway; `None`: its own flag.
    pub(crate) freshness: watch::Sender<Option<Duration>>,
    pub(crate) journals: JournalsWaiting,
}

impl Resources {
    /// `None`: shutdown was requested before the gateway had a certificate.
    pub(crate) async fn open(
        config: &Config,
        interfaces: Option<Vec<Interface>>,
        context: &Context,
    ) -> Result<Option<Self>, RunError> {
        let Some(identity) = open_identity(config, context).await? else {
            return Ok(None);
        };
        let gateway = match identity.peer_id()? {
            PeerId::Gateway(gateway) => gateway,
            other => return Err(RunError::NotAGateway(other)),
        };
        let listeners = from_applications::bind(config, context).await?;
        let tunnel = to_proxy::start(config, &identity, interfaces, context).await?;
        let (in_force, kept) = open_steering(config, &gateway)?;
        // Known before anything is uploaded, also at a start without a network.
        let freshness = in_force.borrow().document.freshness_of(&gateway.id);
        let uplink = Arc::new(Through {
            tunnel: tunnel.clone(),
            identity,
        });
        Ok(Some(Self {
            gateway: gateway.id,
            tunnel,
            uplink,
            listeners,
            in_force,
            kept,
            flows: Flows::default(),
            alarms: Alarms::default(),
            freshness: watch::Sender::new(freshness),
            journals: JournalsWaiting::default(),
        }))
    }
}

/// The certificate of this gateway: enrolled at the first start, and renewed while the gateway
/// runs.
async fn open_identity(config: &Config, context: &Context) -> Result<Option<Identity>, RunError> {
    // A renewal that a crash interrupted is completed before the files are read.
    service_kit::tls::renewal::finish(&config.identity).map_err(CertificateError::from)?;
    if let Some(token) = &config.enrol
        && !config
            .certificate_client()
            .enrol(token, context.shutdown())
            .await?
    {
        return Ok(None);
    }
    let identity = Identity::load(&config.identity)?;
    let validity = crate::validity::watch(
        identity.clone(),
        SystemTime::now,
        context.health().check("certificate"),
        context.shutdown().clone(),
    );
    context.tasks().spawn(validity);
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
    Ok(Some(identity))
}

/// The steering document that holds at the start: the one that path-telemetry handed out last, or
/// the file of the configuration.
fn open_steering(
    config: &Config,
    gateway: &GatewayId,
) -> Result<(watch::Sender<Arc<InForce>>, Kept), RunError> {
    let own = match &config.steering {
        Some(file) => InForce {
            version: 0,
            document: read_steering(file)?.for_gateway(&gateway.id),
        },
        None => InForce::default(),
    };
    // Without sensors nothing else makes the folder. Traffic needs none of its files.
    if let Err(error) = private_files::folder(&config.data_dir) {
        let path = config.data_dir.display();
        tracing::warn!(%path, %error, "neither rules nor bytes of the month are kept");
    }
    let kept = Kept::new(config.data_dir.join("steering.json"), gateway.clone());
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;
    use crate::config::CommandLine;

    #[test]
    fn a_gateway_without_sensors_keeps_its_document() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().join("not/yet");
        let data_dir = data_dir.to_str().unwrap();
        let line = ["gateway", "--ingest", "", "--data-dir", data_dir];
        let config = CommandLine::parse_from(line).config;
        let gateway = GatewayId::new("default", "gw-1");
        let (_, kept) = open_steering(&config, &gateway).unwrap();
        kept.take(7, r#"{"format":1}"#).unwrap();
        let (in_force, _) = open_steering(&config, &gateway).unwrap();
        assert_eq!(in_force.borrow().version, 7);
    }
}
