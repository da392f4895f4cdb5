//! Orders for operators: list a sale's orders, show one with its history, mark it paid, cancel or refund it.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use super::views::{AdminOrderJson, OrderPage, OrderWithHistory};
use crate::domain::{Act, ActRequest, OrderId, SaleId};
use crate::front::auth::Role;
use crate::front::body;
use crate::front::codes::NOT_FOUND;
use crate::front::order_errors::order_problem;
use crate::front::problem::{Answered, Problem, respond_to_operator};
use crate::front::request::{PathOf, in_path, order_and_act, query_after, sale_id};
use crate::front::state::Operations;
use crate::intake::ensure_current_in;
use crate::orders::{OrderError, Shown};
use crate::store::StoreError;

/// Orders in one page.
const PAGE: u64 = 1_000;

/// One page of a sale's orders that have a row, by id. `?after=` takes the last id of the previous page.
pub(super) async fn list(
    State(app): State<Arc<Operations>>,
    path: PathOf<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer).await?;
        let after = query_after(query.as_deref())?;
        let sale = sale_id(&in_path(path)?)?;
        let store = |error: StoreError| order_problem(error.into(), &[]);
        let rows = app.store.orders_after(&sale, after, PAGE).await.map_err(store)?;
        ensure_current_in(&app.gate, &app.store, &sale).await.map_err(store)?;
        let orders = rows.iter().map(AdminOrderJson::of).collect();
        Ok(Json(OrderPage { orders, page_size: PAGE }).into_response())
    };
    respond_to_operator(answer.await, &headers)
}

pub(super) async fn show(
    State(app): State<Arc<Operations>>,
    path: PathOf<(String, String)>,
    headers: HeaderMap,
) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer).await?;
        let (sale, id, _) = order_and_act(path)?;
        shown(&app, &sale, id).await
    };
    respond_to_operator(answer.await, &headers)
}

/// `POST …/orders/{id}:pay`, `:cancel` and `:refund`.
pub(super) async fn act(
    State(app): State<Arc<Operations>>,
    path: PathOf<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let operator = app.tokens.operator(&headers, Role::Operator).await?;
        let (sale, id, act) = order_and_act(path)?;
        let act = Act::OF_OPERATORS.into_iter().find(|known| known.as_str() == act);
        let act = act.ok_or_else(|| Problem::new(NOT_FOUND, "the acts are :pay, :cancel and :refund"))?;
        let bytes = body::read(body, app.settings.body_limit, app.settings.body_within).await?;
        let body::Reason { reason } = body::json(&bytes)?;
        let request = ActRequest::by_operator(&operator).because(reason);
        app.orders.act(&sale, id, act, &request).await.map_err(problem)?;
        shown(&app, &sale, id).await
    };
    respond_to_operator(answer.await, &headers)
}

/// The order with its history. An order in flight has no history yet.
async fn shown(app: &Operations, sale: &SaleId, id: OrderId) -> Answered {
    let shown = app.orders.show(sale, id).await.map_err(problem)?;
    let shown = match &shown {
        Shown::InFlight(order) => OrderWithHistory::of(AdminOrderJson::in_flight(order), &[]),
        Shown::Recorded(row, events) => OrderWithHistory::of(AdminOrderJson::of(row), events),
    };
    Ok(Json(shown).into_response())
}

fn problem(error: OrderError) -> Box<Problem> {
    order_problem(error, &Act::OF_OPERATORS)
}
