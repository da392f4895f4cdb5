//! The endpoints of webhooks for operators: list them, add one, and see to one.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::control::{EndpointStatus, WebhookActs, WebhookError};
use crate::domain::{ActRequest, EventTypes, Invalid};
use crate::front::auth::Role;
use crate::front::body;
use crate::front::codes::{
    ACT_REFUSED, ACT_UNFINISHED, ENDPOINT_EXISTS, ENDPOINT_NOT_FOUND, INTERNAL, INVALID_ENDPOINT, MALFORMED,
};
use crate::front::problem::{Answered, Problem, respond_to_operator};
use crate::front::state::Operations;

/// The endpoint to add.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct NewEndpointBody {
    /// A name for it, such as `shop`.
    id: String,
    /// Where it is.
    url: String,
    /// The types of events that it is given. Default: all.
    #[serde(default)]
    events: Option<Vec<String>>,
    /// Why, in your own words.
    #[serde(default)]
    reason: Option<String>,
}

/// What an endpoint is to be given.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct ChosenEventsBody {
    /// Its name.
    id: String,
    /// The types of events, such as `order.paid`; `order.*` and `sale.*` are all of a kind.
    events: Vec<String>,
    /// Why, in your own words.
    #[serde(default)]
    reason: Option<String>,
}

/// An endpoint.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct EndpointBody {
    /// Its name.
    id: String,
    /// Why, in your own words.
    #[serde(default)]
    reason: Option<String>,
}

/// All endpoints, by id; none if they could not be read for the answer with a new secret.
#[derive(Serialize, JsonSchema)]
pub(in crate::front) struct EndpointList {
    endpoints: Vec<EndpointStatus>,
    /// What verifies the deliveries of the endpoint that was added, or given a new secret. It is not shown again.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

/// An act on an endpoint.
#[derive(Clone, Copy)]
enum EndpointAct {
    Remove,
    On,
    Off,
    Rotate,
    Retire,
    Redeliver,
}

impl EndpointAct {
    fn role(self) -> Role {
        match self {
            Self::Remove | Self::Rotate | Self::Retire => Role::Admin,
            Self::On | Self::Off | Self::Redeliver => Role::Operator,
        }
    }

    /// The secret, if there is a new one.
    async fn done(
        self,
        acts: &WebhookActs,
        id: &str,
        request: &ActRequest,
    ) -> Result<Option<String>, WebhookError> {
        match self {
            Self::Remove => acts.remove(id, request).await.map(|()| None),
            Self::On => acts.switch(id, true, request).await.map(|()| None),
            Self::Off => acts.switch(id, false, request).await.map(|()| None),
            Self::Rotate => acts.rotate(id, request).await.map(Some),
            Self::Retire => acts.retire(id, request).await.map(|()| None),
            Self::Redeliver => acts.redeliver(id, request).await.map(|_| None),
        }
    }
}

pub(super) async fn list(State(app): State<Arc<Operations>>, headers: HeaderMap) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer).await?;
        listed(&app, None).await
    };
    respond_to_operator(answer.await, &headers)
}

pub(super) async fn add(State(app): State<Arc<Operations>>, headers: HeaderMap, body: Body) -> Response {
    let answer = async {
        let operator = app.tokens.operator(&headers, Role::Admin).await?;
        let bytes = body::read(body, app.settings.body_limit, app.settings.body_within).await?;
        let NewEndpointBody { id, url, events, reason } = body::json(&bytes)?;
        let events = events.map_or_else(|| Ok(EventTypes::all()), |events| types(&events))?;
        let request = ActRequest::by_operator(&operator).because(reason);
        let secret = app.webhooks.add(&id, &url, &events, &request).await.map_err(problem)?;
        listed(&app, Some(secret)).await
    };
    respond_to_operator(answer.await, &headers)
}

pub(super) async fn choose(State(app): State<Arc<Operations>>, headers: HeaderMap, body: Body) -> Response {
    let answer = async {
        let operator = app.tokens.operator(&headers, Role::Operator).await?;
        let bytes = body::read(body, app.settings.body_limit, app.settings.body_within).await?;
        let ChosenEventsBody { id, events, reason } = body::json(&bytes)?;
        let request = ActRequest::by_operator(&operator).because(reason);
        app.webhooks.choose(&id, &types(&events)?, &request).await.map_err(problem)?;
        listed(&app, None).await
    };
    respond_to_operator(answer.await, &headers)
}

pub(super) async fn remove(app: State<Arc<Operations>>, headers: HeaderMap, body: Body) -> Response {
    act(EndpointAct::Remove, app, headers, body).await
}

pub(super) async fn on(app: State<Arc<Operations>>, headers: HeaderMap, body: Body) -> Response {
    act(EndpointAct::On, app, headers, body).await
}

pub(super) async fn off(app: State<Arc<Operations>>, headers: HeaderMap, body: Body) -> Response {
    act(EndpointAct::Off, app, headers, body).await
}

pub(super) async fn rotate(app: State<Arc<Operations>>, headers: HeaderMap, body: Body) -> Response {
    act(EndpointAct::Rotate, app, headers, body).await
}

pub(super) async fn retire(app: State<Arc<Operations>>, headers: HeaderMap, body: Body) -> Response {
    act(EndpointAct::Retire, app, headers, body).await
}

pub(super) async fn redeliver(app: State<Arc<Operations>>, headers: HeaderMap, body: Body) -> Response {
    act(EndpointAct::Redeliver, app, headers, body).await
}

async fn act(
    kind: EndpointAct,
    State(app): State<Arc<Operations>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let operator = app.tokens.operator(&headers, kind.role()).await?;
        let bytes = body::read(body, app.settings.body_limit, app.settings.body_within).await?;
        let EndpointBody { id, reason } = body::json(&bytes)?;
        let request = ActRequest::by_operator(&operator).because(reason);
        let done = kind.done(&app.webhooks, &id, &request).await;
        listed(&app, done.map_err(problem)?).await
    };
    respond_to_operator(answer.await, &headers)
}

async fn listed(app: &Operations, secret: Option<String>) -> Answered {
    let endpoints = match app.webhooks.list().await {
        Ok(endpoints) => endpoints,
        // The act is done, and nobody could ask for its secret a second time.
        Err(error) if secret.is_some() => {
            tracing::warn!(%error, "the endpoints are not listed in the answer with a new secret");
            Vec::new()
        }
        Err(error) => return Err(problem(error)),
    };
    Ok(Json(EndpointList { endpoints, secret }).into_response())
}

fn types(names: &[String]) -> Result<EventTypes, Box<Problem>> {
    names.join(",").parse().map_err(|invalid: Invalid| Problem::new(INVALID_ENDPOINT, invalid.to_string()))
}

fn problem(error: WebhookError) -> Box<Problem> {
    let code = match &error {
        WebhookError::Id(_) | WebhookError::Url { .. } => INVALID_ENDPOINT,
        WebhookError::Exists(_) => ENDPOINT_EXISTS,
        WebhookError::Unknown(_) => ENDPOINT_NOT_FOUND,
        WebhookError::Rotating(_) | WebhookError::Changed(_) => ACT_REFUSED,
        WebhookError::NoRandom => INTERNAL,
        WebhookError::Request(_) => MALFORMED,
        WebhookError::Store(_) => {
            return Problem::new(ACT_UNFINISHED, error.to_string()).retry_after(1);
        }
    };
    Problem::new(code, error.to_string())
}
