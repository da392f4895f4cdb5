//! What payment providers tell. Each event is written down before it is answered, has its effect once,
//! and is never dropped: what comes too late for its order takes a unit again or is kept for refund.

use std::time::Duration;

use super::{OrderError, Orders};
use crate::domain::{Act, ActRequest, IdempotencyKey, LatePayment, Millis, Order, OrderId, OrderStatus};
use crate::intake::{Answer, Intake, KnownSale, OrderRequest, OrderView};
use crate::lease::COMMIT_MARGIN;
use crate::store::{Applied, Payment, PaymentKind, PaymentState, Store, StoreError};

/// When an event that must wait is looked at again: the longer it has waited, the later.
const SOONEST: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(600);

#[derive(Debug, thiserror::Error)]
pub enum PaymentError {
    #[error("another event of this provider had the same id")]
    Reused,
    /// It is not known to be written down: the provider has to send it again.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How an event that nobody can apply goes on.
enum Next {
    Late(String),
    /// A unit was taken again, by this order, which is to be paid when it has a row.
    Retaken(OrderId),
    Waits(String),
}

/// Times that an event is begun anew because another was quicker.
const TRIES: u32 = 5;

/// Cheap to clone.
#[derive(Clone)]
pub struct Payments {
    store: Store,
    orders: Orders,
    intake: Intake,
}

impl Payments {
    pub fn new(store: Store, orders: Orders, intake: Intake) -> Self {
        Self { store, orders, intake }
    }

    /// Takes a verified event. On `Ok` it is durable, and the answer says what has become of it so
    /// far; what is pending is gone on with by the upkeep. May be repeated.
    pub async fn receive(&self, payment: &Payment) -> Result<Payment, PaymentError> {
        let known = self.store.payment(&payment.provider, &payment.event_id).await?;
        let known = match known {
            Some(known) if known.state != PaymentState::Pending => known,
            _ => match self.go_on(payment).await {
                Ok(known) => known,
                Err(error) => {
                    tracing::debug!(event = payment.event_id, %error, "a payment waits");
                    self.store.receive_payment(payment).await?
                }
            },
        };
        if !known.is_same_event(payment) {
            return Err(PaymentError::Reused);
        }
        Ok(known)
    }

    /// What has come of the payments of an order that was paid, or has ended: the buyer wants to know.
    pub async fn of(&self, view: &OrderView) -> Result<Vec<Payment>, StoreError> {
        if matches!(view.status, OrderStatus::Accepted | OrderStatus::Confirmed) {
            return Ok(Vec::new());
        }
        self.store.payments_of(view.order.id).await
    }

    /// Events that wait and are due.
    pub async fn due(&self, limit: u64) -> Result<Vec<Payment>, StoreError> {
        self.store.payments_due(limit).await
    }

    /// Goes on with an event that waits; says whether it has ended. Trouble leaves it waiting.
    pub async fn retry(&self, payment: &Payment) -> bool {
        match self.go_on(payment).await {
            Ok(known) => known.state != PaymentState::Pending,
            Err(error) => {
                let why = error.to_string();
                if let Err(error) = self.store.postpone_payment(payment, wait(payment), None, &why).await {
                    tracing::debug!(event = payment.event_id, %error, "a payment waits");
                }
                false
            }
        }
    }

    /// On `Ok` the event is written down, as it stands then.
    async fn go_on(&self, payment: &Payment) -> Result<Payment, OrderError> {
        let asked = asked(payment);
        for _ in 0..TRIES {
            let Some(row) = self.store.order(payment.order).await? else {
                return self.without_a_row(payment).await;
            };
            let user = row.order.user;
            let guard = self.orders.lease(&payment.sale, &user).await?;
            let may_commit = || guard.is_valid_for(COMMIT_MARGIN);
            let applied = self.store.apply_payment(payment, &asked, guard.token(), &may_commit).await?;
            // After COMMIT: the next who acts for the user must meet the new state.
            let _ = guard.release().await;
            return match applied {
                Applied::Stale => continue,
                Applied::Ended(known) => {
                    self.ended(&known).await;
                    Ok(known)
                }
                Applied::Waits(known, why) => self.put_off(known, None, why).await,
                Applied::Late(known, from) => match self.late(&known, from).await? {
                    Next::Late(why) => self.settle_late(known, &why).await,
                    Next::Waits(why) => self.put_off(known, None, &why).await,
                    Next::Retaken(new) => self.put_off(known, Some(new), "a unit was taken again").await,
                },
            };
        }
        Err(OrderError::Busy)
    }

    /// Written down alone: the worker needs the user's lease to write the row.
    async fn without_a_row(&self, payment: &Payment) -> Result<Payment, OrderError> {
        let known = self.store.receive_payment(payment).await?;
        if known.state != PaymentState::Pending {
            return Ok(known);
        }
        let why = match self.orders.find(&payment.sale, payment.order).await {
            // New, and looked at again soon: that needs no other write.
            Ok(_) if known.detail.is_none() => return Ok(known),
            Ok(_) => "the order has no row yet",
            Err(OrderError::NotFound(_)) => "nobody knows the order yet",
            Err(error) => return Err(error),
        };
        self.put_off(known, None, why).await
    }

    /// Counts an end, and gives the units of a refunded order back.
    async fn ended(&self, payment: &Payment) {
        metrics::counter!("payments_ended_total", "state" => payment.state.as_str()).increment(1);
        if matches!(payment.state, PaymentState::Late | PaymentState::Mismatch) {
            tracing::warn!(order_id = %payment.order, event = payment.event_id, provider = payment.provider,
                state = payment.state.as_str(), detail = payment.detail, "a payment that its order cannot take");
        }
        if payment.kind == PaymentKind::Refunded {
            let id = payment.new_order.unwrap_or(payment.order);
            if let Ok(Some(row)) = self.store.order(id).await {
                // What fails is done by the upkeep.
                let _ = self.orders.give_back(&row).await;
            }
        }
    }

