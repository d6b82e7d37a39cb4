//! The material of an identity, read again when its files change.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;

use super::files::Material;
use super::{IdentityError, IdentityFiles};

pub(super) struct Source {
    pub(super) provider: Arc<CryptoProvider>,
    pub(super) files: IdentityFiles,
    reload_interval: Duration,
    state: Mutex<State>,
}

struct State {
    looked: Instant,
    stamp: [SystemTime; 3],
    material: Material,
}

impl Source {
    /// Reads the files for the first time.
    pub(super) fn load(
        files: &IdentityFiles,
        reload_interval: Duration,
    ) -> Result<Source, IdentityError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let stamp = files.stamp()?;
        let material = files.load(&provider)?;
        Ok(Source {
            provider,
            files: files.clone(),
            reload_interval,
            state: Mutex::new(State {
                looked: Instant::now(),
                stamp,
                material,
            }),
        })
    }

    pub(super) fn certified(&self) -> Arc<CertifiedKey> {
        self.refreshed().certified
    }

    pub(super) fn roots(&self) -> Arc<RootCertStore> {
        self.refreshed().roots
    }

    pub(super) fn roots_of_clients(&self) -> Arc<RootCertStore> {
        self.refreshed().roots_of_clients
    }

    /// Files that cannot be loaded (for example half of a renewal) leave the last good set in
    /// force.
    fn refreshed(&self) -> Material {
        let mut state = self.state.lock();
        let now = Instant::now();
        if now.saturating_duration_since(state.looked) >= self.reload_interval {
            state.looked = now;
            match self.reload(state.stamp) {
                Ok(None) => {}
                Ok(Some((stamp, material))) => {
                    tracing::info!(cert = %self.files.cert.display(), "certificates reloaded");
                    metrics::counter!("braid_identity_reloads_total", "outcome" => "ok")
                        .increment(1);
                    state.stamp = stamp;
                    state.material = material;
                }
                Err(error) => {
                    tracing::warn!(%error, "certificates not reloaded, the previous ones stay in force");
                    metrics::counter!("braid_identity_reloads_total", "outcome" => "failed")
                        .increment(1);
                }
            }
        }
        state.material.clone()
    }

    fn reload(
        &self,
        known: [SystemTime; 3],
    ) -> Result<Option<([SystemTime; 3], Material)>, IdentityError> {
        let stamp = self.files.stamp()?;
        if stamp == known {
            return Ok(None);
        }
        Ok(Some((stamp, self.files.load(&self.provider)?)))
    }
}
