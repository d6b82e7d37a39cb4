//! The keys of a gateway at its start, and what becomes of them when the core revokes it.

use std::path::PathBuf;

use service_kit::{ConfigError, Context};
use tokio::task::spawn_blocking;

use crate::{
    Config, RunError,
    carers::Newest,
    journal::{Directory, Journal},
    revocation::{self, Destroying, Revocation},
    sealing::{Keys, Places, REFUSED},
    to_ingest,
};

pub(super) struct Sealed {
    pub(super) keys: Keys,
    pub(super) revocation: Revocation,
    places: Places,
    certificate: PathBuf,
}

impl Sealed {
    /// Completes a destruction that was cut short, and makes the key at the first start.
    pub(super) async fn open(config: &Config) -> Result<Self, RunError> {
        let config = config.clone();
        spawn_blocking(move || {
            let places = config.places();
            let certificate = config.identity.cert.clone();
            let digest = revocation::digest_of(&certificate);
            let is_revoked = revocation::complete(&places, &digest)?;
            let keys = config.open_keys().map_err(ConfigError::from)?;
            if !keys.seals() {
                tracing::warn!(
                    "readings are kept in clear on the disk (--journal-encrypted false)"
                );
            }
            for name in REFUSED {
                let path = config.data_dir.join(name);
                if let Err(error) = to_ingest::seal_old_letters(&path, &keys) {
                    tracing::warn!(%error, path = %path.display(), "refused samples stay in clear");
                }
            }
            Ok(Self {
                keys,
                revocation: Revocation::new(is_revoked),
                places,
                certificate,
            })
        })
        .await?
    }

    pub(super) fn destroy_when_revoked(
        self,
        journals: [Journal<Directory>; 2],
        newest: Newest,
        context: &Context,
    ) {
        let destroying = Destroying {
            revocation: self.revocation,
            keys: self.keys,
            places: self.places,
            certificate: self.certificate,
            journals,
            newest,
            check: context.health().check("revocation"),
        };
        let shutdown = context.shutdown().clone();
        context.tasks().spawn(destroying.run(shutdown));
    }
}
