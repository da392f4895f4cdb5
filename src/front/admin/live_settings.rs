//! Settings for operators: list them, set one for all processes, or have the configuration's value count again.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::control::{SettingError, SettingStatus};
use crate::domain::ActRequest;
use crate::front::auth::Role;
use crate::front::body;
use crate::front::codes::{ACT_UNFINISHED, INVALID_SETTING, MALFORMED};
use crate::front::problem::{Answered, Problem, respond_to_operator};
use crate::front::state::Operations;

/// The setting to set.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct SetBody {
    /// A key of the configuration, such as `worker.lanes`.
    name: String,
    /// Its value as text, such as `2` or `true`.
    value: String,
    /// Why, in your own words.
    #[serde(default)]
    reason: Option<String>,
}

/// The setting to unset.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct UnsetBody {
    /// A key of the configuration, such as `worker.lanes`.
    name: String,
    /// Why, in your own words.
    #[serde(default)]
    reason: Option<String>,
}

/// All settings that may change, by name.
#[derive(Serialize, JsonSchema)]
pub(in crate::front) struct SettingList {
    settings: Vec<SettingStatus>,
}

pub(super) async fn list(State(app): State<Arc<Operations>>, headers: HeaderMap) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer).await?;
        listed(app.live_settings.list().await)
    };
    respond_to_operator(answer.await, &headers)
}

pub(super) async fn set(State(app): State<Arc<Operations>>, headers: HeaderMap, body: Body) -> Response {
    let answer = async {
        let operator = app.tokens.operator(&headers, Role::Operator).await?;
        let bytes = body::read(body, app.settings.body_limit, app.settings.body_within).await?;
        let SetBody { name, value, reason } = body::json(&bytes)?;
        let request = ActRequest::by_operator(&operator).because(reason);
        listed(app.live_settings.set(&name, &value, &request).await)
    };
    respond_to_operator(answer.await, &headers)
}

pub(super) async fn unset(State(app): State<Arc<Operations>>, headers: HeaderMap, body: Body) -> Response {
    let answer = async {
        let operator = app.tokens.operator(&headers, Role::Operator).await?;
        let bytes = body::read(body, app.settings.body_limit, app.settings.body_within).await?;
        let UnsetBody { name, reason } = body::json(&bytes)?;
        let request = ActRequest::by_operator(&operator).because(reason);
        listed(app.live_settings.unset(&name, &request).await)
    };
    respond_to_operator(answer.await, &headers)
}

fn listed(result: Result<Vec<SettingStatus>, SettingError>) -> Answered {
    match result {
        Ok(settings) => Ok(Json(SettingList { settings }).into_response()),
        Err(error @ SettingError::Setting(_)) => Err(Problem::new(INVALID_SETTING, error.to_string())),
        Err(error @ SettingError::Request(_)) => Err(Problem::new(MALFORMED, error.to_string())),
        Err(error @ SettingError::Store(_)) => {
            Err(Problem::new(ACT_UNFINISHED, error.to_string()).retry_after(1))
        }
    }
}
