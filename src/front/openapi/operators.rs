//! The operations of the operations listener: the admin API, and what monitoring asks.

use serde_json::{Value, json};

use super::operation::{Caller, Content, Operation, Reply, schema_of};
use super::parts::AN_ORDER;
use super::webhooks;
use crate::control::DeadLetterJson;
use crate::domain::TermsChange;
use crate::front::admin::dead_letters::{DeadLetterBody, DeadLetters, EndedDeadLetter};
use crate::front::admin::live_settings::{SetBody, SettingList, UnsetBody};
use crate::front::admin::sale_acts::{EmptyBody, PauseBody, RestockBody};
use crate::front::admin::sales::SaleBody;
use crate::front::admin::views::{
    AdminSaleJson, AuditJson, CheckList, OperatorActList, OrderPage, OrderWithHistory, PaymentList,
    SaleActList, SaleAfterAct, SaleList,
};
use crate::front::codes::*;
use crate::front::{Readiness, Role};

const OPENS_AT: &str = "2026-11-27T12:00:00.000Z";
const LATER: &str = "2026-11-27T12:00:00.048Z";

pub(super) fn operations() -> Vec<Operation> {
    [sales(), sale_acts(), orders(), order_acts(), dead_letters(), settings(), webhooks(), monitoring()]
        .concat()
}

fn read(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation::get(path, id, summary).by(Caller::Operator(Role::Viewer))
}

fn sales() -> Vec<Operation> {
    let create = Operation::post("/v1/admin/sales", "createSale", "Create a sale")
        .by(Caller::Operator(Role::Admin))
        .says("The sale is a draft, which buyers do not see, until it is opened.")
        .takes::<SaleBody>(json!({
            "sale_id": "shoes", "items": [{"sku": "shoe", "stock": 500}], "limit_per_user": 1,
            "rules": {"pay_within_s": 600, "user_rate": "5/10s"},
        }))
        .replies::<AdminSaleJson<'static>>(201, "The draft", &[], sale("draft"))
        .refuses(&[SALE_EXISTS, INVALID_SALE, ACT_UNFINISHED]);
    let list = read("/v1/admin/sales", "listSales", "List all sales")
        .replies::<SaleList<'static>>(200, "The sales", &[], json!({"sales": [sale("open")]}))
        .refuses(&[ACT_UNFINISHED]);
    let show = read("/v1/admin/sales/{sale}", "showSale", "Show a sale")
        .says("The row, and the gate's view if the gate has the sale.")
        .replies::<AdminSaleJson<'static>>(200, "The sale", &[], sale("open"))
        .refuses(&[SALE_NOT_FOUND, ACT_UNFINISHED]);
    let acts = read("/v1/admin/sales/{sale}/acts", "listSaleActs", "List the acts on a sale")
        .replies::<SaleActList>(200, "The acts, the latest first", &[], json!({"acts": [act("pause", "{}")]}))
        .refuses(&[SALE_NOT_FOUND, ACT_UNFINISHED]);
    let check = read("/v1/admin/sales/{sale}/check", "checkSale", "Check that a sale is ready")
        .says("Looks at servers, clocks, settings, terms and stock, but not at the broker; `/readyz` does.")
        .replies::<CheckList>(
            200,
            "Whether it is ready",
            &[],
            json!({"ready": true, "checks": [{"what": "clocks", "good": true, "said": "3 ms apart"}]}),
        )
        .refuses(&[SALE_NOT_FOUND, ACT_UNFINISHED]);
    let audit = read("/v1/admin/sales/{sale}/audit", "auditSale", "Audit a sale")
        .says("Compares gate, outbox and database. If something is `moved`, the sums may be off by that.")
        .replies::<AuditJson<'static>>(200, "The books, and the verdict", &[], audit())
        .refuses(&[SALE_NOT_FOUND, ACT_UNFINISHED]);
    let follow = read("/v1/admin/sales/{sale}/events", "followSaleAsOperator", "Follow a sale as an operator")
        .says(
            "Server-sent events: `sale`, once a second, with `at`, the `sale` as above, `sold_per_second` by Redis and \
             `recorded_per_second` by the database (units, not in the first event), `queue` with the messages that wait \
             at the broker for all sales (`orders`, `dead`), `workers` that take orders of all sales, and `attention`: what \
             a person has to look at (`needs_rebuild`, `database_behind`, `dead_letters`, `queue_unknown`, `no_worker`, \
             `oversold`). While a server does not \
             answer, `unreadable` comes in its place, with `at` and `detail`. A process has room for 64 streams.",
        )
        .streams()
        .refuses(&[SALE_NOT_FOUND, TOO_MANY_STREAMS, ACT_UNFINISHED]);
    tagged("Sales", vec![create, list, show, acts, check, audit, follow])
}

