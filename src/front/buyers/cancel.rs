//! `POST …/orders/{id}:cancel`: a buyer ends their own order.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use super::read::must_exist;
use super::views::OrderJson;
use crate::domain::{Act, ActRequest};
use crate::front::body;
use crate::front::codes::NOT_FOUND;
use crate::front::order_errors::order_problem;
use crate::front::problem::{Problem, respond};
use crate::front::request::{PathOf, order_and_act};
use crate::front::state::Buyers;
use crate::intake::OrderView;

pub(super) async fn cancel(
    State(app): State<Arc<Buyers>>,
    path: PathOf<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let user = app.tokens.user(&headers).await?;
        app.live.may_change()?;
        app.live.within_rate(&user)?;
        let (sale, id, act) = order_and_act(path)?;
        if act != "cancel" {
            return Err(Problem::new(NOT_FOUND, "a buyer's act on an order is :cancel"));
        }
        must_exist(&app, &sale).await?;
        let bytes = body::read(body, app.settings.body_limit, app.settings.body_within).await?;
        let body::Reason { reason } = body::json(&bytes)?;
        let request = ActRequest::by("buyer").because(reason);
        let problem = |error| order_problem(error, &Act::OF_BUYERS);
        let row = app.orders.cancel_own(&sale, id, &user, &request).await.map_err(problem)?;
        let events = app.orders.history(row.order.id).await.map_err(|error| problem(error.into()))?;
        Ok(Json(OrderJson::of(&OrderView::recorded(row, &events))).into_response())
    };
    respond(answer.await, &headers)
}
