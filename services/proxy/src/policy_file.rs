//! Reads the policy's file, and reads it again when its content has changed.
//!
//! A file that cannot be read or obeyed leaves the policy before it in force, with a warning.

use std::{io::Read, path::PathBuf, sync::Arc, time::Duration};

use service_kit::{ConfigError, Shutdown, Warning, WarningHandle};
use tokio::sync::watch;

use crate::{
    config::Config,
    policy::{FILE_BYTES_MAX, Policy},
};

/// Interval of looks at the file.
const LOOK: Duration = Duration::from_secs(1);

/// The file's text; the empty text without a file.
pub(crate) fn read(path: Option<&PathBuf>) -> Result<String, ConfigError> {
    let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else {
        return Ok(String::new());
    };
    let refuse = |reason: String| {
        let reason = format!("{}: {reason}", path.display());
        ConfigError::new("policy", reason, "--policy policy.toml")
    };
    let file = std::fs::File::open(path).map_err(|error| refuse(error.to_string()))?;
    let mut text = String::new();
    let mut bounded = file.take(FILE_BYTES_MAX + 1);
    (bounded.read_to_string(&mut text)).map_err(|error| refuse(error.to_string()))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(refuse(format!("longer than {FILE_BYTES_MAX} bytes")));
    }
    Ok(text)
}

pub(crate) struct PolicyFile {
    pub(crate) config: Config,
    pub(crate) to: watch::Sender<Arc<Policy>>,
    pub(crate) warning: WarningHandle,
}

impl PolicyFile {
    /// Follows the file until a shutdown is requested. `known` is the text in force.
    pub(crate) async fn follow(self, mut known: String, shutdown: Shutdown) {
        let mut refused: Option<String> = None;
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = shutdown.requested() => return,
            }
            let path = self.config.policy.clone();
            let read = tokio::task::spawn_blocking(move || read(path.as_ref())).await;
            let outcome = match read {
                Ok(Ok(text)) if text == known => Ok(None),
                Ok(Ok(text)) => self.config.policy(&text).map(|policy| Some((text, policy))),
                Ok(Err(error)) => Err(error),
                // The runtime is shutting down.
                Err(_) => return,
            };
            match outcome {
                Ok(changed) => {
                    refused = None;
                    self.warning.set(None);
                    if let Some((text, policy)) = changed {
                        known = text;
                        tracing::info!("the policy has changed");
                        self.to.send_replace(Arc::new(policy));
                    }
                }
                Err(error) if refused.as_ref() != Some(&error.reason) => {
                    tracing::error!(reason = error.reason, "the policy before it stays in force");
                    self.warning.set(Some(Warning {
                        says: format!("the policy is refused: {}", error.reason),
                        to_do: "mend the file of --policy; the one before stays in force"
                            .to_owned(),
                    }));
                    refused = Some(error.reason);
                }
                Err(_) => {}
            }
        }
    }
}