fn sale_acts() -> Vec<Operation> {
    let plain = |path, id, summary, kind, state| {
        act_on_sale(path, id, summary)
            .takes_reason_and::<EmptyBody>(json!({"reason": "as planned"}))
            .replies::<SaleAfterAct<'static>>(200, AFTER, &[], after_act(state, kind, "{}"))
            .refuses(&[SALE_NOT_FOUND, INVALID_TRANSITION, ACT_REFUSED, KEY_REUSED, ACT_UNFINISHED])
    };
    let acts = vec![
        plain("/v1/admin/sales/{sale}:open", "openSale", "Open a sale", "open", "open"),
        pause(),
        plain("/v1/admin/sales/{sale}:resume", "resumeSale", "Resume a paused sale", "resume", "open"),
        plain("/v1/admin/sales/{sale}:close", "closeSale", "Close a sale", "close", "closed"),
        restock(),
        change(),
        plain(
            "/v1/admin/sales/{sale}:archive",
            "archiveSale",
            "Archive a closed sale",
            "archive",
            "archived",
        ),
    ];
    tagged("Acts on sales", acts)
}

const AFTER: &str = "The sale, and the act";

fn act_on_sale(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation::post(path, id, summary).by(Caller::Operator(Role::Operator)).with("Idempotency-Key")
}

fn pause() -> Operation {
    act_on_sale("/v1/admin/sales/{sale}:pause", "pauseSale", "Pause a sale")
        .takes_reason_and::<PauseBody>(json!({"message": "back at noon", "reason": "a phone call"}))
        .replies::<SaleAfterAct<'static>>(200, AFTER, &[], after_act("paused", "pause", "{}"))
        .refuses(&[SALE_NOT_FOUND, INVALID_SALE, INVALID_TRANSITION, ACT_REFUSED, KEY_REUSED, ACT_UNFINISHED])
}

fn restock() -> Operation {
    act_on_sale("/v1/admin/sales/{sale}:restock", "restockSale", "Add units, or take unsold ones away")
        .says("Needs an `Idempotency-Key`, because a repeat without one would add the units twice.")
        .takes_reason_and::<RestockBody>(json!({"sku": "shoe", "units": 50, "reason": "found a box"}))
        .replies::<SaleAfterAct<'static>>(
            200,
            AFTER,
            &[],
            after_act("open", "restock", r#"{"sku":"shoe","units":50}"#),
        )
        .refuses(&[
            SALE_NOT_FOUND,
            INVALID_SALE,
            INVALID_TRANSITION,
            ACT_REFUSED,
            KEY_REQUIRED,
            KEY_REUSED,
            UNKNOWN_SKU,
            ACT_UNFINISHED,
        ])
}

fn change() -> Operation {
    act_on_sale("/v1/admin/sales/{sale}:change", "changeSale", "Change the terms of a sale")
        .says("A term that is left out stays as it is; `null` removes one.")
        .takes_reason_and::<TermsChange>(
            json!({"limit_per_user": 2, "sale_rate": "5000/1s", "pay_within_s": null}),
        )
        .replies::<SaleAfterAct<'static>>(
            200,
            AFTER,
            &[],
            after_act("open", "change", r#"{"limit_per_user":2}"#),
        )
        .refuses(&[SALE_NOT_FOUND, INVALID_SALE, INVALID_TRANSITION, ACT_REFUSED, KEY_REUSED, ACT_UNFINISHED])
}

