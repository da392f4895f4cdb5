//! Acts upon a sale: opening, pausing, restocking, changing its terms; and the list of them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::admin::{answered, refuse};
use super::auth::Role;
use super::buyers::{PathOf, idempotency_key, in_path, sale_id};
use super::problem::*;
use super::views::AdminSaleJson;
use super::{Operations, body};
use crate::domain::{ActRequest, SaleId, Sku, TermsChange};
use crate::store::SaleAct;

/// Acts in one listing.
const LISTED: u64 = 1_000;
const ACTS: &str = "the acts are :open, :pause, :resume, :close, :restock, :change and :archive";

pub(super) fn routes() -> Router<Arc<Operations>> {
    Router::new().route("/v1/admin/sales/{sale}/acts", get(list))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Restock {
    sku: Sku,
    units: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pause {
    #[serde(default)]
    message: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// `POST /v1/admin/sales/{sale}:act`, with an Idempotency-Key if it may be sent twice.
pub(super) async fn act(
    State(app): State<Arc<Operations>>,
    path: PathOf<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let claims = app.tokens.operator(&headers, Role::Operator)?;
        let path = in_path(path)?;
        // The router takes no suffix after a parameter: `{sale}:open` is split by hand.
        let (sale, act) = path.split_once(':').unwrap_or((&path, ""));
        let id = sale_id(sale)?;
        let bytes = body::read(body, 64 * 1024, app.settings.body_within).await?;
        let (asked, fields) = asked(claims.sub, &headers, &bytes)?;
        let act = perform(&app, &id, act, &asked, fields).await?;
        let status = app.control.show(&id).await.map_err(refuse)?;
        let mut shown = serde_json::to_value(AdminSaleJson::of(&status)).unwrap_or_default();
        if let Value::Object(shown) = &mut shown {
            shown.insert("act".into(), json!(act));
        }
        Ok(Json(shown).into_response())
    };
    answered(answer.await, &headers)
}

/// Every act takes a reason; the rest of the body is its own.
fn asked(who: String, headers: &HeaderMap, bytes: &[u8]) -> Answered<(ActRequest, Value)> {
    let mut fields: Value = body::json(bytes)?;
    let reason = fields.as_object_mut().and_then(|fields| fields.remove("reason"));
    let reason = match reason {
        None | Some(Value::Null) => None,
        Some(Value::String(reason)) => Some(reason),
        Some(_) => return Err(Problem::new(MALFORMED, "the body: reason must be a text")),
    };
    let key = idempotency_key(headers)?;
    Ok((ActRequest { by: format!("operator {who}"), reason, key }, fields))
}

async fn perform(
    app: &Operations,
    id: &SaleId,
    act: &str,
    asked: &ActRequest,
    fields: Value,
) -> Answered<SaleAct> {
    fn read<T: serde::de::DeserializeOwned>(fields: Value) -> Answered<T> {
        serde_json::from_value(fields).map_err(|error| Problem::new(MALFORMED, format!("the body: {error}")))
    }
    let control = &app.control;
    let done = match act {
        "pause" => control.pause(id, read::<Pause>(fields)?.message, asked).await,
        // Whoever repeats it without a key would do it twice.
        "restock" if asked.key.is_none() => {
            return Err(Problem::new(KEY_REQUIRED, "send an Idempotency-Key, a new one for each restock"));
        }
        "restock" => {
            let Restock { sku, units } = read(fields)?;
            control.restock(id, &sku, units, asked).await
        }
        "change" => control.change_terms(id, &read::<TermsChange>(fields)?, asked).await,
        "open" | "resume" | "close" | "archive" => {
            let Nothing {} = read(fields)?;
            match act {
                "open" => control.open(id, asked).await,
                "resume" => control.resume(id, asked).await,
                "close" => control.close(id, asked).await,
                _ => control.archive(id, asked).await,
            }
        }
        _ => return Err(Problem::new(NOT_FOUND, ACTS)),
    };
    done.map_err(refuse)
}

async fn list(State(app): State<Arc<Operations>>, path: PathOf<String>, headers: HeaderMap) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer)?;
        let acts = app.control.acts(&sale_id(&in_path(path)?)?, LISTED).await.map_err(refuse)?;
        Ok(Json(json!({ "acts": acts })).into_response())
    };
    answered(answer.await, &headers)
}
