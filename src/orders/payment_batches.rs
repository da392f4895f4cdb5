//! Payments of one sale that arrive at the same time are applied in one transaction, because a transaction costs about as
//! much as what is in it: before a deadline thousands come within seconds. No sale waits for another.

use std::collections::{BTreeSet, HashMap, HashSet};

use tokio::sync::oneshot;

use super::changes::OrderError;
use super::payments::{PaymentError, Payments, act_request};
use crate::domain::{Act, OrderId, OrderStatus, SaleId, UserId};
use crate::lease::COMMIT_MARGIN;
use crate::link::KeyedBatches;
use crate::store::{Change, NewPayment, OrderRow, Payment, PaymentKind, StoreError};

/// Payments in a transaction.
const TOGETHER: usize = 64;

/// Transactions of a sale at a time: while one waits for its commit, the next is prepared.
const TRANSACTIONS: usize = 2;

/// Events of a sale that are applied singly at a time. With many more, each would wait for a connection so often that none
/// is done before its provider gives up.
const SINGLY: usize = 16;

/// The same for payments whose batch met a locked row. A sale in which everything is locked must leave connections to the
/// others.
const BEHIND_A_LOCK: usize = 2;

/// Receives payments. Cheap to clone.
#[derive(Clone)]
pub struct PaymentBatches {
    payments: Payments,
    together: KeyedBatches<SaleId, Waiting>,
    singly: KeyedBatches<SaleId, Waiting>,
    behind_a_lock: KeyedBatches<SaleId, Waiting>,
}

/// A payment whose provider waits for the answer.
struct Waiting {
    payment: Payment,
    answer: oneshot::Sender<Result<Payment, PaymentError>>,
}

impl PaymentBatches {
    /// Connects to nothing.
    pub fn of(payments: Payments) -> Self {
        Self {
            payments,
            together: KeyedBatches::new(TOGETHER, TRANSACTIONS),
            singly: KeyedBatches::new(1, SINGLY),
            behind_a_lock: KeyedBatches::new(1, BEHIND_A_LOCK),
        }
    }

    /// Takes a verified event, with the contract of [`Payments::receive`]. If the caller stops waiting, the event may still
    /// be applied.
    pub async fn receive(&self, payment: &Payment) -> Result<Payment, PaymentError> {
        let (answer, answered) = oneshot::channel();
        let (this, waiting) = (self.clone(), Waiting { payment: payment.clone(), answer });
        self.together.put(payment.sale.clone(), waiting, move |batch| {
            let this = this.clone();
            async move { this.apply(batch).await }
        });
        let given_up = |_| Err(StoreError::Away("the batch of this payment was given up".into()).into());
        answered.await.unwrap_or_else(given_up)
    }

    /// Applies and answers what can be applied together. Whatever else there is goes singly, later.
    async fn apply(&self, batch: Vec<Waiting>) {
        // A provider that no longer waits sends its event again.
        let batch: Vec<Waiting> = batch.into_iter().filter(|waiting| !waiting.answer.is_closed()).collect();
        let Some(sale) = batch.first().map(|first| first.payment.sale.clone()) else { return };
        let payments: Vec<&Payment> = batch.iter().map(|waiting| &waiting.payment).collect();
        let (applied, others) = match self.apply_together(&sale, &payments).await {
            Ok(applied) => (applied, &self.singly),
            Err(error) => {
                tracing::debug!(%sale, payments = payments.len(), %error, "payments go singly");
                let locked = matches!(error, OrderError::Store(StoreError::Locked(_)));
                (Vec::new(), if locked { &self.behind_a_lock } else { &self.singly })
            }
        };
        let ready = match applied.as_slice() {
            [] => Ok(()),
            applied => self.payments.before_the_answer(&sale, applied).await,
        };
        let mut applied: HashMap<_, _> =
            applied.into_iter().map(|payment| (key(&payment), payment)).collect();
        for waiting in batch {
            match applied.remove(&key(&waiting.payment)) {
                Some(payment) => drop(waiting.answer.send(ready.clone().map(|()| payment))),
                None => self.put_singly(waiting, others),
            }
        }
    }

    fn put_singly(&self, waiting: Waiting, queue: &KeyedBatches<SaleId, Waiting>) {
        let payments = self.payments.clone();
        queue.put(waiting.payment.sale.clone(), waiting, move |one| {
            let payments = payments.clone();
            async move {
                for Waiting { payment, answer } in one {
                    if !answer.is_closed() {
                        let _ = answer.send(payments.receive(&payment).await);
                    }
                }
            }
        });
    }

    /// Applies those payments that are new, whose order awaits payment, and whose user's lease is free, in one
    /// transaction. On `Ok` those that are returned are durable in the database, and nothing was done about any other.
    async fn apply_together(&self, sale: &SaleId, payments: &[&Payment]) -> Result<Vec<Payment>, OrderError> {
        let Payments { store, orders, .. } = &self.payments;
        let ids: BTreeSet<OrderId> = payments.iter().map(|payment| payment.order).collect();
        let ids: Vec<OrderId> = ids.into_iter().collect();
        let known = store.payments_of(&ids).await?;
        let rows = store.orders_by_id(&ids).await?.into_iter();
        let mut rows: HashMap<OrderId, OrderRow> = rows.map(|row| (row.order.id, row)).collect();
        // Of two events for one order, the second goes singly.
        let new = payments.iter().filter(|payment| !known.contains_key(&payment.order));
        let ready: Vec<(&Payment, OrderRow)> = new
            .filter_map(|payment| Some((*payment, rows.remove(&payment.order)?)))
            .filter(|(payment, row)| is_plain(payment, row))
            .collect();
        let users: BTreeSet<&UserId> = ready.iter().map(|(_, row)| &row.order.user).collect();
        if users.is_empty() {
            return Ok(Vec::new());
        }
        let taken = orders.leases_that_are_free(sale, &users).await?;
        let Some(guard) = taken.guard else { return Ok(Vec::new()) };
        let held: HashSet<&UserId> =
            users.into_iter().zip(taken.held).filter(|(_, held)| *held).map(|(user, _)| user).collect();
        let new = ready.iter().filter(|(_, row)| held.contains(&row.order.user));
        let new = new.map(|(payment, row)| new_payment(payment, row, guard.token())).collect();
        let may_commit = || guard.is_valid_for(COMMIT_MARGIN);
        let applied = store.apply_new_payments(new, &may_commit).await?;
        // Only after COMMIT, so that the next holder of a user's lease sees the new state.
        let _ = guard.release().await;
        for payment in &applied {
            metrics::counter!("doorbuster_payments_ended_total", "state" => payment.state.as_str())
                .increment(1);
        }
        Ok(applied)
    }
}

/// Whether this is the payment of an order that awaits it, without anything that has to be decided first.
fn is_plain(payment: &Payment, row: &OrderRow) -> bool {
    payment.kind == PaymentKind::Paid
        && row.status == OrderStatus::Confirmed
        && row.order.sale == payment.sale
        && payment.user.as_ref().is_none_or(|user| row.order.user == *user)
}

fn new_payment(payment: &Payment, row: &OrderRow, fence: i64) -> NewPayment {
    let change = Change { id: row.order.id, act: Act::Pay, asked: act_request(payment), fence };
    NewPayment { payment: payment.clone(), change }
}

/// What tells events apart.
fn key(payment: &Payment) -> (String, String) {
    (payment.provider.clone(), payment.event_id.clone())
}
