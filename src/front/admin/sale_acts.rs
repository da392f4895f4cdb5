//! Acts on a sale: open, pause, resume, close, archive, restock, change the terms; and the list of past acts.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::errors::control_problem;
use super::views::{AdminSaleJson, OperatorActList, SaleActList, SaleAfterAct};
use crate::domain::{ActRequest, SaleId, Sku, TermsChange};
use crate::front::auth::Role;
use crate::front::body;
use crate::front::codes::{KEY_REQUIRED, MALFORMED, NOT_FOUND};
use crate::front::problem::{Answered, Problem, respond_to_operator};
use crate::front::request::{PathOf, idempotency_key, in_path, sale_id, split_act};
use crate::front::state::Operations;
use crate::store::SaleAct;

/// Acts in one listing.
const PAGE: u64 = 1_000;
const ACTS: &str = "the acts are :open, :pause, :resume, :close, :restock, :change and :archive";

/// Units to add.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct RestockBody {
    /// The item.
    sku: Sku,
    /// Units to add; negative to take unsold units away.
    units: i64,
}

/// The pause of a sale.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct PauseBody {
    /// Shown to buyers while the sale is paused: 1 to 200 characters.
    #[serde(default)]
    message: Option<String>,
}

/// Nothing: the act needs no more.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct EmptyBody {}

/// `POST /v1/admin/sales/{sale}:act`, with an `Idempotency-Key` if the client may send it twice.
pub(super) async fn act(
    State(app): State<Arc<Operations>>,
    path: PathOf<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let operator = app.tokens.operator(&headers, Role::Operator).await?;
        let path = in_path(path)?;
        let (sale, act) = split_act(&path);
        let id = sale_id(sale)?;
        let bytes = body::read(body, body::LARGE, app.settings.body_within).await?;
        let (request, fields) = act_request(&operator, &headers, &bytes)?;
        let act = perform(&app, &id, act, &request, fields).await?;
        let status = app.control.show(&id).await.map_err(control_problem)?;
        Ok(Json(SaleAfterAct { sale: AdminSaleJson::of(&status), act }).into_response())
    };
    respond_to_operator(answer.await, &headers)
}

/// Splits the body into the reason, which every act takes, and the act's own fields.
fn act_request(operator: &str, headers: &HeaderMap, bytes: &[u8]) -> Answered<(ActRequest, Value)> {
    let mut fields: Value = body::json(bytes)?;
    let reason = fields.as_object_mut().and_then(|fields| fields.remove("reason"));
    let reason = match reason {
        None | Some(Value::Null) => None,
        Some(Value::String(reason)) => Some(reason),
        Some(_) => return Err(Problem::new(MALFORMED, "the body: reason must be a string")),
    };
    let key = idempotency_key(headers)?;
    Ok((ActRequest { key, ..ActRequest::by_operator(operator).because(reason) }, fields))
}

async fn perform(
    app: &Operations,
    id: &SaleId,
    act: &str,
    request: &ActRequest,
    fields: Value,
) -> Answered<SaleAct> {
    let control = &app.control;
    let done = match act {
        "pause" => control.pause(id, body::fields::<PauseBody>(fields)?.message, request).await,
        // Without a key, a repeat would add the units twice.
        "restock" if request.key.is_none() => {
            return Err(Problem::new(KEY_REQUIRED, "send an Idempotency-Key, a new one for each restock"));
        }
        "restock" => {
            let RestockBody { sku, units } = body::fields(fields)?;
            control.restock(id, &sku, units, request).await
        }
        "change" => control.change_terms(id, &body::fields::<TermsChange>(fields)?, request).await,
        "open" | "resume" | "close" | "archive" => {
            let EmptyBody {} = body::fields(fields)?;
            match act {
                "open" => control.open(id, request).await,
                "resume" => control.resume(id, request).await,
                "close" => control.close(id, request).await,
                _ => control.archive(id, request).await,
            }
        }
        _ => return Err(Problem::new(NOT_FOUND, ACTS)),
    };
    done.map_err(control_problem)
}

/// The latest acts of all operators, on sales, dead letters and users.
pub(super) async fn list_all(State(app): State<Arc<Operations>>, headers: HeaderMap) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer).await?;
        let acts = app.control.latest_acts(PAGE).await.map_err(control_problem)?;
        Ok(Json(OperatorActList { acts }).into_response())
    };
    respond_to_operator(answer.await, &headers)
}

pub(super) async fn list(
    State(app): State<Arc<Operations>>,
    path: PathOf<String>,
    headers: HeaderMap,
) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer).await?;
        let acts = app.control.acts(&sale_id(&in_path(path)?)?, PAGE).await.map_err(control_problem)?;
        Ok(Json(SaleActList { acts }).into_response())
    };
    respond_to_operator(answer.await, &headers)
}
