//! Restarts processes that have ended, as systemd or Kubernetes would.

use std::time::Duration;

use super::layout::PROCESSES;
use super::stack::Stack;
use crate::rehearsal::servers::Child;

/// How often the processes are checked.
const EVERY: Duration = Duration::from_millis(100);

/// Runs until the stack stops.
pub(super) async fn supervise(stack: Stack) {
    while stack.stopping().run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        for (nth, verb) in PROCESSES.iter().enumerate() {
            let (ended, killed) = {
                let slots = stack.slots();
                (slots[nth].child.as_ref().is_none_or(Child::has_ended), slots[nth].killed)
            };
            if !ended || stack.stopping().is_cancelled() {
                continue;
            }
            if !killed {
                stack.record_unexpected_end(format!("{verb}-{nth} ended by itself"));
            }
            if let Err(error) = stack.start_process(nth) {
                tracing::error!(%error, process = verb, "restarting a process failed");
            }
        }
    }
}
