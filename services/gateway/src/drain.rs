//! The end of a gateway: tasks stop in the order in which one uses the other.

use futures::future::select_all;
use tokio::task::JoinHandle;
use tunnel::Tunnel;

use crate::{RunError, serve::Journals};

/// The tasks that use the tunnel beside the couriers. A part that is not configured has no task.
pub(crate) struct TunnelTasks {
    pub(crate) packets: Option<JoinHandle<()>>,
    pub(crate) applications: Option<JoinHandle<()>>,
    pub(crate) telemetry: Option<JoinHandle<()>>,
}

impl TunnelTasks {
    /// Waits for the tasks after shutdown was requested, then closes the tunnel.
    pub(crate) async fn drain(self, tunnel: &Tunnel) -> Result<(), RunError> {
        let tasks = [self.packets, self.applications, self.telemetry];
        for task in tasks.into_iter().flatten() {
            task.await?;
        }
        tunnel.close().await;
        Ok(())
    }
}

/// The tasks that upload, and the journals that they read.
pub(crate) struct UploadTasks {
    pub(crate) couriers: [JoinHandle<()>; 2],
    pub(crate) from_memory: JoinHandle<()>,
    pub(crate) journals: Journals,
}

impl UploadTasks {
    /// Ends when a courier has panicked. Otherwise samples would be accepted until the journal is
    /// full, without a report. The process ends, and its supervisor restarts it; accepted samples
    /// are on disk.
    pub(crate) async fn failure(&mut self) -> RunError {
        match select_all(&mut self.couriers).await.0 {
            Err(failed) => RunError::Task(failed),
            Ok(()) => std::future::pending().await,
        }
    }

    /// Waits for the last attempts after shutdown was requested, then closes the journals.
    pub(crate) async fn drain(self) -> Result<(), RunError> {
        for courier in self.couriers.into_iter().filter(|it| !it.is_finished()) {
            courier.await?;
        }
        self.from_memory.await?;
        self.journals.close().await;
        Ok(())
    }
}
