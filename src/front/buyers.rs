//! The buyers' routes.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;

use super::problem::*;
use super::throttle::{self, Throttle, rate_limited};
use super::views::{OrderJson, SaleJson};
use super::{Buyers, body};
use crate::domain::{IdempotencyKey, MAX_QUANTITY, Millis, OrderId, OrderStatus, SaleId, Sku, UserId};
use crate::intake::{Answer, KnownSale, OrderRequest, OrderView, StatusUnknown};

/// Seconds after which to try again where nothing better is known.
const SOON: u64 = 1;
/// The same for a paused sale that says nothing else.
const PAUSED: u64 = 5;

type App = State<Arc<Buyers>>;

pub(super) fn router(buyers: Arc<Buyers>) -> Router {
    let throttle = Throttle::new(&buyers.throttle);
    let router = Router::new()
        .route("/v1/sales/{sale}/orders", post(place))
        .route("/v1/sales/{sale}/orders/mine", get(mine))
        .route("/v1/sales/{sale}/orders/{id}", get(order).post(super::orders::cancel))
        .route("/v1/sales/{sale}", get(sale))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(buyers.clone());
    let router = match throttle {
        Some(limit) => router.layer(axum::middleware::from_fn_with_state(limit, throttle::throttle)),
        None => router,
    };
    // A provider sends from few addresses, and signs.
    router.merge(super::payments::callbacks(buyers))
}

pub(super) async fn not_found() -> Response {
    Problem::new(NOT_FOUND, "no such path").into_response()
}

pub(super) async fn method_not_allowed() -> Response {
    Problem::new(METHOD_NOT_ALLOWED, "this path does not take this method").into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OrderBody {
    #[serde(default)]
    sku: Option<String>,
    #[serde(default)]
    quantity: Option<serde_json::Number>,
}

/// Takes the request whole: `HeaderMap` as an argument would be a copy of all headers for every click.
async fn place(State(app): App, path: PathOf<String>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    place_order(&app, path, &parts.headers, body)
        .await
        .unwrap_or_else(|problem| problem.of_request(&parts.headers).into_response())
}

async fn place_order(app: &Buyers, path: PathOf<String>, headers: &HeaderMap, body: Body) -> Answered {
    let user = app.tokens.user(headers)?;
    let sale = sale_id(&in_path(path)?)?;
    let key = idempotency_key(headers)?;
    let wait = preferred_wait(app, headers)?;
    let bytes = body::read(body, app.settings.body_limit, app.settings.body_within).await?;
    let wanted: OrderBody = body::json(&bytes)?;
    let sku = match wanted.sku {
        None => None,
        Some(sku) => Some(Sku::parse(sku).map_err(|error| Problem::new(UNKNOWN_SKU, error.to_string()))?),
    };
    let quantity = match wanted.quantity {
        None => 1,
        Some(number) => number
            .as_u64()
            .and_then(|quantity| u32::try_from(quantity).ok())
            .filter(|quantity| (1..=MAX_QUANTITY).contains(quantity))
            .ok_or_else(|| {
                Problem::new(
                    INVALID_QUANTITY,
                    format!("quantity is {number}; it must be a whole number from 1 to the sale's limit"),
                )
            })?,
    };
    let wish = OrderRequest { sale: sale.clone(), user: user.clone(), sku, quantity, key };
    match app.intake.place(wish).await {
        Answer::Accepted { order, durability } => {
            metrics::counter!("front_accepted_total").increment(1);
            #[cfg(debug_assertions)]
            tokio::spawn(async {
                // By then the answer is with the buyer.
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                crate::fault::fault!("answer.after");
            });
            let Some(wait) = wait else {
                return Ok(created(
                    StatusCode::ACCEPTED,
                    &OrderJson::accepted(&order, durability),
                    &sale,
                    order.id,
                    false,
                ));
            };
            // What cannot be read now is still accepted.
            let view = Box::pin(app.waited(&sale, &user, order.id, wait)).await.ok().flatten();
            match view {
                Some(view) if view.status == OrderStatus::Failed => Err(failed(&view)),
                Some(view) if view.status != OrderStatus::Accepted => {
                    // Ended meanwhile, by its buyer or an operator: there is nothing that was created.
                    let live = view.status.is_live();
                    let status = if live { StatusCode::CREATED } else { StatusCode::OK };
                    Ok(created(status, &OrderJson::of(&view), &sale, view.order.id, false))
                }
                _ => Ok(created(
                    StatusCode::ACCEPTED,
                    &OrderJson::accepted(&order, durability),
                    &sale,
                    order.id,
                    false,
                )),
            }
        }
        Answer::Repeat(mut view) => {
            if let (Some(wait), OrderStatus::Accepted) = (wait, view.status)
                && let Ok(Some(later)) = Box::pin(app.waited(&sale, &user, view.order.id, wait)).await
            {
                *view = later;
            }
            let accepted = view.status == OrderStatus::Accepted;
            let status = if accepted { StatusCode::ACCEPTED } else { StatusCode::OK };
            Ok(created(status, &OrderJson::of(&view), &sale, view.order.id, true))
        }
        refusal => Err(refuse(refusal)),
    }
}

fn created(
    status: StatusCode,
    order: &OrderJson<'_>,
    sale: &SaleId,
    id: OrderId,
    replayed: bool,
) -> Response {
    let mut response = (status, Json(order)).into_response();
    let headers = response.headers_mut();
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/sales/{sale}/orders/{id}")) {
        headers.insert(header::LOCATION, location);
    }
    if replayed {
        headers.insert(HeaderName::from_static("idempotent-replayed"), HeaderValue::from_static("true"));
    }
    response
}

