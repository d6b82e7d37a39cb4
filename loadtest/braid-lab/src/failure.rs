//! Why a measurement could not be made.

use std::fmt;

#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    pub fn other(reason: impl fmt::Display) -> Failure {
        Failure(reason.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An event loop for one measurement.
pub fn block_on<F: Future>(main: F) -> Result<F::Output, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::other(format!("event loop: {error}")))?;
    let output = runtime.block_on(main);
    // Blocking work that is still under way must not delay the exit.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    Ok(output)
}
