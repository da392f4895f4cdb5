//! The admin routes of dead letters: looking at them, having them processed again, ending them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;

use super::admin::answered;
use super::auth::Role;
use super::buyers::{PathOf, in_path};
use super::problem::*;
use super::{Operations, body};
use crate::control::{DeadLetterEnd, DeadLetterError, dead_letter_json};
use crate::gate::GateError;
use crate::store::StoreError;

type App = State<Arc<Operations>>;

pub(super) fn routes() -> Router<Arc<Operations>> {
    Router::new()
        .route("/v1/admin/dead-letters", get(list))
        .route("/v1/admin/dead-letters/{id}", get(show))
        .route("/v1/admin/dead-letters:replay", post(replay))
        .route("/v1/admin/dead-letters:fail", post(fail))
}

async fn list(State(app): App, headers: HeaderMap) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer)?;
        let letters = app.dead_letters.list().await.map_err(refuse)?;
        let letters: Vec<_> = letters.iter().map(|letter| dead_letter_json(letter, false)).collect();
        Ok(Json(json!({ "dead_letters": letters })).into_response())
    };
    answered(answer.await, &headers)
}

async fn show(State(app): App, path: PathOf<String>, headers: HeaderMap) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer)?;
        let letter = app.dead_letters.show(&in_path(path)?).await.map_err(refuse)?;
        Ok(Json(dead_letter_json(&letter, true)).into_response())
    };
    answered(answer.await, &headers)
}

async fn replay(State(app): App, headers: HeaderMap, body: Body) -> Response {
    let answer = async {
        let id = letter_of(&app, &headers, body, "replay").await?;
        ended(&id, app.dead_letters.replay(&id).await)
    };
    answered(answer.await, &headers)
}

async fn fail(State(app): App, headers: HeaderMap, body: Body) -> Response {
    let answer = async {
        let id = letter_of(&app, &headers, body, "fail").await?;
        ended(&id, app.dead_letters.fail(&id).await)
    };
    answered(answer.await, &headers)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LetterBody {
    id: String,
}

async fn letter_of(app: &Operations, headers: &HeaderMap, body: Body, act: &str) -> Answered<String> {
    let claims = app.tokens.operator(headers, Role::Operator)?;
    let bytes = body::read(body, app.settings.body_limit, app.settings.body_within).await?;
    let LetterBody { id } = body::json(&bytes)?;
    tracing::info!(letter = id, act, by = claims.sub, "act of an operator");
    Ok(id)
}

fn ended(id: &str, result: Result<DeadLetterEnd, DeadLetterError>) -> Answered {
    let end = result.map_err(refuse)?;
    Ok(Json(json!({ "id": id, "end": end.as_str() })).into_response())
}

fn refuse(error: DeadLetterError) -> Box<Problem> {
    let detail = error.to_string();
    match error {
        DeadLetterError::NotFound(_) => Problem::new(LETTER_NOT_FOUND, detail),
        DeadLetterError::Unreadable(..) => Problem::new(LETTER_UNREADABLE, detail),
        DeadLetterError::Store(StoreError::Broken(_)) | DeadLetterError::Gate(GateError::Broken(_)) => {
            Problem::new(INTERNAL, detail)
        }
        DeadLetterError::Queue(_)
        | DeadLetterError::Publish(_)
        | DeadLetterError::Gate(_)
        | DeadLetterError::Store(_) => Problem::new(ACT_UNFINISHED, detail).retry_after(1),
    }
}
