//! Attempts that wait at the same time go to Redis together. A lone attempt does not wait: the
//! batch is whatever has arrived while the calls before it were under way.

use std::collections::HashMap;

use tokio::sync::{mpsc, oneshot};

use super::{Gate, GateError};
use crate::domain::{Attempt, SaleId, Verdict};
use crate::link::work_together;

/// Script calls under way at once. Redis runs one at a time; the second keeps it busy while the
/// first one's answers are read. More would only make the batches smaller.
const CALLS: usize = 2;

struct Waiting {
    attempt: Attempt,
    answer: oneshot::Sender<Result<Verdict, GateError>>,
}

#[derive(Clone)]
pub(super) struct Handle {
    inbox: mpsc::Sender<Waiting>,
}

pub(super) struct Inbox(mpsc::Receiver<Waiting>);

impl Handle {
    pub(super) fn new(backlog: usize) -> (Self, Inbox) {
        let (inbox, receiver) = mpsc::channel(backlog);
        (Self { inbox }, Inbox(receiver))
    }

    pub(super) async fn admit(&self, attempt: Attempt) -> Result<Verdict, GateError> {
        let (answer, verdict) = oneshot::channel();
        self.inbox.try_send(Waiting { attempt, answer }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                GateError::Full("too many attempts wait for the gate".into())
            }
            mpsc::error::TrySendError::Closed(_) => GateError::Unavailable("stopping".into()),
        })?;
        // The answer's sender lives until the script call has ended: a lost one is a bug's doing,
        // and then the script may have run.
        verdict.await.unwrap_or_else(|_| Err(GateError::Late("the call was abandoned".into())))
    }
}

/// Ends when the last handle is gone.
pub(super) fn spawn(gate: &Gate, inbox: Inbox) {
    // The task must not hold a handle itself, or its inbox would never close.
    let mut gate = gate.clone();
    gate.batcher = Handle::new(1).0;
    let most = gate.settings.batch;
    tokio::spawn(work_together(inbox.0, most, CALLS, move |batch| decide(gate.clone(), batch)));
}

async fn decide(gate: Gate, batch: Vec<Waiting>) {
    let mut sales: HashMap<SaleId, (Vec<Attempt>, Vec<_>)> = HashMap::new();
    for waiting in batch {
        let lane = sales.entry(waiting.attempt.sale.clone()).or_default();
        lane.0.push(waiting.attempt);
        lane.1.push(waiting.answer);
    }
    let gate = &gate;
    let calls = sales.into_iter().map(|(sale, (attempts, answers))| async move {
        match gate.admit_all(&sale, &attempts).await {
            Ok(verdicts) => {
                for (answer, verdict) in answers.into_iter().zip(verdicts) {
                    // A buyer who hung up does not matter: the order is in the outbox.
                    let _ = answer.send(verdict);
                }
            }
            Err(error) => {
                for answer in answers {
                    let _ = answer.send(Err(error.clone()));
                }
            }
        }
    });
    futures_util::future::join_all(calls).await;
}
