//! The socket on which a running `braid up` receives episodes for its patients.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use service_kit::Shutdown;
use swarm::Episode;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use crate::episode::{DONE, SOCKET};
use crate::process::Failure;

/// Bytes of a request; a longer request is refused.
const REQUEST_BYTES_MAX: u64 = 512;
/// Longest time of one request; then its connection is closed.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);

/// Episodes by patient: the worn device, and the channel to its feed.
pub type Triggers = BTreeMap<String, (String, mpsc::Sender<(String, Episode)>)>;

/// Listens until shutdown is requested. The data directory belongs to this process, so an existing
/// socket is left from a dead one.
pub fn serve(data: &Path, triggers: Triggers, shutdown: Shutdown) -> Result<(), Failure> {
    let path = data.join(SOCKET);
    let failed = |error: std::io::Error| Failure::other(format!("{}: {error}", path.display()));
    if let Err(error) = fs::remove_file(&path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(failed(error));
    }
    let listener = UnixListener::bind(&path).map_err(failed)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let triggers = Arc::new(triggers);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = shutdown.requested() => return,
                accepted = listener.accept() => match accepted {
                    // One request at a time, each with at most REQUEST_LIMIT.
                    Ok((stream, _)) => {
                        let _ = tokio::time::timeout(REQUEST_LIMIT, answer(stream, &triggers)).await;
                    }
                    Err(error) => tracing::warn!(%error, "a request for an episode could not be read"),
                },
            }
        }
    });
    Ok(())
}

async fn answer(stream: UnixStream, triggers: &Triggers) -> std::io::Result<()> {
    let (reading, mut writing) = stream.into_split();
    let mut request = String::new();
    BufReader::new(reading.take(REQUEST_BYTES_MAX))
        .read_line(&mut request)
        .await?;
    let answer = match begin(request.trim(), triggers) {
        Ok(()) => DONE.to_owned(),
        Err(reason) => reason,
    };
    writing.write_all(format!("{answer}\n").as_bytes()).await
}

fn begin(request: &str, triggers: &Triggers) -> Result<(), String> {
    let (patient, episode) = request
        .split_once(' ')
        .ok_or("a request is a patient and an episode")?;
    let episode: Episode = match episode.parse() {
        Ok(episode) => episode,
        Err(error) => return Err(format!("{error}")),
    };
    let (device, feed) = triggers.get(patient).ok_or_else(|| {
        let known: Vec<&str> = triggers.keys().map(String::as_str).collect();
        format!(
            "no patient {patient:?} is simulated here; there are {}",
            known.join(", ")
        )
    })?;
    feed.try_send((device.clone(), episode))
        .map_err(|_| "the patient has the largest number of waiting episodes".to_owned())
}