fn failed(view: &OrderView) -> Box<Problem> {
    let failure = view.failure.map_or("unknown", |failure| failure.as_str());
    Problem::new(ORDER_FAILED, format!("the order was accepted, but it could not be confirmed: {failure}"))
        .with("order_id", view.order.id.to_string())
        .with("failure", failure)
}

fn refuse(answer: Answer) -> Box<Problem> {
    match answer {
        Answer::SaleNotFound => Problem::new(SALE_NOT_FOUND, "no sale has this id"),
        Answer::SkuRequired => Problem::new(MALFORMED, "the sale has several items: name one as \"sku\""),
        Answer::UnknownSku => Problem::new(UNKNOWN_SKU, "see the sale's items for its skus"),
        Answer::InvalidQuantity { limit } => {
            Problem::new(INVALID_QUANTITY, format!("a buyer may have 1 to {limit} units of this sale"))
                .with("limit_per_user", limit)
        }
        Answer::KeyRequired => Problem::new(
            KEY_REQUIRED,
            "this sale allows several orders: send an Idempotency-Key, a new one for each order",
        ),
        Answer::KeyReused => {
            Problem::new(KEY_REUSED, "the key was used for another sku or quantity: use a new key")
        }
        Answer::NotOpen { now, opens_at } => {
            Problem::new(SALE_NOT_OPEN, format!("the sale opens at {opens_at}"))
                .with("opens_at", opens_at.to_string())
                .retry_at(now, opens_at)
        }
        Answer::Closed => Problem::new(SALE_CLOSED, "no more orders are taken"),
        Answer::Paused { message, retry_after } => {
            let told = message.unwrap_or_else(|| "no orders are taken for now".into());
            Problem::new(SALE_PAUSED, told).retry_after(retry_after.unwrap_or(PAUSED))
        }
        Answer::RateLimited(limited) => rate_limited(&limited, if limited.of_user { "user" } else { "sale" }),
        Answer::SoldOut => Problem::new(SOLD_OUT, "fewer units are left than you asked for"),
        Answer::AlreadyOrdered(id) => {
            Problem::new(ALREADY_ORDERED, "one order per buyer").with("order_id", id.to_string())
        }
        Answer::PurchaseLimit { limit } => {
            Problem::new(PURCHASE_LIMIT, format!("a buyer may have {limit} units of this sale"))
                .with("limit_per_user", limit)
        }
        Answer::Overloaded => {
            Problem::new(OVERLOADED, "this attempt took nothing; try again with the same Idempotency-Key")
                .retry_after(2)
        }
        Answer::GateUnavailable(why) => Problem::new(GATE_UNAVAILABLE, why).retry_after(SOON),
        Answer::OutcomeUnknown(id, why) => {
            Problem::new(OUTCOME_UNKNOWN, format!("{why}; repeat with the same Idempotency-Key, it is safe"))
                .with("order_id", id.to_string())
                .retry_after(SOON)
        }
        Answer::RepeatUnreadable(id) => {
            Problem::new(STATUS_UNAVAILABLE, "you have this order, but its status cannot be read now")
                .with("order_id", id.to_string())
                .retry_after(SOON)
        }
        // Both are answered before; an order that is there must never look like a refusal.
        Answer::Accepted { order, .. } => {
            Problem::new(INTERNAL, "accepted").with("order_id", order.id.to_string())
        }
        Answer::Repeat(view) => {
            Problem::new(INTERNAL, "accepted").with("order_id", view.order.id.to_string())
        }
    }
}

async fn order(
    State(app): App,
    path: PathOf<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let answer = async {
        let user = app.tokens.user(&headers)?;
        let (sale, id) = in_path(path)?;
        let sale = sale_id(&sale)?;
        let id = id.parse().map_err(|_| Problem::new(ORDER_NOT_FOUND, "an order id is a UUID"))?;
        let wait = query_wait(&app, query.as_deref())?;
        match app.waited(&sale, &user, id, wait).await {
            Ok(Some(view)) => {
                let payments = app.payments.of(&view).await.unwrap_or_default();
                Ok(fresh(Json(OrderJson::of(&view).with(&payments)).into_response()))
            }
            Ok(None) => Err(Problem::new(ORDER_NOT_FOUND, "you have no order with this id")),
            Err(error) => Err(unknown(&error)),
        }
    };
    answer.await.unwrap_or_else(|problem| problem.of_request(&headers).into_response())
}

