//! Runs in kernel time beside each other: they hardly need the processor, and wait.

use rayon::prelude::*;

use super::bed::KernelError;
use crate::error::LabError;

/// Makes every job on a thread of a pool of its own, so that the cores of virtual time stay free.
/// The results are in the order of the jobs.
pub(crate) fn at_once<J: Send, T: Send>(
    threads: usize,
    jobs: Vec<J>,
    run: impl Fn(J) -> Result<T, LabError> + Sync,
) -> Result<Vec<T>, LabError> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|error| KernelError::Endpoint(error.to_string()))?;
    // One job at a time: a thread that took a batch would make the last of it alone.
    let run = &run;
    pool.install(|| jobs.into_par_iter().with_max_len(1).map(run).collect())
}
