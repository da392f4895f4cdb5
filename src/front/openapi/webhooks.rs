//! The operations on endpoints of webhooks.

use serde_json::{Value, json};

use super::operation::{Caller, Operation};
use crate::front::Role;
use crate::front::admin::webhooks::{ChosenEventsBody, EndpointBody, EndpointList, NewEndpointBody};
use crate::front::codes::*;

const URL: &str = "https://shop.example/webhooks/doorbuster";
const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDjWkZqLfHqDo=";

pub(super) fn operations() -> Vec<Operation> {
    let list = Operation::get("/v1/admin/webhooks", "listEndpoints", "List the endpoints of webhooks")
        .by(Caller::Operator(Role::Viewer))
        .replies::<EndpointList>(200, "All of them, by id", &[], all(None))
        .refuses(&[ACT_UNFINISHED]);
    let add = Operation::post("/v1/admin/webhooks:add", "addEndpoint", "Add an endpoint")
        .says("Every process follows within two seconds. What happened before is not delivered.")
        .by(Caller::Operator(Role::Admin))
        .takes::<NewEndpointBody>(
            json!({"id": "shop", "url": URL, "events": ["order.paid", "sale.*"], "reason": "the new shop"}),
        )
        .replies::<EndpointList>(200, "All endpoints, and the secret of this one", &[], all(Some(SECRET)))
        .refuses(&[INVALID_ENDPOINT, ENDPOINT_EXISTS, ACT_UNFINISHED]);
    let choose =
        Operation::post("/v1/admin/webhooks:events", "chooseEvents", "Choose what an endpoint is given")
            .says("What waits already stays.")
            .by(Caller::Operator(Role::Operator))
            .takes::<ChosenEventsBody>(
                json!({"id": "shop", "events": ["order.*"], "reason": "the warehouse"}),
            )
            .replies::<EndpointList>(200, "All endpoints", &[], all(None))
            .refuses(&[INVALID_ENDPOINT, ENDPOINT_NOT_FOUND, ACT_UNFINISHED]);
    let act = |path, id, summary, role, secret: Option<&str>| {
        Operation::post(path, id, summary)
            .by(Caller::Operator(role))
            .takes::<EndpointBody>(json!({"id": "shop", "reason": "it moves to another host"}))
            .replies::<EndpointList>(200, "All endpoints", &[], all(secret))
            .refuses(&[ENDPOINT_NOT_FOUND, ACT_UNFINISHED])
    };
    let (admin, operator) = (Role::Admin, Role::Operator);
    let remove = act("/v1/admin/webhooks:remove", "removeEndpoint", "Remove an endpoint", admin, None)
        .says("What waits for it is removed as well.");
    let on = act("/v1/admin/webhooks:on", "switchEndpointOn", "Switch an endpoint on", operator, None)
        .says("What waited before is delivered.");
    let off = act("/v1/admin/webhooks:off", "switchEndpointOff", "Switch an endpoint off", operator, None)
        .says("What happens meanwhile is not delivered later.");
    let rotate = act(
        "/v1/admin/webhooks:rotate",
        "rotateSecret",
        "Give an endpoint a new secret",
        admin,
        Some(SECRET),
    )
    .says("Deliveries are signed with the old one as well, until it is retired.")
    .refuses(&[ENDPOINT_NOT_FOUND, ACT_REFUSED, ACT_UNFINISHED]);
    let retire =
        act("/v1/admin/webhooks:retire", "retireSecret", "Retire the old secret of an endpoint", admin, None);
    let redeliver = act(
        "/v1/admin/webhooks:redeliver",
        "redeliver",
        "Deliver at once what failed or was given up",
        operator,
        None,
    );
    vec![list, add, choose, remove, on, off, rotate, retire, redeliver]
}

fn all(secret: Option<&str>) -> Value {
    let endpoint = json!({
        "id": "shop", "url": URL, "events": ["order.paid"], "is_on": true, "secrets": 1, "waiting": 3, "given_up": 0,
    });
    match secret {
        Some(secret) => json!({"endpoints": [endpoint], "secret": secret}),
        None => json!({"endpoints": [endpoint]}),
    }
}