fn orders() -> Vec<Operation> {
    let list =
        read("/v1/admin/sales/{sale}/orders", "listOrders", "List the orders of a sale that have a row")
            .with("after")
            .replies::<OrderPage<'static>>(
                200,
                "A page of orders, by id",
                &[],
                json!({"orders": [order("confirmed")], "page_size": 1000}),
            )
            .refuses(&[MALFORMED, SALE_NOT_FOUND, ACT_UNFINISHED]);
    let show = read("/v1/admin/sales/{sale}/orders/{id}", "showOrder", "Show an order with its history")
        .replies::<OrderWithHistory<'static>>(200, "The order", &[], with_history("confirmed"))
        .refuses(&[SALE_NOT_FOUND, ORDER_NOT_FOUND, ACT_UNFINISHED, STATUS_UNAVAILABLE]);
    let payments = read(
        "/v1/admin/payments",
        "listPayments",
        "List the events of payment providers in one state",
    )
    .with("state")
    .replies::<PaymentList>(
        200,
        "The events, the newest first",
        &[],
        json!({"payments": [{
            "provider": "acme", "event_id": "evt_1", "kind": "paid", "sale_id": "shoes", "order_id": AN_ORDER,
            "state": "late", "detail": "the order had expired", "received_at": LATER,
        }]}),
    )
    .refuses(&[MALFORMED, ACT_UNFINISHED]);
    let acts = read("/v1/admin/acts", "listActs", "List the acts of all operators")
        .replies::<OperatorActList>(
            200,
            "The acts, the latest first",
            &[],
            json!({"acts": [{
                "at": LATER, "kind": "create", "subject": "shoes", "by": "operator grace", "reason": null,
                "result": "created",
            }]}),
        )
        .refuses(&[ACT_UNFINISHED]);
    tagged("Orders", vec![list, show, payments, acts])
}

fn order_acts() -> Vec<Operation> {
    let act = |path, id, summary, state| {
        Operation::post(path, id, summary)
            .by(Caller::Operator(Role::Operator))
            .takes_reason_and::<EmptyBody>(json!({"reason": "the buyer asked"}))
            .replies::<OrderWithHistory<'static>>(200, "The order after the act", &[], with_history(state))
            .refuses(&[
                SALE_NOT_FOUND,
                ORDER_NOT_FOUND,
                INVALID_TRANSITION,
                ACT_UNFINISHED,
                STATUS_UNAVAILABLE,
            ])
    };
    let acts = vec![
        act("/v1/admin/sales/{sale}/orders/{id}:pay", "payOrder", "Mark an order as paid", "paid"),
        act("/v1/admin/sales/{sale}/orders/{id}:cancel", "cancelOrder", "Cancel an order", "cancelled"),
        act("/v1/admin/sales/{sale}/orders/{id}:refund", "refundOrder", "Refund a paid order", "refunded"),
    ];
    tagged("Orders", acts)
}

fn dead_letters() -> Vec<Operation> {
    let letter = json!({
        "id": AN_ORDER, "reason": "broken", "attempts": 5, "replays": 0, "first_error": "the database: …",
        "last_error": "the database: …", "since": LATER, "orders": null, "unreadable": "not JSON",
    });
    let list = read("/v1/admin/dead-letters", "listDeadLetters", "List the dead letters")
        .replies::<DeadLetters<'static>>(
            200,
            "The dead letters",
            &[],
            json!({"dead_letters": [letter.clone()]}),
        )
        .refuses(&[ACT_UNFINISHED]);
    let show = read("/v1/admin/dead-letters/{letter}", "showDeadLetter", "Show a dead letter")
        .replies::<DeadLetterJson<'static>>(200, "The dead letter", &[], letter)
        .refuses(&[LETTER_NOT_FOUND, ACT_UNFINISHED]);
    let act = |path, id, summary, end| {
        Operation::post(path, id, summary)
            .by(Caller::Operator(Role::Operator))
            .takes::<DeadLetterBody>(json!({"id": AN_ORDER, "reason": "the table was missing"}))
            .replies::<EndedDeadLetter<'static>>(
                200,
                "How it ended",
                &[],
                json!({"id": AN_ORDER, "end": end}),
            )
            .refuses(&[LETTER_NOT_FOUND, LETTER_UNREADABLE, ACT_UNFINISHED])
    };
    let replay = act(
        "/v1/admin/dead-letters:replay",
        "replayDeadLetter",
        "Give a dead letter to a worker again",
        "replayed",
    );
    let fail =
        act("/v1/admin/dead-letters:fail", "failDeadLetter", "Fail the orders of a dead letter", "failed");
    tagged("Dead letters", vec![list, show, replay, fail])
}

