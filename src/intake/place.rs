//! Placing an order: check the request, let the gate decide, publish the order, answer.

use tokio::time::Instant;

use super::answer::{Answer, OrderRequest};
use super::completeness::hear_place;
use super::core::{DurabilityPolicy, Intake};
use super::order_view::OrderView;
use super::sale_cache::KnownSale;
use crate::domain::{
    Attempt, Durability, Fingerprint, KeyDigest, Order, OrderId, Sku, Ticket, TraceContext, Verdict,
};
use crate::fault::fault;
use crate::gate::{GateError, until_refusals_expire};
use crate::trace::{Kind, Span};

/// The policy requires the broker's confirm, and it did not come in time. The order is in the outbox.
#[derive(Debug, thiserror::Error)]
#[error("the broker has not confirmed the order")]
struct Unconfirmed;

impl Intake {
    /// Places an order. On `Accepted` the servers named by `durability` hold it. A repeat with the same key returns
    /// the same order.
    ///
    /// After an answer that shows the buyer an order, no front refuses them as someone without one: see
    /// [`until_refusals_expire`].
    pub async fn place(&self, request: OrderRequest) -> Answer {
        let sku = match self.sku(&request).await {
            Ok(sku) => sku,
            Err(refusal) => return refusal,
        };
        if let Some(verdict) = self.refusals.refusal(&request, &sku).await {
            return Answer::refusal(verdict);
        }
        // Boxed, because most requests of a rush end above and should not carry the space for the rest.
        Box::pin(self.attempt(request, sku)).await
    }

    async fn attempt(&self, request: OrderRequest, sku: Sku) -> Answer {
        let attempt = Attempt {
            id: OrderId::generate(),
            fingerprint: Fingerprint::of_body(&sku, request.quantity),
            key: KeyDigest::of_key(request.key.as_ref()),
            keyed: request.key.is_some(),
            sale: request.sale.clone(),
            user: request.user.clone(),
            sku,
            quantity: request.quantity,
        };
        let span = Span::child(request.trace, "admit", Kind::Client)
            .map(|span| span.with("doorbuster.sale_id", &attempt.sale));
        let decided = self.gate.admit(attempt).await;
        let heard = Instant::now();
        if let Some(span) = span {
            end_admission(span, &decided);
        }
        let answer = self.answer(decided, &request).await;
        // Usually no delay: the wait for the broker took longer.
        if answer.reveals_order() {
            until_refusals_expire(heard).await;
        }
        answer
    }

    async fn answer(&self, decided: Result<Verdict, GateError>, request: &OrderRequest) -> Answer {
        match decided {
            Ok(Verdict::Accepted(order)) => self.accepted(order, request.trace).await,
            // Repeats are boxed, so that a new order does not carry the space for them.
            Ok(Verdict::InFlight(ticket)) if !ticket.ended => {
                Box::pin(self.in_flight(ticket, request.trace)).await
            }
            // Its row is committed: the script found no entry, or one that says that the order has ended.
            Ok(Verdict::Settled(id) | Verdict::InFlight(Ticket { order: Order { id, .. }, .. })) => {
                hear_place(&self.gate, &self.store, &request.sale).await;
                match Box::pin(self.row(&request.sale, &request.user, id)).await {
                    Ok(Some(view)) => Answer::Repeat(Box::new(view)),
                    Ok(None) | Err(_) => Answer::RepeatUnreadable(id),
                }
            }
            Ok(Verdict::PurchaseLimit { limit }) if request.quantity > limit => {
                Answer::InvalidQuantity { limit }
            }
            Ok(verdict) => {
                if matches!(verdict, Verdict::SoldOut | Verdict::NotOpen { .. } | Verdict::Closed) {
                    self.refusals.begin_caching(&request.sale);
                }
                Answer::refusal(verdict)
            }
            // If the script did not run, a repeat gets another id: a buyer is given none before it is certain.
            Err(GateError::Late(why)) => Answer::OutcomeUnknown(None, why),
            Err(GateError::Full(_)) => Answer::Overloaded,
            // The script ran and its reply is unreadable, so the outcome is unknown.
            Err(error @ GateError::Broken(_)) => Answer::OutcomeUnknown(None, error.to_string()),
            Err(error) => Answer::GateUnavailable(error.to_string()),
        }
    }

