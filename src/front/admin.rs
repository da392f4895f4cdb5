//! The admin routes: creating and steering sales, reading the books.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;

use super::auth::Role;
use super::buyers::{PathOf, in_path, sale_id};
use super::problem::*;
use super::views::{AdminOrderJson, AdminSaleJson, AuditJson};
use super::{Operations, body};
use crate::audit::audit;
use crate::control::ControlError;
use crate::domain::{Item, Millis, OrderId, Sale, Terms, Window};
use crate::gate::GateError;
use crate::store::StoreError;

type App = State<Arc<Operations>>;

/// Orders in one page of a listing.
const PAGE: u64 = 1_000;

pub(super) fn routes() -> Router<Arc<Operations>> {
    Router::new()
        .route("/v1/admin/sales", get(list).post(create))
        .route("/v1/admin/sales/{sale}", get(show).post(super::acts::act))
        .route("/v1/admin/sales/{sale}/audit", get(books))
        .route("/v1/admin/sales/{sale}/check", get(check))
        .route("/v1/admin/sales/{sale}/orders", get(orders))
}

pub(super) fn answered(result: Answered, headers: &HeaderMap) -> Response {
    result.unwrap_or_else(|problem| problem.of_request(headers).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SaleBody {
    sale_id: String,
    name: Option<String>,
    opens_at: Option<Millis>,
    closes_at: Option<Millis>,
    #[serde(default = "one")]
    limit_per_user: u32,
    #[serde(default)]
    rules: Terms,
    items: Vec<Item>,
}

fn one() -> u32 {
    1
}

async fn create(State(app): App, headers: HeaderMap, body: Body) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Admin)?;
        let bytes = body::read(body, 64 * 1024, app.settings.body_within).await?;
        let wanted: SaleBody = body::json(&bytes)?;
        let sale = Sale {
            id: wanted
                .sale_id
                .parse()
                .map_err(|error| Problem::new(INVALID_SALE, format!("sale_id: {error}")))?,
            name: wanted.name.unwrap_or_else(|| wanted.sale_id.clone()),
            window: Window {
                opens_at: wanted.opens_at.unwrap_or_else(Millis::now),
                closes_at: wanted.closes_at,
            },
            limit_per_user: wanted.limit_per_user,
            terms: wanted.rules,
            items: wanted.items,
        };
        app.control.create(&sale).await.map_err(refuse)?;
        Ok((StatusCode::CREATED, Json(AdminSaleJson::draft(&sale))).into_response())
    };
    answered(answer.await, &headers)
}

async fn list(State(app): App, headers: HeaderMap) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer)?;
        let listed = app.control.list().await.map_err(refuse)?;
        let sales: Vec<AdminSaleJson<'_>> = listed.iter().map(AdminSaleJson::of).collect();
        Ok(Json(json!({ "sales": sales })).into_response())
    };
    answered(answer.await, &headers)
}

async fn show(State(app): App, path: PathOf<String>, headers: HeaderMap) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer)?;
        let status = app.control.show(&sale_id(&in_path(path)?)?).await.map_err(refuse)?;
        Ok(Json(AdminSaleJson::of(&status)).into_response())
    };
    answered(answer.await, &headers)
}

/// Is it ready for its buyers? The broker is in `/readyz`.
async fn check(State(app): State<Arc<Operations>>, path: PathOf<String>, headers: HeaderMap) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer)?;
        let checks = app.control.check(&sale_id(&in_path(path)?)?).await.map_err(refuse)?;
        let ready = checks.iter().all(|check| check.good);
        Ok(Json(json!({ "ready": ready, "checks": checks })).into_response())
    };
    answered(answer.await, &headers)
}

async fn books(State(app): App, path: PathOf<String>, headers: HeaderMap) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer)?;
        let audit = audit(&app.gate, &app.store, &sale_id(&in_path(path)?)?).await;
        let audit = audit.map_err(|error| refuse(error.into()))?;
        Ok(Json(AuditJson::of(&audit)).into_response())
    };
    answered(answer.await, &headers)
}

/// One page of a sale's orders with committed outcomes, by id; `?after=` the last id of the page before.
async fn orders(
    State(app): App,
    path: PathOf<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer)?;
        let after: Option<OrderId> = query
            .as_deref()
            .and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("after=")))
            .map(|id| id.parse().map_err(|_| Problem::new(MALFORMED, "after must be an order id")))
            .transpose()?;
        let rows = app.store.orders_after(&sale_id(&in_path(path)?)?, after, PAGE).await;
        let rows = rows.map_err(|error| refuse(error.into()))?;
        let orders: Vec<AdminOrderJson<'_>> = rows.iter().map(AdminOrderJson::of).collect();
        Ok(Json(json!({ "orders": orders, "page_size": PAGE })).into_response())
    };
    answered(answer.await, &headers)
}

pub(super) fn refuse(error: ControlError) -> Box<Problem> {
    let detail = error.to_string();
    match error {
        ControlError::NotFound(_) => Problem::new(SALE_NOT_FOUND, detail),
        ControlError::Exists(_) => Problem::new(SALE_EXISTS, detail),
        ControlError::Invalid(_) => Problem::new(INVALID_SALE, detail),
        ControlError::NotFrom { state, .. } => {
            Problem::new(INVALID_TRANSITION, detail).with("state", state.as_str())
        }
        ControlError::Lost => Problem::new(INVALID_TRANSITION, detail),
        ControlError::UnknownItem => Problem::new(UNKNOWN_SKU, detail),
        ControlError::Refused(_) => Problem::new(ACT_REFUSED, detail),
        ControlError::KeyReused => Problem::new(KEY_REUSED, detail),
        ControlError::Store(StoreError::Broken(_)) | ControlError::Gate(GateError::Broken(_)) => {
            Problem::new(INTERNAL, detail)
        }
        // An act may be half done: doing it again goes on.
        ControlError::Busy | ControlError::Gate(_) | ControlError::Store(_) => {
            Problem::new(ACT_UNFINISHED, detail).retry_after(1)
        }
    }
}