fn settings() -> Vec<Operation> {
    let all = || {
        json!({"settings": [{
            "name": "worker.lanes", "value": "2", "configured": "4", "allowed": "1 to 16",
            "set": {"by": "operator ada", "reason": "the database is slow", "at": LATER},
        }]})
    };
    let list = read("/v1/admin/settings", "listSettings", "List the settings that may change")
        .replies::<SettingList>(200, "All of them, by name", &[], all())
        .refuses(&[ACT_UNFINISHED]);
    let set = Operation::post("/v1/admin/settings:set", "setSetting", "Set a setting for all processes")
        .says("Every process follows within two seconds, if it reaches the database.")
        .by(Caller::Operator(Role::Operator))
        .takes::<SetBody>(json!({"name": "worker.lanes", "value": "2", "reason": "the database is slow"}))
        .replies::<SettingList>(200, "All settings, with this one", &[], all())
        .refuses(&[INVALID_SETTING, ACT_UNFINISHED]);
    let unset = Operation::post("/v1/admin/settings:unset", "unsetSetting", "Unset a setting")
        .says("The value of each process's configuration counts again.")
        .by(Caller::Operator(Role::Operator))
        .takes::<UnsetBody>(json!({"name": "worker.lanes", "reason": "the database is well"}))
        .replies::<SettingList>(200, "All settings", &[], all())
        .refuses(&[INVALID_SETTING, ACT_UNFINISHED]);
    tagged("Settings", vec![list, set, unset])
}

fn webhooks() -> Vec<Operation> {
    tagged("Webhooks", webhooks::operations())
}

fn monitoring() -> Vec<Operation> {
    let text =
        |media| Reply { status: 200, description: "It answers", headers: &[], content: Content::Text(media) };
    let ready = |status, description, readiness| Reply {
        status,
        description,
        headers: &[],
        content: Content::Json(schema_of::<Readiness>, readiness),
    };
    let operations = vec![
        Operation::get("/livez", "isAlive", "Whether the process answers").reply(text("text/plain")),
        Operation::get("/readyz", "isReady", "Whether the process can do its work")
            .reply(ready(
                200,
                "It takes orders: `ready` or `degraded`",
                json!({
                    "status": "degraded", "modes": ["read_only"],
                    "dependencies": {"broker": {"up": false, "detail": "not connected, or blocked"}, "redis": {"up": true}},
                }),
            ))
            .reply(ready(
                503,
                "It does not: `starting` or `unavailable`",
                json!({"status": "unavailable", "dependencies": {"redis": {"up": false, "detail": "no answer"}}}),
            )),
        Operation::get("/metrics", "readMetrics", "The metrics, as Prometheus reads them").reply(text("text/plain")),
    ];
    let monitored = operations.into_iter().map(|operation| operation.by(Caller::Monitoring)).collect();
    tagged("Monitoring", monitored)
}

fn tagged(tag: &'static str, operations: Vec<Operation>) -> Vec<Operation> {
    operations.into_iter().map(|operation| operation.tagged(tag)).collect()
}

fn sale(state: &str) -> Value {
    json!({
        "sale_id": "shoes", "name": "Shoes", "state": state, "opens_at": OPENS_AT, "closes_at": null,
        "limit_per_user": 1, "rules": {"pay_within_s": 600, "rebuy": true, "late_payment": "retake"},
        "items": [{"sku": "shoe", "stock": 500, "sold": 210, "left": 288}],
        "gate": {"epoch": 1, "seq": 215, "in_flight": 2, "oldest_accepted_at": LATER}, "needs_rebuild": false,
    })
}

fn act(kind: &str, args: &str) -> Value {
    json!({
        "sale_id": "shoes", "key": "act-1", "kind": kind, "args": args, "by": "operator grace",
        "reason": "as planned", "state": "done", "result": "done", "at": LATER,
    })
}

fn after_act(state: &str, kind: &str, args: &str) -> Value {
    let mut shown = sale(state);
    shown["act"] = act(kind, args);
    shown
}

fn audit() -> Value {
    json!({
        "sale_id": "shoes",
        "items": [{
            "sku": "shoe", "stock": 500, "left": 288, "in_flight": 2, "returning": 0, "live": 210, "sold": 210,
        }],
        "gate_lost": false, "frozen": false, "in_flight": 2, "unsettled": 0, "unreturned": 0,
        "database_behind": false, "moved": false, "number": {"epoch": 1, "seq": 215}, "live_orders": 210,
        "unpaid_orders": 40, "failed_orders": 0, "users_over_limit": [],
        "balances": true, "at_rest": false, "oversold": 0, "missing": 0,
    })
}

fn order(status: &str) -> Value {
    json!({
        "order_id": AN_ORDER, "user_id": "ada", "sku": "shoe", "quantity": 1, "status": status,
        "accepted_at": OPENS_AT, "recorded_at": LATER,
    })
}

fn with_history(status: &str) -> Value {
    json!({
        "order": order(status),
        "events": [{"from": "accepted", "to": status, "by": "operator grace", "reason": null, "at": LATER}],
    })
}