    /// Checks the request against the cached sale and finds the requested item. The gate repeats every check.
    async fn sku(&self, request: &OrderRequest) -> Result<Sku, Answer> {
        let sale = match self.sales.get(&request.sale).await {
            Ok(KnownSale::Loaded(sale)) => sale,
            Ok(KnownSale::Lost) => {
                return Err(Answer::GateUnavailable("the sale must be rebuilt in the gate".into()));
            }
            Ok(KnownSale::Ended(_)) => return Err(Answer::Closed),
            Ok(KnownSale::Draft | KnownSale::Missing) => return Err(Answer::SaleNotFound),
            Err(error) => return Err(Answer::GateUnavailable(error.to_string())),
        };
        let sku = match (&request.sku, &sale.items[..]) {
            (Some(sku), items) if items.iter().any(|item| item.sku == *sku) => sku.clone(),
            (Some(_), _) => return Err(Answer::UnknownSku),
            (None, [only]) => only.sku.clone(),
            (None, _) => return Err(Answer::SkuRequired),
        };
        // Only zero is refused here. The gate checks the limit, which may have changed since the order that this
        // request repeats.
        if request.quantity == 0 {
            return Err(Answer::InvalidQuantity { limit: sale.limit_per_user });
        }
        Ok(sku)
    }

    async fn accepted(&self, order: Order, trace: Option<TraceContext>) -> Answer {
        let id = order.id;
        let published = self.publish(&order, trace).await;
        fault!("answer.before", return Answer::OutcomeUnknown(Some(id), "injected".into()));
        match published {
            Ok(durability) => Answer::Accepted { order, durability },
            Err(unconfirmed) => Answer::OutcomeUnknown(Some(id), unconfirmed.to_string()),
        }
    }

    /// A repeat joins the publish of the first request, or starts one if that front died.
    async fn in_flight(&self, ticket: Ticket, trace: Option<TraceContext>) -> Answer {
        let Ticket { order, mut durability, .. } = ticket;
        if durability == Durability::Outbox {
            match self.publish(&order, trace).await {
                Ok(published) => durability = published,
                Err(unconfirmed) => return Answer::OutcomeUnknown(Some(order.id), unconfirmed.to_string()),
            }
        }
        // A gate that has lost writes may have the entry of an order that has a row.
        if !self.in_flight_now(&order.sale, order.id).await.is_ok_and(|now| now.is_believed) {
            match self.row(&order.sale, &order.user, order.id).await {
                Ok(Some(view)) => return Answer::Repeat(Box::new(view)),
                Ok(None) => {}
                Err(_) => return Answer::RepeatUnreadable(order.id),
            }
        }
        Answer::Repeat(Box::new(OrderView::in_flight(order, durability)))
    }

    async fn publish(&self, order: &Order, trace: Option<TraceContext>) -> Result<Durability, Unconfirmed> {
        let published = self.relay.publish(order, trace);
        if self.settings.durability == DurabilityPolicy::Outbox {
            return Ok(Durability::Outbox);
        }
        let confirmed = tokio::time::timeout(self.settings.confirm_within, published).await;
        match (confirmed, self.settings.durability) {
            (Ok(true), _) => Ok(Durability::Broker),
            (_, DurabilityPolicy::BrokerOnly) => Err(Unconfirmed),
            (_, _) => Ok(Durability::Outbox),
        }
    }
}

/// A refusal is an answer, and no failure.
fn end_admission(span: Span, decided: &Result<Verdict, GateError>) {
    let verdict = match decided {
        Ok(verdict) => verdict,
        Err(error) => return span.failed(error).end(),
    };
    let order = match verdict {
        Verdict::Accepted(order) | Verdict::InFlight(Ticket { order, .. }) => Some(order.id),
        Verdict::Settled(id) | Verdict::AlreadyOrdered(id) => Some(*id),
        _ => None,
    };
    let span = span.with("doorbuster.accepted", matches!(verdict, Verdict::Accepted(_)));
    match order {
        Some(order) => span.with("doorbuster.order_id", order).end(),
        None => span.end(),
    }
}
