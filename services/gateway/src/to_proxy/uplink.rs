//! How connections to the core come about.

use std::{collections::BTreeMap, io};

use http::uri::Authority;
use service_kit::{
    grpc::{ChannelError, channel_over},
    tls::Identity,
};
use tokio::sync::broadcast;
use tonic::transport::Channel;
use tunnel::{CopyNumber, PathSnapshot, PathState, Tunnel, TunnelEvent, Urgency};

pub trait Uplink: Send + Sync + 'static {
    /// A fresh connection to `url`, never one that an earlier call returned. `copy`: it carries the
    /// copies with this number.
    fn channel(
        &self,
        url: &str,
        urgency: Urgency,
        copy: Option<&CopyNumber>,
    ) -> Result<Channel, ChannelError>;
    fn events(&self) -> broadcast::Receiver<TunnelEvent>;
    fn paths(&self) -> Vec<PathSnapshot>;
    /// The access networks by name, and whether a path over each answers.
    fn accesses(&self) -> Vec<(String, bool)> {
        by_access(&self.paths(), &[])
    }
}

/// `known`: access networks that may have no path.
fn by_access(paths: &[PathSnapshot], known: &[String]) -> Vec<(String, bool)> {
    let known = known.iter().map(|name| (name.clone(), false));
    let mut accesses: BTreeMap<String, bool> = known.collect();
    for path in paths {
        let name = match path.name.is_empty() {
            true => format!("path-{}", path.path_id),
            false => path.name.clone(),
        };
        let answers = matches!(path.state, PathState::Available | PathState::Backup);
        // A closed path of an access that is gone is no access.
        if answers || accesses.contains_key(&name) || path.state != PathState::Closed {
            *accesses.entry(name).or_default() |= answers;
        }
    }
    accesses.into_iter().collect()
}

/// Connects through CONNECT streams of a tunnel, with TLS of the gateway's certificate inside. The
/// tunnels are not resumable. A courier whose path died opens a fresh one and replays from its
/// journal. A resumed tunnel would repeat its old bytes before the next alert.
pub struct Through {
    pub tunnel: Tunnel,
    pub identity: Identity,
}

impl Uplink for Through {
    fn channel(
        &self,
        url: &str,
        urgency: Urgency,
        copy: Option<&CopyNumber>,
    ) -> Result<Channel, ChannelError> {
        let tunnel = self.tunnel.clone();
        let copy = copy.cloned();
        channel_over(url, Some(&self.identity), move |host, port| {
            let (tunnel, copy) = (tunnel.clone(), copy.clone());
            async move {
                let authority: Authority = format!("{host}:{port}")
                    .parse()
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
                let opened = match &copy {
                    Some(copy) => tunnel.open_copied_tcp(&authority, urgency, copy).await,
                    None => tunnel.open_plain_tcp(&authority, urgency).await,
                };
                opened.map_err(io::Error::from)
            }
        })
    }

    fn events(&self) -> broadcast::Receiver<TunnelEvent> {
        self.tunnel.events()
    }

    fn paths(&self) -> Vec<PathSnapshot> {
        self.tunnel.paths()
    }

    fn accesses(&self) -> Vec<(String, bool)> {
        by_access(&self.tunnel.paths(), &self.tunnel.accesses())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_is_up_while_one_of_its_paths_answers() {
        let path = |name: &str, state| PathSnapshot {
            name: name.into(),
            state,
            ..PathSnapshot::default()
        };
        let paths = [
            path("lte", PathState::Closed),
            path("lte", PathState::Available),
            path("wifi", PathState::Suspect),
            path("gone", PathState::Closed),
        ];
        let known = ["wifi".to_owned(), "satellite".to_owned()];
        let accesses = by_access(&paths, &known);
        let shown: Vec<_> = accesses.iter().map(|it| (it.0.as_str(), it.1)).collect();
        assert_eq!(
            shown,
            [("lte", true), ("satellite", false), ("wifi", false)]
        );
    }
}