    async fn settle_late(&self, payment: Payment, why: &str) -> Result<Payment, OrderError> {
        if !self.store.settle_payment(&payment, PaymentState::Late, Some(why)).await? {
            return self.as_it_stands(payment).await;
        }
        let payment = Payment { state: PaymentState::Late, detail: Some(why.to_owned()), ..payment };
        self.ended(&payment).await;
        Ok(payment)
    }

    /// Leaves an event waiting. Where it was ended meanwhile, the order that took a unit for it is
    /// nobody's, and ends.
    async fn put_off(
        &self,
        payment: Payment,
        new_order: Option<OrderId>,
        why: &str,
    ) -> Result<Payment, OrderError> {
        // What has a unit now is to be paid before its own deadline.
        let wait = if new_order.is_some() { SOONEST } else { wait(&payment) };
        if self.store.postpone_payment(&payment, wait, new_order, why).await? {
            let new_order = new_order.or(payment.new_order);
            return Ok(Payment { new_order, detail: Some(why.to_owned()), ..payment });
        }
        if let Some(new_order) = new_order {
            let nobodys = ActRequest::by(format!("payment {}", payment.provider));
            if let Err(error) = self.orders.act(&payment.sale, new_order, Act::Cancel, &nobodys).await {
                tracing::error!(order_id = %new_order, event = payment.event_id, %error,
                    "this order was taken for a payment that was ended meanwhile: cancel it");
            }
        }
        self.as_it_stands(payment).await
    }

    async fn as_it_stands(&self, payment: Payment) -> Result<Payment, OrderError> {
        Ok(self.store.payment(&payment.provider, &payment.event_id).await?.unwrap_or(payment))
    }

    /// The order has ended. A new one takes a unit, where the sale wants that and there is one.
    async fn late(&self, payment: &Payment, from: OrderStatus) -> Result<Next, OrderError> {
        let late = |why: &str| Ok(Next::Late(format!("the order is {from}, and {why}")));
        let rules = match self.intake.sales().get(&payment.sale).await {
            Ok(KnownSale::Loaded(sale)) => sale.terms.clone(),
            Ok(KnownSale::Ended(_) | KnownSale::Missing) => return late("the sale is over"),
            Ok(KnownSale::NotOpened(_) | KnownSale::Lost) => {
                return Ok(Next::Waits("the sale must be rebuilt".into()));
            }
            Err(error) => return Ok(Next::Waits(error.to_string())),
        };
        if rules.late_payment == LatePayment::Refund {
            return late("the sale takes none late");
        }
        // The order that has ended counts.
        if !rules.rebuy {
            return late("nobody may buy again");
        }
        let Some(row) = self.store.order(payment.order).await? else {
            return Ok(Next::Waits("the order has no row yet".into()));
        };
        // The gate may hold the ended order still, and its unit with it.
        if let Err(error) = self.orders.give_back(&row).await {
            return Ok(Next::Waits(error.to_string()));
        }
        match self.intake.place(wish(payment, row.order)).await {
            Answer::Accepted { order, .. } => Ok(Next::Retaken(order.id)),
            Answer::Repeat(view) => Ok(Next::Retaken(view.order.id)),
            // The same key tells; that id may be nobody's.
            Answer::RepeatUnreadable(_) | Answer::OutcomeUnknown(..) => {
                Ok(Next::Waits("whether a unit was taken again is not known yet".into()))
            }
            Answer::Paused { .. } | Answer::RateLimited(_) | Answer::Overloaded | Answer::NotOpen { .. } => {
                Ok(Next::Waits(format!("the order is {from}, and the sale takes none now")))
            }
            Answer::GateUnavailable(why) => Ok(Next::Waits(why)),
            Answer::SoldOut => late("all are sold"),
            Answer::Closed => late("the sale is over"),
            Answer::AlreadyOrdered(id) if id == payment.order => {
                Ok(Next::Waits("the gate does not know yet that the order has ended".into()))
            }
            Answer::AlreadyOrdered(_) | Answer::PurchaseLimit { .. } => late("its user may have no other"),
            Answer::SaleNotFound
            | Answer::SkuRequired
            | Answer::UnknownSku
            | Answer::InvalidQuantity { .. }
            | Answer::KeyRequired
            | Answer::KeyReused => late("cannot be made again"),
        }
    }
}

/// The longer it has waited, the later it is looked at again.
fn wait(payment: &Payment) -> Duration {
    if payment.new_order.is_some() {
        return SOONEST;
    }
    let age = Millis::now().0 - payment.received_at.0;
    Duration::from_millis(u64::try_from(age).unwrap_or(0)).clamp(SOONEST, LATEST)
}

fn asked(payment: &Payment) -> ActRequest {
    ActRequest::by(format!("payment {}", payment.provider)).because(Some(payment.event_id.clone()))
}

/// The same units for the same user, with a key that no other event has.
fn wish(payment: &Payment, order: Order) -> OrderRequest {
    let name = format!("{}\n{}", payment.provider, payment.event_id);
    let digest = crate::domain::KeyDigest::of_text(&name);
    OrderRequest {
        sale: order.sale,
        user: order.user,
        sku: Some(order.sku),
        quantity: order.quantity,
        key: IdempotencyKey::parse(format!("late-payment-{digest}")).ok(),
    }
}
