//! What becomes of an order: the buyer's cancelling, and the operators' acts.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;

use super::admin::answered;
use super::auth::Role;
use super::buyers::{PathOf, in_path, sale_id};
use super::problem::*;
use super::views::{AdminOrderJson, OrderJson};
use super::{Buyers, Operations, body};
use crate::domain::{Act, ActRequest, OrderId, SaleId};
use crate::gate::GateError;
use crate::intake::OrderView;
use crate::orders::OrderError;
use crate::store::{OrderEvent, StoreError};

pub(super) fn routes() -> Router<Arc<Operations>> {
    Router::new().route("/v1/admin/sales/{sale}/orders/{id}", get(show).post(act))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ActBody {
    #[serde(default)]
    reason: Option<String>,
}

/// `POST …/orders/{id}:cancel`. The buyer's own orders alone.
pub(super) async fn cancel(
    State(app): State<Arc<Buyers>>,
    path: PathOf<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let user = app.tokens.user(&headers)?;
        let (sale, id, act) = addressed(path)?;
        if act != "cancel" {
            return Err(Problem::new(NOT_FOUND, "a buyer's act on an order is :cancel"));
        }
        let bytes = body::read(body, app.settings.body_limit, app.settings.body_within).await?;
        let ActBody { reason } = body::json(&bytes)?;
        let asked = ActRequest::by("buyer").because(reason);
        let of_buyers = |error| refuse(error, &Act::OF_BUYERS);
        let row = app.orders.cancel_own(&sale, id, &user, &asked).await.map_err(of_buyers)?;
        let (row, events) = app.orders.show(&sale, row.order.id).await.map_err(of_buyers)?;
        Ok(Json(OrderJson::of(&OrderView::recorded(row, &events))).into_response())
    };
    answer.await.unwrap_or_else(|problem| problem.of_request(&headers).into_response())
}

async fn show(
    State(app): State<Arc<Operations>>,
    path: PathOf<(String, String)>,
    headers: HeaderMap,
) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer)?;
        let (sale, id, _) = addressed(path)?;
        shown(&app, &sale, id).await
    };
    answered(answer.await, &headers)
}

/// `POST …/orders/{id}:pay`, `:cancel` and `:refund`.
async fn act(
    State(app): State<Arc<Operations>>,
    path: PathOf<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let claims = app.tokens.operator(&headers, Role::Operator)?;
        let (sale, id, act) = addressed(path)?;
        let act = Act::OF_OPERATORS.into_iter().find(|known| known.as_str() == act);
        let act = act.ok_or_else(|| Problem::new(NOT_FOUND, "the acts are :pay, :cancel and :refund"))?;
        let bytes = body::read(body, app.settings.body_limit, app.settings.body_within).await?;
        let ActBody { reason } = body::json(&bytes)?;
        let asked = ActRequest::by(format!("operator {}", claims.sub)).because(reason);
        app.orders.act(&sale, id, act, &asked).await.map_err(of_operators)?;
        shown(&app, &sale, id).await
    };
    answered(answer.await, &headers)
}

async fn shown(app: &Operations, sale: &SaleId, id: OrderId) -> Answered {
    let (row, events) = match app.orders.show(sale, id).await {
        Err(OrderError::NotFound(_)) => {
            let waiting = app.orders.in_flight(sale, id).await.map_err(of_operators)?;
            let order = waiting.ok_or_else(|| of_operators(OrderError::NotFound(id)))?;
            return Ok(
                Json(json!({ "order": AdminOrderJson::in_flight(&order), "events": [] })).into_response()
            );
        }
        shown => shown.map_err(of_operators)?,
    };
    let events: Vec<_> = events.iter().map(event_json).collect();
    Ok(Json(json!({ "order": AdminOrderJson::of(&row), "events": events })).into_response())
}

fn event_json(event: &OrderEvent) -> serde_json::Value {
    json!({ "from": event.from, "to": event.to, "by": event.actor, "reason": event.reason, "at": event.at })
}

/// The router takes no suffix after a parameter: `{id}:cancel` is split by hand.
fn addressed(path: PathOf<(String, String)>) -> Answered<(SaleId, OrderId, String)> {
    let (sale, rest) = in_path(path)?;
    let (id, act) = rest.split_once(':').unwrap_or((&rest, ""));
    let id = id.parse().map_err(|_| Problem::new(ORDER_NOT_FOUND, "an order id is a UUID"))?;
    Ok((sale_id(&sale)?, id, act.to_owned()))
}

fn of_operators(error: OrderError) -> Box<Problem> {
    refuse(error, &Act::OF_OPERATORS)
}

/// `acts` are those that the caller may ask for.
fn refuse(error: OrderError, acts: &[Act]) -> Box<Problem> {
    let detail = error.to_string();
    match error {
        OrderError::NotFound(_) => Problem::new(ORDER_NOT_FOUND, "there is no such order"),
        OrderError::NotAllowed { from, .. } => {
            let allowed: Vec<&str> = from.allowed(acts).into_iter().map(Act::as_str).collect();
            Problem::new(INVALID_TRANSITION, detail).with("from", from.as_str()).with("allowed", allowed)
        }
        OrderError::Invalid(_) => Problem::new(MALFORMED, detail),
        OrderError::Store(StoreError::Broken(_)) | OrderError::Gate(GateError::Broken(_)) => {
            Problem::new(INTERNAL, detail)
        }
        OrderError::Busy | OrderError::Gate(_) | OrderError::Lease(_) | OrderError::Store(_) => {
            Problem::new(ACT_UNFINISHED, detail).retry_after(1)
        }
    }
}
