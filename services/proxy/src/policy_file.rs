//! Reads the policy's file, and reads it again when its content has changed.
//!
//! A file that cannot be read or obeyed leaves the policy before it in force, with a warning.

use std::{sync::Arc, time::Duration};

use service_kit::{Shutdown, Warning, WarningHandle};
use tokio::sync::watch;

use crate::{
    config::{Config, read_policy},
    policy::Policy,
};

/// Interval of looks at the file.
const LOOK: Duration = Duration::from_secs(1);

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
            let read = tokio::task::spawn_blocking(move || read_policy(path.as_ref())).await;
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
