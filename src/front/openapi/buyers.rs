//! The operations of the buyers' listener.

use serde_json::json;

use super::operation::{Caller, Content, Operation, Reply};
use super::parts::AN_ORDER;
use crate::front::body::Reason;
use crate::front::buyers::{OrderBody, OrderJson, OrdersPage, SaleJson};
use crate::front::codes::*;
use crate::front::webhooks::{Event, ReceivedEvent};

const ACCEPTED_AT: &str = "2026-11-27T12:00:00.021Z";
const CONFIRMED_AT: &str = "2026-11-27T12:00:00.048Z";

pub(super) fn operations() -> Vec<Operation> {
    vec![
        read_sale(),
        watch_sale(),
        place_order(),
        read_order(),
        watch_order(),
        list_my_orders(),
        cancel_order(),
        receive_payment(),
    ]
}

fn read_sale() -> Operation {
    Operation::get("/v1/sales/{sale}", "readSale", "Read a sale")
        .tagged("Sales")
        .says("State, window, server time and availability: enough to decide, and too little to count the stock.")
        .replies::<SaleJson<'static>>(
            200,
            "The sale",
            &[],
            json!({
                "sale_id": "shoes", "name": "Shoes", "state": "open",
                "opens_at": "2026-11-27T12:00:00.000Z", "closes_at": null,
                "server_time": ACCEPTED_AT, "limit_per_user": 1, "pay_within_s": 600,
                "items": [{"sku": "shoe", "availability": "few"}],
            }),
        )
        .refuses(&[SALE_NOT_FOUND, STATUS_UNAVAILABLE])
}

fn watch_sale() -> Operation {
    Operation::get("/v1/sales/{sale}/events", "followSale", "Follow a sale")
        .tagged("Sales")
        .says(
            "Server-sent events: `sale`, with the sale as above, at once and whenever something but the time has \
             changed, within two seconds. The id of an event says what the sale is, at whichever front. A comment comes \
             every 15 s. The stream ends with a `retry` when the front stops.",
        )
        .streams()
        .refuses(&[SALE_NOT_FOUND, TOO_MANY_STREAMS, STATUS_UNAVAILABLE])
}

fn place_order() -> Operation {
    Operation::post("/v1/sales/{sale}/orders", "placeOrder", "Place an order")
        .tagged("Orders")
        .says(
            "Takes units if they are left. The same `Idempotency-Key` again returns the same order, whatever became \
             of the first request; so after `outcome_unknown` or a broken connection, repeat it.",
        )
        .by(Caller::Buyer)
        .with("Idempotency-Key")
        .with("Prefer")
        .may_take::<OrderBody>(json!({"sku": "shoe", "quantity": 1}))
        .replies::<OrderJson<'static>>(
            202,
            "Accepted: the units are reserved, and the order will get its row",
            &["Location", "Idempotent-Replayed"],
            json!({
                "order_id": AN_ORDER, "sale_id": "shoes", "sku": "shoe", "quantity": 1,
                "status": "accepted", "durability": "broker", "accepted_at": ACCEPTED_AT,
            }),
        )
        .replies::<OrderJson<'static>>(
            201,
            "Confirmed within the time of `Prefer: wait`",
            &["Location"],
            confirmed(),
        )
        .replies::<OrderJson<'static>>(
            200,
            "A repeat of an order that has its row, or one that ended while the buyer waited",
            &["Location", "Idempotent-Replayed"],
            confirmed(),
        )
        .refuses(&[
            SALE_NOT_FOUND, SALE_NOT_OPEN, SALE_CLOSED, SALE_PAUSED, SOLD_OUT, ALREADY_ORDERED, PURCHASE_LIMIT,
            ORDER_FAILED, KEY_REQUIRED, KEY_REUSED, INVALID_QUANTITY, UNKNOWN_SKU, OVERLOADED, READ_ONLY,
            GATE_UNAVAILABLE, OUTCOME_UNKNOWN, STATUS_UNAVAILABLE,
        ])
}

