//! Batches attempts: those that arrive while earlier script calls run go to Redis in one call. A lone attempt does
//! not wait.

use std::collections::HashMap;

use tokio::sync::{mpsc, oneshot};

use super::error::GateError;
use crate::domain::{Attempt, SaleId, Verdict};
use crate::link::work_together;

/// Concurrent script calls. Redis runs one at a time; the second keeps it busy while the answers to the first are
/// read. More calls would only make the batches smaller.
const CALLS: usize = 2;

/// The verdicts of one script call, in the order of its attempts. The outer error is that of the call, an inner one
/// that of reading one verdict.
pub(super) type Verdicts = Result<Vec<Result<Verdict, GateError>>, GateError>;

struct Waiting {
    attempt: Attempt,
    answer: oneshot::Sender<Result<Verdict, GateError>>,
}

/// Hands attempts to the batching task. The task ends with the last handle.
#[derive(Clone)]
pub(super) struct Handle {
    inbox: mpsc::Sender<Waiting>,
}

/// The receiving end, for [`spawn`].
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
                GateError::Full("too many attempts are waiting for the gate".into())
            }
            mpsc::error::TrySendError::Closed(_) => GateError::Unavailable("stopping".into()),
        })?;
        // The sender lives until the script call has ended. Only a bug drops it earlier, and then the script may
        // have run.
        verdict.await.unwrap_or_else(|_| Err(GateError::Late("the call was abandoned".into())))
    }
}

/// Starts the task that decides attempts, up to `most` together, with one call of `admit_all` per sale.
pub(super) fn spawn<F>(
    inbox: Inbox,
    most: usize,
    admit_all: impl Fn(SaleId, Vec<Attempt>) -> F + Clone + Send + Sync + 'static,
) where
    F: Future<Output = Verdicts> + Send + 'static,
{
    tokio::spawn(work_together(inbox.0, most, CALLS, move |batch| decide(batch, admit_all.clone())));
}

async fn decide<F>(batch: Vec<Waiting>, admit_all: impl Fn(SaleId, Vec<Attempt>) -> F)
where
    F: Future<Output = Verdicts>,
{
    let mut sales: HashMap<SaleId, (Vec<Attempt>, Vec<_>)> = HashMap::new();
    // The buyer of a closed one has gone, or has heard that the outcome is unknown. Another front may have said no since, and
    // that must stay true: the call's own deadline begins only now.
    for waiting in batch.into_iter().filter(|waiting| !waiting.answer.is_closed()) {
        let lane = sales.entry(waiting.attempt.sale.clone()).or_default();
        lane.0.push(waiting.attempt);
        lane.1.push(waiting.answer);
    }
    let calls = sales.into_iter().map(|(sale, (attempts, answers))| {
        let call = admit_all(sale, attempts);
        async move {
            match call.await {
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
        }
    });
    futures_util::future::join_all(calls).await;
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::sync::Semaphore;

    use super::*;
    use crate::domain::{Fingerprint, KeyDigest, OrderId, Sku};

    fn attempt(user: &str) -> Attempt {
        let sku = Sku::parse("shoe").expect("valid");
        Attempt {
            id: OrderId::generate(),
            sale: SaleId::parse("s").expect("valid"),
            user: user.parse().expect("valid"),
            fingerprint: Fingerprint::of_body(&sku, 1),
            sku,
            quantity: 1,
            key: KeyDigest::of_key(None),
            keyed: false,
        }
    }

    /// Both calls are under way when a third buyer clicks, and gives up before the gate is asked.
    #[tokio::test]
    async fn who_gave_up_in_the_queue_is_not_admitted_later() {
        let (handle, inbox) = Handle::new(10);
        let (seen, way) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Semaphore::new(0)));
        let (seen_by_gate, way_to_gate) = (seen.clone(), way.clone());
        spawn(inbox, 10, move |_, attempts: Vec<Attempt>| {
            let (seen, way) = (seen_by_gate.clone(), way_to_gate.clone());
            async move {
                seen.lock()
                    .expect("no panic")
                    .extend(attempts.iter().map(|attempt| attempt.user.to_string()));
                way.acquire().await.expect("open").forget();
                Ok(attempts.iter().map(|_| Ok(Verdict::NotLoaded)).collect())
            }
        });
        let click = |user: &str| {
            let (handle, attempt) = (handle.clone(), attempt(user));
            tokio::spawn(async move { handle.admit(attempt).await })
        };
        let mut under_way = Vec::new();
        for calls in 1..=CALLS {
            under_way.push(click(&format!("first{calls}")));
            while seen.lock().expect("no panic").len() < calls {
                tokio::task::yield_now().await;
            }
        }
        let gone = click("gone");
        tokio::task::yield_now().await;
        gone.abort();
        let _ = gone.await;
        let stays = click("stays");
        way.add_permits(10);
        stays.await.expect("no panic").expect("a verdict");
        let seen = seen.lock().expect("no panic").clone();
        assert!(!seen.contains(&"gone".to_owned()) && seen.contains(&"stays".to_owned()), "{seen:?}");
    }
}
