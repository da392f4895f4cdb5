//! `POST /v1/sales/{sale}/orders`: places an order and answers with it, or with the reason for a refusal.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Deserialize;

use super::read::view_within;
use super::refusals::{failed, refused};
use super::views::OrderJson;
use crate::domain::{Durability, MAX_QUANTITY, Order, OrderStatus, Sku};
use crate::front::body;
use crate::front::codes::{INVALID_QUANTITY, UNKNOWN_SKU};
use crate::front::problem::{Answered, Problem, respond};
use crate::front::request::{PathOf, idempotency_key, in_path, preferred_wait, sale_id};
use crate::front::state::Buyers;
use crate::front::traceparent::trace_context;
use crate::intake::{Answer, OrderRequest, OrderView};
use crate::trace;

/// What to order.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct OrderBody {
    /// The item; may be left out where the sale has one.
    #[serde(default)]
    sku: Option<String>,
    /// Units of the item: 1 if left out, up to the sale's limit.
    #[serde(default)]
    #[schemars(with = "Option<u32>", range(min = 1, max = 1000))]
    quantity: Option<serde_json::Number>,
}

impl OrderBody {
    fn sku(&self) -> Answered<Option<Sku>> {
        let sku = self.sku.as_deref().map(Sku::parse).transpose();
        sku.map_err(|error| Problem::new(UNKNOWN_SKU, error.to_string()))
    }

    /// One unit if the body names no quantity.
    fn quantity(&self) -> Answered<u32> {
        let Some(number) = &self.quantity else { return Ok(1) };
        number
            .as_u64()
            .and_then(|quantity| u32::try_from(quantity).ok())
            .filter(|quantity| (1..=MAX_QUANTITY).contains(quantity))
            .ok_or_else(|| {
                Problem::new(
                    INVALID_QUANTITY,
                    format!("quantity is {number}; it must be a whole number from 1 to the sale's limit"),
                )
            })
    }
}

/// Takes the whole request: a `HeaderMap` argument would copy all headers for every click.
pub(super) async fn place(
    State(app): State<Arc<Buyers>>,
    path: PathOf<String>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    respond(place_order(&app, path, &parts.headers, body).await, &parts.headers)
}

async fn place_order(app: &Buyers, path: PathOf<String>, headers: &HeaderMap, body: Body) -> Answered {
    let user = app.tokens.user(headers).await?;
    app.live.may_order()?;
    let sale = sale_id(&in_path(path)?)?;
    let key = idempotency_key(headers)?;
    let wait = preferred_wait(headers, app.settings.longest_wait)?;
    let bytes = body::read(body, app.settings.body_limit, app.settings.body_within).await?;
    let wanted: OrderBody = body::json(&bytes)?;
    let (sku, quantity) = (wanted.sku()?, wanted.quantity()?);
    let trace = trace::is_on().then(|| trace_context(headers)).flatten();
    match app.intake.place(OrderRequest { sale, user, sku, quantity, key, trace }).await {
        Answer::Accepted { order, durability } => accepted(app, &order, durability, wait).await,
        Answer::Repeat(view) => Ok(repeated(app, view, wait).await),
        refusal => Err(refused(refusal)),
    }
}

/// A new order: 202 at once, or the order's outcome if the buyer waits and it is decided in time.
async fn accepted(app: &Buyers, order: &Order, durability: Durability, wait: Option<Duration>) -> Answered {
    metrics::counter!("doorbuster_front_accepted_total").increment(1);
    #[cfg(debug_assertions)]
    tokio::spawn(async {
        // Gives the buyer time to receive the answer before the process dies.
        tokio::time::sleep(Duration::from_millis(50)).await;
        crate::fault::fault!("answer.after");
    });
    // If the status cannot be read now, the order is still accepted.
    if let Some(wait) = wait
        && let Ok(Some(view)) = Box::pin(view_within(app, &order.sale, &order.user, order.id, wait)).await
        && view.status != OrderStatus::Accepted
    {
        return decided(&view);
    }
    Ok(with_order(StatusCode::ACCEPTED, &OrderJson::accepted(order, durability)))
}

fn decided(view: &OrderView) -> Answered {
    match view.status {
        OrderStatus::Failed => Err(failed(view)),
        status if status.is_live() => Ok(with_order(StatusCode::CREATED, &OrderJson::of(view))),
        // The order has ended already, so 201 would be wrong.
        _ => Ok(with_order(StatusCode::OK, &OrderJson::of(view))),
    }
}

/// A repeat of an earlier click: the same order with its present status. Waiting is a reading, and counts as one: above the
/// buyer's rate it is answered at once.
async fn repeated(app: &Buyers, mut view: Box<OrderView>, wait: Option<Duration>) -> Response {
    if let (Some(wait), OrderStatus::Accepted) = (wait, view.status)
        && app.live.within_rate(&view.order.user).is_ok()
        && let Ok(Some(later)) =
            Box::pin(view_within(app, &view.order.sale, &view.order.user, view.order.id, wait)).await
    {
        *view = later;
    }
    let accepted = view.status == OrderStatus::Accepted;
    let status = if accepted { StatusCode::ACCEPTED } else { StatusCode::OK };
    let mut response = with_order(status, &OrderJson::of(&view));
    let replayed = HeaderName::from_static("idempotent-replayed");
    response.headers_mut().insert(replayed, HeaderValue::from_static("true"));
    response
}

fn with_order(status: StatusCode, order: &OrderJson<'_>) -> Response {
    let mut response = (status, Json(order)).into_response();
    if let Ok(location) = HeaderValue::from_str(&order.location()) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}
