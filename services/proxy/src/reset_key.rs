//! The key of stateless resets, the same after a restart of this proxy and of no other one.
//!
//! The private key of the certificate is the secret. Replicas may share it, so host name, listener
//! and server id take part.

use tunnel::{ResetKey, ServerId};

use crate::Config;

/// Where the kernel shows the host's name, which a container keeps over its restarts.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// None: clients of a crashed proxy find out by its silence.
pub(crate) fn reset_key(config: &Config, id: Option<&ServerId>) -> Option<ResetKey> {
    let read = || {
        let secret = std::fs::read(&config.identity.key)?;
        Ok::<_, std::io::Error>((secret, std::fs::read_to_string(HOST_NAME)?))
    };
    let (secret, host) = read()
        .inspect_err(|error| {
            tracing::info!(%error, "after a crash gateways notice it by silence only");
        })
        .ok()?;
    let id = id.map_or_else(String::new, ServerId::to_string);
    let server = format!("{} {} {id}", host.trim(), config.listen);
    ResetKey::derive(&secret, &server)
}
