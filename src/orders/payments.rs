//! Events of payment providers. Each is durable in the database and in the order log before it is answered, takes effect
//! once, and is never dropped: a payment that is late for its order retakes a unit or is kept for refund.

use std::time::Duration;

use super::changes::{OrderError, Orders, TRIES, Target};
use super::late_payments::{LatePayments, Next};
use super::logged::{Logging, NotLogged};
use crate::domain::{Act, ActRequest, Millis, OrderId, SaleId};
use crate::gate::GateError;
use crate::intake::Intake;
use crate::lease::COMMIT_MARGIN;
use crate::queue::{OrderLog, QueueError};
use crate::store::{Applied, Applying, Payment, PaymentKind, PaymentState, Store, StoreError};

/// The shortest and the longest time until a pending event is retried. The longer it has been pending, the longer the
/// next wait.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// Why an event was not accepted.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PaymentError {
    /// The id belongs to another event; the provider has to choose a new one.
    #[error("another event of this provider has the same id")]
    Reused,
    /// The event may not be durable; the provider has to send it again.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The database has the event, but its buyer may still read the order as it was; the provider has to send it again.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The database has the event, but the order log may lack it; the provider has to send it again.
    #[error("the event may be missing in the order log: {0}")]
    NotLogged(#[source] QueueError),
}

/// What became of a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retried {
    /// The event is no longer pending.
    Ended,
    /// It is retried later.
    Pending,
    /// A row of its sale is locked by another session, so it is still due.
    Locked,
}

/// Where events are written in addition to the database.
#[derive(Clone)]
pub struct PaymentLog {
    /// The order log.
    pub log: OrderLog,
    /// Whether an event may be answered while the broker is away. Then a database that loses its last commits may lose
    /// the event for good.
    pub may_wait: bool,
}

/// Applies the events of payment providers. Cheap to clone.
#[derive(Clone)]
pub struct Payments {
    pub(super) store: Store,
    pub(super) orders: Orders,
    late: LatePayments,
    log: PaymentLog,
}

impl Payments {
    /// Connects to nothing.
    pub fn new(store: Store, orders: Orders, intake: Intake, log: PaymentLog) -> Self {
        let late = LatePayments { store: store.clone(), orders: orders.clone(), intake };
        Self { store, orders, late, log }
    }

    /// The same on another handle of the database.
    #[must_use]
    pub fn on(&self, store: &Store) -> Self {
        Self::new(store.clone(), self.orders.on(store.clone()), self.late.intake.clone(), self.log.clone())
    }

    /// Takes a verified event. On `Ok` the event is durable, in the database and in the order log, the returned payment
    /// has its present state, and no later reading shows its order in an earlier state. Maintenance retries a pending one. May be repeated.
    pub async fn receive(&self, payment: &Payment) -> Result<Payment, PaymentError> {
        let known = self.record(payment).await?;
        self.before_the_answer(&known.sale, std::slice::from_ref(&known)).await?;
        Ok(known)
    }

    /// What has to be true of payments of one sale before they are answered: later readings of their orders go to the rows,
    /// Redis has witnessed them, and the order log has them.
    pub(super) async fn before_the_answer(
        &self,
        sale: &SaleId,
        payments: &[Payment],
    ) -> Result<(), PaymentError> {
        let logging = Logging { store: &self.store, log: &self.log.log };
        let (in_redis, logged) =
            tokio::join!(self.tell_redis(sale, payments), logging.append(sale, payments));
        in_redis?;
        match logged {
            Ok(()) => Ok(()),
            Err(NotLogged::Store(error)) => Err(error.into()),
            Err(NotLogged::Log(error)) if self.log.may_wait => {
                let events = payments.len();
                tracing::warn!(%sale, events, %error, "payments were answered before the order log had them");
                Ok(())
            }
            Err(NotLogged::Log(error)) => Err(PaymentError::NotLogged(error)),
        }
    }

