//! A rolling upgrade: the processes begin as another build, and become this one while the sales go on.

use std::time::Duration;

use rustix::process::Signal;

use super::layout::PROCESSES;
use super::missed::Missed;
use super::operator;
use super::stack::Stack;

/// Upgrades one half of the processes, a front and a worker. The first half upgrades the tables before.
pub(super) async fn upgrade(stack: &Stack, half: usize) -> Result<(), Missed> {
    if half == 0 {
        operator::migrate(stack, None).await?;
    }
    for nth in (0..PROCESSES.len()).filter(|nth| nth % 2 == half) {
        stack.upgrade(nth);
        // One that is down comes back as this build.
        let _ = stack.restart(nth, Signal::TERM).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}
