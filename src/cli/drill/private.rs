//! A drill on a private stack, which is removed afterwards.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::cli::ended::Failed;
use crate::cli::stack::Stack;
use crate::process::{Sources, signal};
use crate::rehearsal::drill::{self, DrillError, Plan, Progress, Report, Target};
use crate::rehearsal::servers::{Ending, Folder};

/// How long the front may take to connect to a broker that is up.
const CONNECT_WITHIN: Duration = Duration::from_secs(60);

/// Starts everything in a temporary folder, runs the drill, and stops everything.
pub(in crate::cli) async fn on_private_stack(
    sources: &Sources,
    plan: &Plan,
    progress: &Progress,
) -> Result<Report, Failed> {
    let work = async |target: &Target, stop: &_| Box::pin(drill::run(target, plan, progress, stop)).await;
    with_private_stack(sources, progress, work).await
}

/// The same with other work.
pub(super) async fn with_private_stack<T>(
    sources: &Sources,
    progress: &Progress,
    work: impl AsyncFnOnce(&Target, &CancellationToken) -> Result<T, DrillError>,
) -> Result<T, Failed> {
    let stop = signal::stop_token();
    let mut stack = Stack::start(&any_port(sources), Folder::ephemeral()?).await?;
    progress.say("starting the broker");
    let broker = stop.run_until_cancelled(stack.broker_is_up()).await;
    let result = match broker {
        Some(Ok(())) => {
            let target = stack.target()?;
            let result = stop.run_until_cancelled(async {
                stack.running.publisher_is_up(CONNECT_WITHIN).await?;
                Ok(work(&target, &stop).await?)
            });
            result.await.unwrap_or(Err(DrillError::Interrupted.into()))
        }
        Some(Err(error)) => Err(error),
        None => Err(DrillError::Interrupted.into()),
    };
    stack.stop(Ending::AtOnce).await;
    result
}

/// Chooses free ports, so that a drill does not collide with a stack on the usual ones.
fn any_port(sources: &Sources) -> Sources {
    let mut sources = sources.clone();
    for key in ["front.listen", "operations.listen"] {
        if !sources.overrides.iter().any(|pair| pair.starts_with(key)) {
            sources.overrides.push(format!("{key}=127.0.0.1:0"));
        }
    }
    sources
}
