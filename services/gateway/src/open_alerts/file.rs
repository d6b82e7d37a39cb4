//! The list of open alerts on disk: one sealed file, replaced as a whole.

use std::{io, sync::Arc};

use prost::Message;
use service_kit::Shutdown;
use tokio::sync::Mutex;

use super::{OPEN_MAX, OpenAlert, OpenAlerts};
use crate::{
    journal::{Disk, DiskFile},
    sealing::Unopened,
};

const FILE: &str = "alerts";
const FILE_NEW: &str = "alerts.new";
/// A longer file is damage: [`OPEN_MAX`] alerts of a few kilobytes.
const FILE_BYTES_MAX: usize = 8 << 20;
const CHECKSUM_BYTES: usize = 4;

#[derive(Clone, PartialEq, prost::Message)]
struct Stored {
    #[prost(message, repeated, tag = "1")]
    alerts: Vec<OpenAlert>,
}

/// Clones are the same.
#[derive(Debug)]
pub struct AlertsFile<D>(Arc<Mutex<Kept<D>>>);

/// One writer at a time.
#[derive(Debug)]
struct Kept<D> {
    /// `None`: the file is closed, and another gateway may open it.
    disk: Option<D>,
    /// The change that is on disk.
    written: u64,
}

impl<D> Clone for AlertsFile<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<D: Disk> AlertsFile<D> {
    /// The file and what it has. A damaged file costs the marks of acknowledgements and the alerts
    /// that are over. The states of the rules have the active ones. Blocks on the disk.
    pub fn open(disk: D) -> io::Result<(Self, Vec<OpenAlert>)> {
        let stored = match disk.list()?.iter().any(|name| name == FILE) {
            true => read(&disk)?,
            false => Vec::new(),
        };
        let kept = Kept {
            disk: Some(disk),
            written: 0,
        };
        Ok((Self(Arc::new(Mutex::new(kept))), stored))
    }

    /// Returns once the present list is on disk, or the disk has refused it.
    pub async fn keep(&self, alerts: &OpenAlerts) {
        let mut kept = Arc::clone(&self.0).lock_owned().await;
        let (change, stored) = alerts.stored();
        if kept.written == change {
            return;
        }
        let written = tokio::task::spawn_blocking(move || {
            if let Some(disk) = &kept.disk {
                write(disk, &stored)?;
                kept.written = change;
            }
            Ok(())
        });
        if let Err(error) = written.await.map_err(io::Error::other).flatten() {
            metrics::counter!("braid_gateway_local_alerts_failed_total").increment(1);
            tracing::warn!(%error, "the list of open alerts is not kept; a restart shows those of the rules");
        }
    }

    /// Keeps each change until shutdown.
    pub async fn follow(self, alerts: OpenAlerts, shutdown: Shutdown) {
        let mut changes = alerts.changes();
        loop {
            self.keep(&alerts).await;
            tokio::select! {
                () = shutdown.requested() => return,
                changed = changes.changed() => if changed.is_err() {
                    return;
                },
            }
        }
    }

    /// Keeps the last list and gives the disk free.
    pub async fn close(&self, alerts: &OpenAlerts) {
        self.keep(alerts).await;
        self.0.lock().await.disk = None;
    }
}

fn write<D: Disk>(disk: &D, alerts: &[OpenAlert]) -> io::Result<()> {
    let stored = Stored {
        alerts: alerts.to_vec(),
    };
    let body = stored.encode_to_vec();
    let mut bytes = crc32fast::hash(&body).to_le_bytes().to_vec();
    bytes.extend(body);
    let bytes = disk.keys().seal(FILE, &bytes)?;
    let mut file = disk.create(FILE_NEW)?;
    file.append(&bytes)?;
    file.sync()?;
    disk.rename(FILE_NEW, FILE)?;
    disk.sync_directory()
}

fn read<D: Disk>(disk: &D) -> io::Result<Vec<OpenAlert>> {
    let stored = disk.read_at(FILE, 0, FILE_BYTES_MAX)?;
    let bytes = match disk.keys().unseal(FILE, stored) {
        // Nothing begins with no checksum.
        Err(Unopened::Damaged) => Vec::new(),
        unsealed => unsealed?,
    };
    let stored = bytes
        .split_first_chunk::<CHECKSUM_BYTES>()
        .filter(|(checksum, body)| crc32fast::hash(body) == u32::from_le_bytes(**checksum))
        .and_then(|(_, body)| Stored::decode(body).ok());
    let Some(stored) = stored else {
        tracing::warn!("the list of open alerts cannot be read; the states of the rules count");
        return Ok(Vec::new());
    };
    Ok(stored.alerts.into_iter().take(OPEN_MAX).collect())
}
