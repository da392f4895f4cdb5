//! Payment events for operators, by state.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use super::errors::control_problem;
use super::views::PaymentList;
use crate::front::auth::Role;
use crate::front::codes::MALFORMED;
use crate::front::problem::{Problem, respond_to_operator};
use crate::front::state::Operations;
use crate::store::PaymentState;

/// Events in one listing.
const PAGE: u64 = 1_000;

/// `?state=` selects the state. Without it, late events are listed, because an operator has to refund them.
pub(super) async fn list(
    State(app): State<Arc<Operations>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer).await?;
        let wanted = query.as_deref().unwrap_or("state=late");
        let wanted = wanted.strip_prefix("state=").unwrap_or(wanted);
        let state = PaymentState::ALL.into_iter().find(|state| state.as_str() == wanted);
        let states = PaymentState::ALL.map(PaymentState::as_str).join(", ");
        let state = state.ok_or_else(|| Problem::new(MALFORMED, format!("state must be one of {states}")))?;
        let payments =
            app.store.payments(state, PAGE).await.map_err(|error| control_problem(error.into()))?;
        Ok(Json(PaymentList { payments }).into_response())
    };
    respond_to_operator(answer.await, &headers)
}
