//! The buyers' read routes: one order, all their orders of a sale, and the sale itself.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

use super::refusals::{sale_lost, sale_not_found, status_unavailable};
use super::views::{OrderJson, SaleJson};
use crate::domain::{Millis, OrderId, SaleId, UserId};
use crate::front::codes::ORDER_NOT_FOUND;
use crate::front::problem::{Answered, Problem, respond};
use crate::front::request::{PathOf, in_path, order_id, query_after, query_limit, query_wait, sale_id};
use crate::front::state::Buyers;
use crate::intake::{KnownSale, OrderView, StatusUnknown};

type App = State<Arc<Buyers>>;

/// `GET …/orders/{id}`; with `?wait=N` once the order is decided, or after N seconds.
pub(super) async fn order(
    State(app): App,
    path: PathOf<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let answer = async {
        app.live.may_read()?;
        let user = app.tokens.user(&headers).await?;
        app.live.within_rate(&user)?;
        let (sale, id) = in_path(path)?;
        let sale = sale_id(&sale)?;
        let id = order_id(&id)?;
        let wait = query_wait(query.as_deref(), app.settings.longest_wait)?;
        must_exist(&app, &sale).await?;
        let view = found(view_within(&app, &sale, &user, id, wait).await)?;
        Ok(Json(OrderJson::of(&view)).into_response())
    };
    respond(answer.await, &headers)
}

/// Refuses a sale that does not exist, before anything is read for it. Where it is not known whether there is one, there may
/// be.
pub(super) async fn must_exist(app: &Buyers, sale: &SaleId) -> Answered<()> {
    if app.intake.sales().is_missing(sale).await { Err(sale_not_found()) } else { Ok(()) }
}

/// The buyer's order, or why it cannot be shown.
pub(super) fn found(view: Result<Option<OrderView>, StatusUnknown>) -> Answered<OrderView> {
    view.map_err(|error| status_unavailable(&error))?
        .ok_or_else(|| Problem::new(ORDER_NOT_FOUND, "you have no order with this id"))
}

/// `GET …/orders/mine`; with `?after=ID` those after this order.
pub(super) async fn my_orders(
    State(app): App,
    path: PathOf<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let answer = async {
        app.live.may_read()?;
        let user = app.tokens.user(&headers).await?;
        app.live.within_rate(&user)?;
        let sale = sale_id(&in_path(path)?)?;
        let after = query_after(query.as_deref())?;
        let limit = query_limit(query.as_deref(), MOST_ORDERS)?;
        if let Ok(KnownSale::Draft | KnownSale::Missing) = app.intake.sales().get(&sale).await {
            return Err(sale_not_found());
        }
        let page = app.intake.orders_of(&sale, &user, after, limit).await;
        let (views, is_cut) = page.map_err(|error| status_unavailable(&error))?;
        let orders: Vec<OrderJson<'_>> = views.iter().map(OrderJson::of).collect();
        let next = views.last().filter(|_| is_cut).map(|view| view.order.id);
        Ok(Json(OrdersPage { orders, next }).into_response())
    };
    respond(answer.await, &headers)
}

/// Orders in one page of `…/orders/mine`, at most.
const MOST_ORDERS: usize = 100;

/// A buyer's orders of a sale, the oldest first.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "MyOrders")]
pub(in crate::front) struct OrdersPage<'a> {
    orders: Vec<OrderJson<'a>>,
    /// The last order of this page, if there are more: the next page is `?after=` this.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<OrderId>,
}

/// `GET /v1/sales/{sale}`, the only route without a token: a page that counts down to the opening does not know its
/// buyer yet.
pub(super) async fn sale(State(app): App, path: PathOf<String>, headers: HeaderMap) -> Response {
    let answer = async {
        app.live.may_read()?;
        let id = sale_id(&in_path(path)?)?;
        with_sale(&app, &id, answer_with).await
    };
    respond(answer.await, &headers)
}

fn answer_with(sale: SaleJson<'_>) -> Response {
    Json(sale).into_response()
}

/// Shows a sale, unless buyers may not see it or it cannot be read now.
pub(super) async fn with_sale<T>(
    app: &Buyers,
    id: &SaleId,
    show: impl FnOnce(SaleJson<'_>) -> T,
) -> Answered<T> {
    match app.intake.sales().get(id).await {
        Ok(KnownSale::Loaded(sale)) => Ok(show(SaleJson::loaded(id, &sale, sale.clock()))),
        Ok(KnownSale::Ended(row)) => Ok(show(SaleJson::from_row(id, &row, Millis::now()))),
        Ok(KnownSale::Draft | KnownSale::Missing) => Err(sale_not_found()),
        Ok(KnownSale::Lost) => Err(sale_lost()),
        Err(error) => Err(status_unavailable(&error)),
    }
}

/// Returns the order once it is decided, `wait` has passed, or the process stops. `None` if the user has no such
/// order.
pub(super) async fn view_within(
    app: &Buyers,
    sale: &SaleId,
    user: &UserId,
    id: OrderId,
    wait: Duration,
) -> Result<Option<OrderView>, StatusUnknown> {
    let decided = app.intake.view_within(sale, user, id, wait);
    match app.stop.run_until_cancelled(decided).await {
        Some(view) => view,
        None => app.intake.view(sale, user, id).await,
    }
}