fn read_order() -> Operation {
    Operation::get("/v1/sales/{sale}/orders/{id}", "readOrder", "Read an order")
        .tagged("Orders")
        .says("A 404 means that Redis and the database both answered, and that this buyer has no such order.")
        .by(Caller::Buyer)
        .with("wait")
        .replies::<OrderJson<'static>>(200, "The order", &[], confirmed())
        .refuses(&[MALFORMED, SALE_NOT_FOUND, ORDER_NOT_FOUND, STATUS_UNAVAILABLE])
}

fn list_my_orders() -> Operation {
    Operation::get("/v1/sales/{sale}/orders/mine", "listMyOrders", "List your orders of a sale")
        .tagged("Orders")
        .by(Caller::Buyer)
        .with("after")
        .with("limit")
        .replies::<OrdersPage<'static>>(
            200,
            "The orders, the oldest first; `next` is there if there are more",
            &[],
            json!({"orders": [confirmed()]}),
        )
        .refuses(&[MALFORMED, SALE_NOT_FOUND, STATUS_UNAVAILABLE])
}

fn watch_order() -> Operation {
    Operation::get("/v1/sales/{sale}/orders/{id}/events", "followOrder", "Follow an order")
        .tagged("Orders")
        .says(
            "Server-sent events: `order`, with the order as above, one for each state that it has reached and will \
             reach, in their order. The stream ends after a state that nothing can follow; a client that comes back \
             after the last event gets 204. It also ends after about a quarter of an hour, and when the front stops, with a \
             `retry`: come back with `Last-Event-ID`, and nothing is missed. A comment comes every 15 s. A buyer may \
             have 16 streams at a front.",
        )
        .by(Caller::Buyer)
        .streams()
        .reply(Reply {
            status: 204,
            description: "`Last-Event-ID` was the last event: nothing will follow",
            headers: &[],
            content: Content::Empty,
        })
        .refuses(&[MALFORMED, SALE_NOT_FOUND, ORDER_NOT_FOUND, TOO_MANY_STREAMS, STATUS_UNAVAILABLE])
}

fn cancel_order() -> Operation {
    let mut cancelled = confirmed();
    cancelled["status"] = json!("cancelled");
    Operation::post("/v1/sales/{sale}/orders/{id}:cancel", "cancelOrder", "Cancel an order")
        .tagged("Orders")
        .says("Only while it is `accepted` or `confirmed`. May be repeated: the units go back on sale once.")
        .by(Caller::Buyer)
        .may_take::<Reason>(json!({"reason": "wrong size"}))
        .replies::<OrderJson<'static>>(200, "The order, `cancelled`", &[], cancelled)
        .refuses(&[
            SALE_NOT_FOUND,
            ORDER_NOT_FOUND,
            INVALID_TRANSITION,
            READ_ONLY,
            ACT_UNFINISHED,
            STATUS_UNAVAILABLE,
        ])
}

fn receive_payment() -> Operation {
    Operation::post("/v1/payments/callback/{provider}", "receivePayment", "Receive a payment event")
        .tagged("Payments")
        .says(
            "Called by a payment provider, as Standard Webhooks has it. 200 means that the event is durable; any \
             other answer, that the provider should send it again.",
        )
        .by(Caller::Provider)
        .with("webhook-id")
        .with("webhook-timestamp")
        .with("webhook-signature")
        .takes::<Event>(
            json!({"type": "payment.succeeded", "data": {"sale_id": "shoes", "order_id": AN_ORDER}}),
        )
        .replies::<ReceivedEvent>(
            200,
            "The event is recorded, or of a type that changes no order",
            &[],
            json!({"state": "applied", "order_id": AN_ORDER, "new_order_id": null, "detail": null}),
        )
        .refuses(&[BAD_SIGNATURE, EVENT_REUSED, PAYMENT_MISMATCH, ACT_UNFINISHED])
}

fn confirmed() -> serde_json::Value {
    json!({
        "order_id": AN_ORDER, "sale_id": "shoes", "sku": "shoe", "quantity": 1,
        "status": "confirmed", "accepted_at": ACCEPTED_AT,
        "history": [
            {"status": "accepted", "at": ACCEPTED_AT},
            {"status": "confirmed", "at": CONFIRMED_AT},
        ],
        "pay_by": "2026-11-27T12:10:00.048Z",
    })
}
