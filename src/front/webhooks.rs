//! Payment providers' callbacks: signed events that say an order was paid or refunded.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::body;
use super::codes::{ACT_UNFINISHED, EVENT_REUSED, INTERNAL, PAYMENT_MISMATCH};
use super::problem::{Answered, Problem, respond};
use super::request::{PathOf, in_path};
use super::signatures::claimed;
use super::state::Buyers;
use crate::domain::{Millis, OrderId, SaleId, UserId};
use crate::orders::PaymentError;
use crate::store::{Payment, PaymentKind, PaymentState, StoreError};

pub(super) fn router(buyers: Arc<Buyers>) -> Router {
    Router::new().route("/v1/payments/callback/{provider}", post(callback)).with_state(buyers)
}

/// An event of a payment provider.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Event {
    /// `payment.succeeded` or `payment.refunded`; any other type is answered 200 and changes nothing.
    #[serde(rename = "type")]
    _kind: String,
    data: EventData,
}

/// Which order it is about. A provider may send more fields, which are ignored.
#[derive(Deserialize, JsonSchema)]
struct EventData {
    sale_id: SaleId,
    order_id: OrderId,
    /// Who paid; if the order belongs to somebody else, the event is a `payment_mismatch`.
    #[serde(default)]
    user_id: Option<UserId>,
}

/// What became of an event.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum ReceivedEvent {
    /// The event is recorded, in the database and in the order log.
    Recorded {
        /// How far it has come.
        state: PaymentState,
        order_id: OrderId,
        /// The new order, if a late payment took a unit again.
        new_order_id: Option<OrderId>,
        /// Why it is in this state, if that needs explaining.
        detail: Option<String>,
    },
    /// An event type that changes no order.
    Ignored { state: Ignored },
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ignored {
    Ignored,
}

/// What an event says about itself, whatever it is about.
#[derive(Deserialize)]
struct AnyEvent {
    #[serde(rename = "type")]
    kind: String,
}

/// `None` for event types that change no order.
fn payment_kind(kind: &str) -> Option<PaymentKind> {
    match kind {
        "payment.succeeded" => Some(PaymentKind::Paid),
        "payment.refunded" => Some(PaymentKind::Refunded),
        _ => None,
    }
}

impl EventData {
    fn payment(self, kind: PaymentKind, provider: String, event_id: String) -> Payment {
        Payment {
            provider,
            event_id,
            kind,
            sale: self.sale_id,
            order: self.order_id,
            user: self.user_id,
            state: PaymentState::Pending,
            new_order: None,
            detail: None,
            received_at: Millis::now(),
        }
    }
}

/// `POST /v1/payments/callback/{provider}`. Answers 200 only once the event is durable, in the database and in the order
/// log. A repeat gets the event's present state.
async fn callback(
    State(app): State<Arc<Buyers>>,
    path: PathOf<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    respond(receive(&app, path, &headers, body).await, &headers)
}

async fn receive(app: &Buyers, path: PathOf<String>, headers: &HeaderMap, body: Body) -> Answered {
    let provider = in_path(path)?;
    let claimed = claimed(headers)?;
    let bytes = body::read(body, body::LARGE, app.settings.body_within).await?;
    let event_id = claimed.verified_id(app.providers.secrets(&provider), &bytes)?;
    let AnyEvent { kind } = body::json(&bytes)?;
    let Some(kind) = payment_kind(&kind) else {
        // Not an error: the provider would only send the event again. It may be about anything.
        return Ok(Json(ReceivedEvent::Ignored { state: Ignored::Ignored }).into_response());
    };
    let Event { data, .. } = body::json(&bytes)?;
    let payment = data.payment(kind, provider, event_id);
    let payment = app.payments.receive(&payment).await.map_err(payment_problem)?;
    if payment.state == PaymentState::Mismatch {
        return Err(Problem::new(PAYMENT_MISMATCH, payment.detail.unwrap_or_default()));
    }
    let detail = match payment.state {
        // Why it waits may name a server, and is for operators.
        PaymentState::Pending => Some("it waits, and is applied by itself".into()),
        _ => payment.detail,
    };
    Ok(Json(ReceivedEvent::Recorded {
        state: payment.state,
        order_id: payment.order,
        new_order_id: payment.new_order,
        detail,
    })
    .into_response())
}

fn payment_problem(error: PaymentError) -> Box<Problem> {
    let detail = error.to_string();
    match error {
        PaymentError::Reused => Problem::new(EVENT_REUSED, detail),
        PaymentError::Store(StoreError::Broken(_)) => {
            Problem::new(INTERNAL, "the event is not recorded").because(detail)
        }
        PaymentError::Store(_) | PaymentError::Gate(_) | PaymentError::NotLogged(_) => {
            let problem =
                Problem::new(ACT_UNFINISHED, "the event does not count as received yet; send it again");
            problem.because(detail).retry_after(1)
        }
    }
}
