//! The tasks of a process: each runs until all are asked to stop. One that ends earlier is a bug, and the process
//! must not live on without it: it would look alive and do nothing.

use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// A task ended without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum TaskEnded {
    /// It returned.
    #[error("{0} has ended")]
    Returned(&'static str),
    /// It panicked.
    #[error("a task has failed: {0}")]
    Failed(JoinError),
}

/// Aborts the remaining tasks when it is dropped.
pub(super) struct Tasks {
    set: JoinSet<&'static str>,
    stop: CancellationToken,
}

impl Tasks {
    pub(super) fn new() -> Self {
        Self { set: JoinSet::new(), stop: CancellationToken::new() }
    }

    /// Cancelled when the tasks should stop.
    pub(super) fn stop_token(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Starts `work` on the runtime. The name appears in the error if it ends too early.
    pub(super) fn spawn(&mut self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        // Boxed before it is moved: unoptimised code copies it in every frame on its way.
        let work = Box::pin(work);
        self.set.spawn(async move {
            work.await;
            name
        });
    }

    /// Returns when the first task has ended.
    pub(super) async fn first_ended(&mut self) -> TaskEnded {
        match self.set.join_next().await {
            Some(Ok(name)) => TaskEnded::Returned(name),
            Some(Err(error)) => TaskEnded::Failed(error),
            None => std::future::pending().await,
        }
    }

    /// Asks all tasks to stop and waits for them; after `drain`, aborts those still running.
    pub(super) async fn stop(&mut self, drain: Duration) {
        self.stop.cancel();
        let all = async { while self.set.join_next().await.is_some() {} };
        // The listeners drain within the same limit; the extra second lets them log what was left.
        if tokio::time::timeout(drain + Duration::from_secs(1), all).await.is_ok() {
            tracing::info!("stopped, no work in progress");
            return;
        }
        tracing::warn!(
            tasks = self.set.len(),
            after = ?drain,
            "stopped with work in progress; unacknowledged orders will be redelivered"
        );
        // Joined as well as aborted, so that everything a task holds has been released.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.set.shutdown()).await;
    }
}
