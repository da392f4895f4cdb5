//! The answer to a buyer who gets no order: sold out, not open, paused, over the limit, and the other refusals.

use crate::front::codes::*;
use crate::front::keyed_limit::rate_limited;
use crate::front::problem::Problem;
use crate::intake::{Answer, OrderView};

/// `Retry-After` in seconds, if nothing better is known.
const SOON: u64 = 1;
/// `Retry-After` in seconds while too many orders are waiting.
const WHEN_OVERLOADED: u64 = 2;
/// `Retry-After` in seconds while a sale must be rebuilt, or is paused and its terms give no time.
const WHEN_PAUSED: u64 = 5;

/// The problem for each answer of the intake that is not an order.
pub(super) fn refused(answer: Answer) -> Box<Problem> {
    match answer {
        Answer::SoldOut => Problem::new(SOLD_OUT, "fewer units are left than you asked for"),
        Answer::AlreadyOrdered(id) => Problem::new(ALREADY_ORDERED, "one order per buyer").of_order(id),
        Answer::PurchaseLimit { limit } => {
            Problem::new(PURCHASE_LIMIT, format!("a buyer may have {limit} units of this sale"))
                .with("limit_per_user", limit)
        }
        Answer::NotOpen { now, opens_at } => {
            Problem::new(SALE_NOT_OPEN, format!("the sale opens at {opens_at}"))
                .with("opens_at", opens_at.to_string())
                .retry_at(now, opens_at)
        }
        Answer::Closed => Problem::new(SALE_CLOSED, "this sale takes no more orders"),
        Answer::Paused { message, retry_after } => {
            let message = message.unwrap_or_else(|| "this sale takes no orders for now".into());
            Problem::new(SALE_PAUSED, message).retry_after(retry_after.unwrap_or(WHEN_PAUSED))
        }
        Answer::RateLimited(limited) => rate_limited(&limited),
        Answer::SaleNotFound => sale_not_found(),
        Answer::SkuRequired => Problem::new(MALFORMED, "the sale has several items: name one as \"sku\""),
        Answer::UnknownSku => Problem::new(UNKNOWN_SKU, "see the sale's items for its skus"),
        Answer::InvalidQuantity { limit } => {
            Problem::new(INVALID_QUANTITY, format!("a buyer may have 1 to {limit} units of this sale"))
                .with("limit_per_user", limit)
        }
        Answer::KeyRequired => Problem::new(KEY_REQUIRED, KEY_FOR_EACH_ORDER),
        Answer::KeyReused => {
            Problem::new(KEY_REUSED, "the key was used for another sku or quantity: use a new key")
        }
        Answer::Overloaded => Problem::new(OVERLOADED, TOOK_NOTHING).retry_after(WHEN_OVERLOADED),
        Answer::GateUnavailable(why) => {
            Problem::new(GATE_UNAVAILABLE, TOOK_NOTHING).because(why).retry_after(SOON)
        }
        Answer::OutcomeUnknown(id, why) => {
            let detail = "it is not known yet; repeat with the same Idempotency-Key, it is safe";
            let problem = Problem::new(OUTCOME_UNKNOWN, detail).because(why).retry_after(SOON);
            if let Some(id) = id { problem.of_order(id) } else { problem }
        }
        Answer::RepeatUnreadable(id) => {
            let detail = "you have this order, but its status cannot be read now";
            Problem::new(STATUS_UNAVAILABLE, detail).of_order(id).retry_after(SOON)
        }
        // The caller answers both with the order. If one got here after all, it must not look like a refusal.
        Answer::Accepted { order, .. } => Problem::new(INTERNAL, "accepted").of_order(order.id),
        Answer::Repeat(view) => Problem::new(INTERNAL, "accepted").of_order(view.order.id),
    }
}

const KEY_FOR_EACH_ORDER: &str =
    "this sale allows several orders: send an Idempotency-Key, a new one for each order";
const TOOK_NOTHING: &str = "this attempt took nothing; try again with the same Idempotency-Key";

/// The order was accepted, and the database refused it while the buyer waited.
pub(super) fn failed(view: &OrderView) -> Box<Problem> {
    let failure = view.failure.map_or("unknown", |failure| failure.as_str());
    Problem::new(ORDER_FAILED, format!("the order was accepted, but it could not be confirmed: {failure}"))
        .of_order(view.order.id)
        .with("failure", failure)
}

pub(super) fn sale_not_found() -> Box<Problem> {
    Problem::new(SALE_NOT_FOUND, "no sale has this id")
}

/// Redis lost the sale, and it is not rebuilt yet.
pub(super) fn sale_lost() -> Box<Problem> {
    let problem =
        Problem::new(STATUS_UNAVAILABLE, "try again").because("the sale must be rebuilt in the gate");
    problem.retry_after(WHEN_PAUSED)
}

/// A store did not answer, so "not found" might be wrong.
pub(super) fn status_unavailable(why: &impl std::error::Error) -> Box<Problem> {
    Problem::new(STATUS_UNAVAILABLE, "try again").because(why).retry_after(SOON)
}