    async fn tell_redis(&self, sale: &SaleId, payments: &[Payment]) -> Result<(), GateError> {
        let has_paid =
            |payment: &&Payment| matches!(payment.state, PaymentState::Applied | PaymentState::Retaken);
        let paid = payments.iter().filter(has_paid);
        let paid: Vec<OrderId> = paid.map(|payment| payment.new_order.unwrap_or(payment.order)).collect();
        if !paid.is_empty() {
            return self.orders.read_from_row(sale, &paid).await;
        }
        if let Err(error) = self.orders.witness(sale).await {
            // A payment that waits for Redis is answered all the same.
            tracing::debug!(%sale, %error, "redis did not hear of a payment");
        }
        Ok(())
    }

    async fn record(&self, payment: &Payment) -> Result<Payment, PaymentError> {
        let known = self.store.payment(&payment.provider, &payment.event_id).await?;
        let known = match known {
            Some(known) if known.state != PaymentState::Pending => known,
            known => match (self.apply(payment, known.is_none()).await, known) {
                (Ok(known), _) => known,
                (Err(error), Some(known)) => {
                    tracing::debug!(event = payment.event_id, %error, "a payment may still be pending");
                    self.store.payment(&payment.provider, &payment.event_id).await?.unwrap_or(known)
                }
                (Err(error), None) => {
                    tracing::debug!(event = payment.event_id, %error, "a payment is pending");
                    self.store.receive_payment(payment).await?
                }
            },
        };
        if !known.is_same_event(payment) {
            return Err(PaymentError::Reused);
        }
        Ok(known)
    }

    /// Pending events of all sales but `except` that are due for a retry.
    pub async fn due(&self, except: &[SaleId], limit: u64) -> Result<Vec<Payment>, StoreError> {
        self.store.payments_due(except, limit).await
    }

    /// Retries a pending event. On an error it is postponed, unless a row of its sale is locked: then that would wait for
    /// the same lock.
    pub async fn retry(&self, payment: &Payment) -> Retried {
        match self.apply(payment, false).await {
            Ok(known) if known.state == PaymentState::Pending => Retried::Pending,
            Ok(_) => Retried::Ended,
            Err(OrderError::Store(StoreError::Locked(_))) => Retried::Locked,
            Err(error) => {
                let why = error.to_string();
                if let Err(error) = self.store.postpone_payment(payment, wait_of(payment), None, &why).await {
                    tracing::debug!(event = payment.event_id, %error, "a payment is pending");
                }
                Retried::Pending
            }
        }
    }

    /// Tries to apply the event, which the database has unless it `is_new`. On `Ok` it is durable, in the returned state.
    async fn apply(&self, payment: &Payment, is_new: bool) -> Result<Payment, OrderError> {
        let request = act_request(payment);
        for _ in 0..TRIES {
            let Some(row) = self.store.order(payment.order).await? else {
                return self.without_a_row(payment).await;
            };
            let guard = self.orders.lease(&payment.sale, &row.order.user).await?;
            let may_commit = || guard.is_valid_for(COMMIT_MARGIN);
            let applying = Applying { payment, order: &row.order, is_new };
            let applied = self.store.apply_payment(applying, &request, guard.token(), &may_commit).await?;
            // Only after COMMIT, so that the next holder of the user's lease sees the new state.
            let _ = guard.release().await;
            return match applied {
                Applied::Stale => continue,
                Applied::Ended(known) => {
                    self.after_end(&known).await;
                    Ok(known)
                }
                Applied::Waits(known, why) => self.postpone(known, None, why).await,
                Applied::Late(known, from) => match self.late.retake(&known, from).await? {
                    Next::Refund(why) => self.keep_for_refund(known, &why).await,
                    Next::Waits(why) => self.postpone(known, None, &why).await,
                    Next::Retaken(new) => self.postpone(known, Some(new), "a unit was retaken").await,
                },
            };
        }
        Err(OrderError::Busy)
    }

