//! Dead letters for operators: list them, show one, replay it, or fail its orders.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::control::{DeadLetterEnd, DeadLetterError, DeadLetterJson};
use crate::domain::ActRequest;
use crate::front::auth::Role;
use crate::front::body;
use crate::front::codes::{ACT_UNFINISHED, INTERNAL, LETTER_NOT_FOUND, LETTER_UNREADABLE, MALFORMED};
use crate::front::problem::{Answered, Problem, respond_to_operator};
use crate::front::request::{PathOf, in_path};
use crate::front::state::Operations;
use crate::gate::GateError;
use crate::store::StoreError;

type App = State<Arc<Operations>>;

/// The act on a dead letter.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct DeadLetterBody {
    /// The id of the dead letter.
    id: String,
    /// Why, in your own words.
    #[serde(default)]
    reason: Option<String>,
}

/// The dead letters, up to a thousand.
#[derive(Serialize, JsonSchema)]
pub(in crate::front) struct DeadLetters<'a> {
    dead_letters: Vec<DeadLetterJson<'a>>,
}

/// How the act on a dead letter ended.
#[derive(Serialize, JsonSchema)]
pub(in crate::front) struct EndedDeadLetter<'a> {
    id: &'a str,
    end: DeadLetterEnd,
}

pub(super) async fn list(State(app): App, headers: HeaderMap) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer).await?;
        let letters = app.dead_letters.list().await.map_err(dead_letter_problem)?;
        let dead_letters = letters.iter().map(DeadLetterJson::listed).collect();
        Ok(Json(DeadLetters { dead_letters }).into_response())
    };
    respond_to_operator(answer.await, &headers)
}

pub(super) async fn show(State(app): App, path: PathOf<String>, headers: HeaderMap) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer).await?;
        let letter = app.dead_letters.show(&in_path(path)?).await.map_err(dead_letter_problem)?;
        Ok(Json(DeadLetterJson::whole(&letter)).into_response())
    };
    respond_to_operator(answer.await, &headers)
}

pub(super) async fn replay(State(app): App, headers: HeaderMap, body: Body) -> Response {
    let answer = async {
        let (id, request) = requested(&app, &headers, body).await?;
        ended(&id, app.dead_letters.replay(&id, &request).await)
    };
    respond_to_operator(answer.await, &headers)
}

pub(super) async fn fail(State(app): App, headers: HeaderMap, body: Body) -> Response {
    let answer = async {
        let (id, request) = requested(&app, &headers, body).await?;
        ended(&id, app.dead_letters.fail(&id, &request).await)
    };
    respond_to_operator(answer.await, &headers)
}

/// The id of the dead letter to act on, with who acts and why.
async fn requested(app: &Operations, headers: &HeaderMap, body: Body) -> Answered<(String, ActRequest)> {
    let operator = app.tokens.operator(headers, Role::Operator).await?;
    let bytes = body::read(body, app.settings.body_limit, app.settings.body_within).await?;
    let DeadLetterBody { id, reason } = body::json(&bytes)?;
    let request = ActRequest::by_operator(&operator).because(reason);
    request.check().map_err(|error| Problem::new(MALFORMED, error.to_string()))?;
    Ok((id, request))
}

fn ended(id: &str, result: Result<DeadLetterEnd, DeadLetterError>) -> Answered {
    let end = result.map_err(dead_letter_problem)?;
    Ok(Json(EndedDeadLetter { id, end }).into_response())
}

fn dead_letter_problem(error: DeadLetterError) -> Box<Problem> {
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