async fn mine(State(app): App, path: PathOf<String>, headers: HeaderMap) -> Response {
    let answer = async {
        let user = app.tokens.user(&headers)?;
        let sale = sale_id(&in_path(path)?)?;
        if let Ok(KnownSale::Missing) = app.intake.sales().get(&sale).await {
            return Err(Problem::new(SALE_NOT_FOUND, "no sale has this id"));
        }
        let views = app.intake.orders_of(&sale, &user).await.map_err(|error| unknown(&error))?;
        let orders: Vec<OrderJson<'_>> = views.iter().map(OrderJson::of).collect();
        Ok(fresh(Json(serde_json::json!({ "orders": orders })).into_response()))
    };
    answer.await.unwrap_or_else(|problem| problem.of_request(&headers).into_response())
}

/// The one route without a token: a page that counts down to the opening has no buyer yet.
async fn sale(State(app): App, path: PathOf<String>, headers: HeaderMap) -> Response {
    let answer = async {
        let id = sale_id(&in_path(path)?)?;
        let gone = || Problem::new(SALE_NOT_FOUND, "no sale has this id");
        match app.intake.sales().get(&id).await {
            Ok(KnownSale::Loaded(sale)) => {
                Ok(fresh(Json(SaleJson::loaded(&id, &sale, sale.clock())).into_response()))
            }
            Ok(KnownSale::NotOpened(row) | KnownSale::Ended(row)) => {
                Ok(fresh(Json(SaleJson::draft(&id, &row, Millis::now())).into_response()))
            }
            Ok(KnownSale::Missing) => Err(gone()),
            Ok(KnownSale::Lost) => {
                Err(Problem::new(STATUS_UNAVAILABLE, "the sale must be rebuilt").retry_after(5))
            }
            Err(error) => Err(Problem::new(STATUS_UNAVAILABLE, error.to_string()).retry_after(SOON)),
        }
    };
    answer.await.unwrap_or_else(|problem| problem.of_request(&headers).into_response())
}

/// What is true now may be false in a second: no cache may keep it.
fn fresh(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn unknown(error: &StatusUnknown) -> Box<Problem> {
    Problem::new(STATUS_UNAVAILABLE, error.to_string()).retry_after(SOON)
}

/// Taken as it comes: a path that is not UTF-8 is answered like any other that names nothing.
pub(super) type PathOf<T> = Result<Path<T>, PathRejection>;

pub(super) fn in_path<T>(path: PathOf<T>) -> Answered<T> {
    path.map(|Path(parts)| parts).map_err(|error| Problem::new(NOT_FOUND, error.to_string()))
}

pub(super) fn sale_id(text: &str) -> Answered<SaleId> {
    SaleId::parse(text).map_err(|error| Problem::new(SALE_NOT_FOUND, error.to_string()))
}

pub(super) fn idempotency_key(headers: &HeaderMap) -> Answered<Option<IdempotencyKey>> {
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Problem::new(MALFORMED, "there is more than one Idempotency-Key header"));
    }
    value
        .to_str()
        .ok()
        .and_then(|text| IdempotencyKey::parse(text).ok())
        .map(Some)
        .ok_or_else(|| Problem::new(MALFORMED, "an Idempotency-Key must be 1 to 64 visible ASCII characters"))
}

/// `Prefer: wait=N` (RFC 7240), N in seconds. Other preferences are not ours to judge.
fn preferred_wait(app: &Buyers, headers: &HeaderMap) -> Answered<Option<Duration>> {
    for value in headers.get_all("prefer") {
        let text = value.to_str().map_err(|_| Problem::new(MALFORMED, "the Prefer header is not text"))?;
        for preference in text.split([',', ';']) {
            if let Some(seconds) = preference.trim().strip_prefix("wait=") {
                return wait(app, seconds).map(Some);
            }
        }
    }
    Ok(None)
}

fn query_wait(app: &Buyers, query: Option<&str>) -> Answered<Duration> {
    let pairs = query.unwrap_or_default().split('&');
    let asked = pairs.filter_map(|pair| pair.strip_prefix("wait=")).next();
    asked.map_or(Ok(Duration::ZERO), |seconds| wait(app, seconds))
}

fn wait(app: &Buyers, seconds: &str) -> Answered<Duration> {
    let longest = app.settings.longest_wait;
    let seconds: u64 = seconds.parse().map_err(|_| {
        Problem::new(MALFORMED, format!("wait must be a number of seconds, at most {longest:?}"))
    })?;
    Ok(Duration::from_secs(seconds).min(longest))
}

impl Buyers {
    /// The order when it is decided, when the wait is over, or when the process stops.
    async fn waited(
        &self,
        sale: &SaleId,
        user: &UserId,
        id: OrderId,
        wait: Duration,
    ) -> Result<Option<OrderView>, StatusUnknown> {
        let decided = self.intake.view_within(sale, user, id, wait);
        match self.stop.run_until_cancelled(decided).await {
            Some(view) => view,
            None => self.intake.view(sale, user, id).await,
        }
    }
}