    /// Records the event only, without the user's lease: the worker needs that lease to write the order's row.
    async fn without_a_row(&self, payment: &Payment) -> Result<Payment, OrderError> {
        let known = self.store.receive_payment(payment).await?;
        if known.state != PaymentState::Pending {
            return Ok(known);
        }
        let why = match self.orders.find(Target { sale: &payment.sale, id: payment.order, owner: None }).await
        {
            // A new event is retried soon and needs no further write.
            Ok(_) if known.detail.is_none() => return Ok(known),
            Ok(_) => "the order has no row yet",
            Err(OrderError::NotFound(_)) => "the order is not known yet",
            Err(error) => return Err(error),
        };
        self.postpone(known, None, why).await
    }

    /// Counts and logs the event's outcome, and returns the units of a refunded order.
    async fn after_end(&self, payment: &Payment) {
        metrics::counter!("doorbuster_payments_ended_total", "state" => payment.state.as_str()).increment(1);
        if matches!(payment.state, PaymentState::Late | PaymentState::Mismatch) {
            tracing::warn!(order_id = %payment.order, event = payment.event_id, provider = payment.provider,
                state = payment.state.as_str(), detail = payment.detail, "a payment does not fit its order");
        }
        if payment.kind == PaymentKind::Refunded {
            let id = payment.new_order.unwrap_or(payment.order);
            if let Ok(line) = self.store.line().await
                && let Ok(Some(row)) = self.store.order(id).await
            {
                // If it fails, maintenance returns the units.
                let _ = self.orders.give_back(&row, line).await;
            }
        }
    }

    async fn keep_for_refund(&self, payment: Payment, why: &str) -> Result<Payment, OrderError> {
        if !self.store.settle_payment(&payment, PaymentState::Late, Some(why)).await? {
            return self.reread(payment).await;
        }
        let payment = Payment { state: PaymentState::Late, detail: Some(why.to_owned()), ..payment };
        self.after_end(&payment).await;
        Ok(payment)
    }

    /// Leaves the event pending. If another process has ended the event meanwhile, the order that retook a unit for
    /// it is no longer needed and is cancelled.
    async fn postpone(
        &self,
        payment: Payment,
        new_order: Option<OrderId>,
        why: &str,
    ) -> Result<Payment, OrderError> {
        // The new order must be paid before its own deadline.
        let wait = if new_order.is_some() { SHORTEST_WAIT } else { wait_of(&payment) };
        if self.store.postpone_payment(&payment, wait, new_order, why).await? {
            let new_order = new_order.or(payment.new_order);
            return Ok(Payment { new_order, detail: Some(why.to_owned()), ..payment });
        }
        if let Some(new_order) = new_order {
            let request = ActRequest::by(format!("payment {}", payment.provider));
            if let Err(error) = self.orders.act(&payment.sale, new_order, Act::Cancel, &request).await {
                tracing::error!(order_id = %new_order, event = payment.event_id, %error,
                    "an order retook a unit for a payment that has ended meanwhile: cancel it");
            }
        }
        self.reread(payment).await
    }

    async fn reread(&self, payment: Payment) -> Result<Payment, OrderError> {
        Ok(self.store.payment(&payment.provider, &payment.event_id).await?.unwrap_or(payment))
    }
}

/// How long until the event is retried: a quarter of the time that it has waited so far, so that what an outage has held up
/// is tried soon after it.
fn wait_of(payment: &Payment) -> Duration {
    if payment.new_order.is_some() {
        return SHORTEST_WAIT;
    }
    let age = Millis::now().0 - payment.received_at.0;
    (Duration::from_millis(u64::try_from(age).unwrap_or(0)) / 4).clamp(SHORTEST_WAIT, LONGEST_WAIT)
}

pub(super) fn act_request(payment: &Payment) -> ActRequest {
    ActRequest::by(format!("payment {}", payment.provider)).because(Some(payment.event_id.clone()))
}
