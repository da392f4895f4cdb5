//! A payment whose order has ended: a new order retakes a unit if the sale allows it and has one left; otherwise the
//! payment waits for a refund.

use super::changes::{OrderError, Orders};
use crate::domain::{IdempotencyKey, KeyDigest, LatePayment, Order, OrderId, OrderStatus, Terms};
use crate::intake::{Answer, Intake, KnownSale, OrderRequest};
use crate::store::{Payment, Store};

/// What happens next to a late payment.
pub(super) enum Next {
    /// An operator must refund it, for this reason.
    Refund(String),
    /// This new order has a unit. The payment is applied once the order has its row.
    Retaken(OrderId),
    /// The payment stays pending, for this reason.
    Waits(String),
}

/// Decides about late payments.
#[derive(Clone)]
pub(super) struct LatePayments {
    pub(super) store: Store,
    pub(super) orders: Orders,
    pub(super) intake: Intake,
}

impl LatePayments {
    /// Places a new order for the payment if the sale's terms allow it. `from` is the state in which the paid order
    /// ended. May be repeated: the new order's key is derived from the event.
    pub(super) async fn retake(&self, payment: &Payment, from: OrderStatus) -> Result<Next, OrderError> {
        let terms = match self.intake.sales().get(&payment.sale).await {
            Ok(KnownSale::Loaded(sale)) => sale.terms.clone(),
            Ok(KnownSale::Ended(_) | KnownSale::Missing) => return Ok(refund(from, "the sale is over")),
            Ok(KnownSale::Draft | KnownSale::Lost) => {
                return Ok(Next::Waits("the sale must be rebuilt".into()));
            }
            Err(error) => return Ok(Next::Waits(error.to_string())),
        };
        if let Some(why) = forbids_retake(&terms) {
            return Ok(refund(from, why));
        }
        let line = self.store.line().await?;
        let Some(row) = self.store.order(payment.order).await? else {
            return Ok(Next::Waits("the order has no row yet".into()));
        };
        // The gate may still hold the ended order, and its unit with it.
        if let Err(error) = self.orders.give_back(&row, line).await {
            return Ok(Next::Waits(error.to_string()));
        }
        let answer = self.intake.place(order_request(payment, row.order)).await;
        Ok(next(payment, from, answer))
    }
}

fn refund(from: OrderStatus, why: &str) -> Next {
    Next::Refund(format!("the order is {from}, and {why}"))
}

fn forbids_retake(terms: &Terms) -> Option<&'static str> {
    if terms.late_payment == LatePayment::Refund {
        return Some("the sale takes no late payments");
    }
    // The user would then have two orders: the ended one counts.
    (!terms.rebuy).then_some("the sale does not allow a second order")
}

/// What the answer to the new order means for the payment.
fn next(payment: &Payment, from: OrderStatus, answer: Answer) -> Next {
    match answer {
        Answer::Accepted { order, .. } => Next::Retaken(order.id),
        Answer::Repeat(view) => Next::Retaken(view.order.id),
        // A retry with the same key gets the outcome. The order with that id may not exist.
        Answer::RepeatUnreadable(_) | Answer::OutcomeUnknown(..) => {
            Next::Waits("it is not known yet whether a unit was retaken".into())
        }
        Answer::Paused { .. } | Answer::RateLimited(_) | Answer::Overloaded | Answer::NotOpen { .. } => {
            Next::Waits(format!("the order is {from}, and the sale takes no orders now"))
        }
        Answer::GateUnavailable(why) => Next::Waits(why),
        Answer::SoldOut => refund(from, "the item is sold out"),
        Answer::Closed => refund(from, "the sale is over"),
        Answer::AlreadyOrdered(id) if id == payment.order => {
            Next::Waits("the gate does not know yet that the order has ended".into())
        }
        Answer::AlreadyOrdered(_) | Answer::PurchaseLimit { .. } => {
            refund(from, "its user may have no other order")
        }
        Answer::SaleNotFound
        | Answer::SkuRequired
        | Answer::UnknownSku
        | Answer::InvalidQuantity { .. }
        | Answer::KeyRequired
        | Answer::KeyReused => refund(from, "it cannot be placed again"),
    }
}

/// A request for the same units for the same user, with a key that no other event has.
fn order_request(payment: &Payment, order: Order) -> OrderRequest {
    let name = format!("{}\n{}", payment.provider, payment.event_id);
    let digest = KeyDigest::of_text(&name);
    OrderRequest {
        sale: order.sale,
        user: order.user,
        sku: Some(order.sku),
        quantity: order.quantity,
        key: IdempotencyKey::parse(format!("late-payment-{digest}")).ok(),
        trace: None,
    }
}
