//! What payment providers tell, as signed webhooks (Standard Webhooks: an id, a time, and an HMAC-SHA256
//! over both and the raw body), and what an operator sees of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use aws_lc_rs::hmac;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::json;

use super::admin::{answered, refuse};
use super::auth::Role;
use super::buyers::{PathOf, in_path};
use super::problem::*;
use super::{Buyers, Operations, body};
use crate::domain::{Millis, OrderId, SaleId, UserId};
use crate::orders::PaymentError;
use crate::store::{Payment, PaymentKind, PaymentState, StoreError};

/// Seconds by which a callback's time may differ from this host's: an old one may be somebody's copy.
const FRESH: i64 = 300;
/// Bytes of a callback's body.
const MOST: usize = 64 * 1024;
/// Events in one listing.
const LISTED: u64 = 1_000;

/// The providers that may call, each with its secrets; several while one is being replaced.
#[derive(Clone, Default)]
pub struct Providers(BTreeMap<String, Vec<hmac::Key>>);

impl Providers {
    /// Reads `provider secret secret…`, one provider in a line or before a `;`. A secret is
    /// `whsec_` and the base64 of 24 to 64 bytes.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut providers = BTreeMap::new();
        for line in text.split(['\n', ';']).map(str::trim).filter(|line| !line.is_empty()) {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap_or_default().to_owned();
            let named = name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-');
            if !named || name.len() > 40 {
                return Err("a provider's name must be 1 to 40 of a-z, 0-9 and '-'".into());
            }
            let secrets = words.map(|secret| key(secret, &name)).collect::<Result<Vec<_>, _>>()?;
            if secrets.is_empty() {
                return Err(format!("the provider {name} has no secret"));
            }
            if providers.insert(name.clone(), secrets).is_some() {
                return Err(format!("the provider {name} stands there twice"));
            }
        }
        Ok(Self(providers))
    }
}

fn key(secret: &str, provider: &str) -> Result<hmac::Key, String> {
    // Never the secret itself: this is shown.
    let wrong = || format!("a secret of {provider} must be whsec_ and the base64 of 24 to 64 bytes");
    let bytes = STANDARD.decode(secret.strip_prefix("whsec_").ok_or_else(wrong)?).map_err(|_| wrong())?;
    if !(24..=64).contains(&bytes.len()) {
        return Err(wrong());
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
}

/// Signs as a provider does, for drills and tests.
pub fn signature(secret: &str, id: &str, timestamp: i64, body: &str) -> Result<String, String> {
    let tag = hmac::sign(&key(secret, "the drill")?, format!("{id}.{timestamp}.{body}").as_bytes());
    Ok(format!("v1,{}", STANDARD.encode(tag)))
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    data: Data,
}

/// Whatever else a provider sends is his own business.
#[derive(Deserialize)]
struct Data {
    sale_id: SaleId,
    order_id: OrderId,
    #[serde(default)]
    user_id: Option<UserId>,
}

/// `POST /v1/payments/callback/{provider}`. 200 only once the event is durable; a repeat is answered
/// as the first, with what has become of it.
async fn callback(
    State(app): State<Arc<Buyers>>,
    path: PathOf<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let provider = in_path(path)?;
        let secrets = app.providers.0.get(&provider);
        let secrets = secrets.ok_or_else(|| Problem::new(NOT_FOUND, "no such payment provider is set up"))?;
        let bytes = body::read(body, MOST, app.settings.body_within).await?;
        let event_id = verify(secrets, &headers, &bytes)?;
        let event: Event = body::json(&bytes)?;
        let kind = match event.kind.as_str() {
            "payment.succeeded" => PaymentKind::Paid,
            "payment.refunded" => PaymentKind::Refunded,
            // Nothing here follows from it, and sending it again would not help.
            _ => return Ok(Json(json!({ "state": "ignored" })).into_response()),
        };
        let payment = Payment {
            provider,
            event_id,
            kind,
            sale: event.data.sale_id,
            order: event.data.order_id,
            user: event.data.user_id,
            state: PaymentState::Pending,
            new_order: None,
            detail: None,
            received_at: Millis::now(),
        };
        let payment = app.payments.receive(&payment).await.map_err(|error| {
            let detail = error.to_string();
            match error {
                PaymentError::Reused => Problem::new(EVENT_REUSED, detail),
                PaymentError::Store(StoreError::Broken(_)) => Problem::new(INTERNAL, detail),
                PaymentError::Store(_) => Problem::new(ACT_UNFINISHED, detail).retry_after(1),
            }
        })?;
        if payment.state == PaymentState::Mismatch {
            return Err(Problem::new(PAYMENT_MISMATCH, payment.detail.unwrap_or_default()));
        }
        Ok(Json(json!({
            "state": payment.state,
            "order_id": payment.order,
            "new_order_id": payment.new_order,
            "detail": payment.detail,
        }))
        .into_response())
    };
    answer.await.unwrap_or_else(|problem| problem.of_request(&headers).into_response())
}

/// The event's id, if one of the secrets has signed id, time and body, and the time is now.
fn verify(secrets: &[hmac::Key], headers: &HeaderMap, body: &[u8]) -> Answered<String> {
    let header = |name: &str| {
        let text = headers.get(name).and_then(|value| value.to_str().ok());
        text.ok_or_else(|| Problem::new(BAD_SIGNATURE, format!("there is no readable {name} header")))
    };
    let (id, timestamp, signatures) =
        (header("webhook-id")?, header("webhook-timestamp")?, header("webhook-signature")?);
    if !(1..=100).contains(&id.len()) || !id.bytes().all(|c| c.is_ascii_graphic()) {
        return Err(Problem::new(BAD_SIGNATURE, "webhook-id must be 1 to 100 visible ASCII characters"));
    }
    let mut signed = format!("{id}.{timestamp}.").into_bytes();
    signed.extend_from_slice(body);
    let genuine = signatures.split(' ').filter_map(|signature| signature.strip_prefix("v1,")).any(|tag| {
        let Ok(tag) = STANDARD.decode(tag) else { return false };
        secrets.iter().any(|secret| hmac::verify(secret, &signed, &tag).is_ok())
    });
    if !genuine {
        metrics::counter!("payments_forged_total").increment(1);
        return Err(Problem::new(BAD_SIGNATURE, "no secret of this provider has signed this"));
    }
    // Judged after the signature: to a forger all is the same.
    let age = timestamp.parse::<i64>().ok().and_then(|sent| (Millis::now().0 / 1000).checked_sub(sent));
    if !age.is_some_and(|age| (-FRESH..=FRESH).contains(&age)) {
        metrics::counter!("payments_stale_total").increment(1);
        tracing::warn!(event = id, ?age, "a genuine callback with another time: are the clocks right?");
        let detail = format!("webhook-timestamp must be within {FRESH} seconds of now");
        return Err(Problem::new(BAD_SIGNATURE, detail));
    }
    Ok(id.to_owned())
}

pub(super) fn callbacks(buyers: Arc<Buyers>) -> Router {
    Router::new().route("/v1/payments/callback/{provider}", post(callback)).with_state(buyers)
}

pub(super) fn routes() -> Router<Arc<Operations>> {
    Router::new().route("/v1/admin/payments", get(list))
}

/// `?state=late` and the other states; late ones without it.
async fn list(State(app): State<Arc<Operations>>, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    let answer = async {
        app.tokens.operator(&headers, Role::Viewer)?;
        let asked = query.as_deref().unwrap_or("state=late");
        let asked = asked.strip_prefix("state=").unwrap_or(asked);
        let state = PaymentState::ALL.into_iter().find(|state| state.as_str() == asked);
        let states = PaymentState::ALL.map(PaymentState::as_str).join(", ");
        let state = state.ok_or_else(|| Problem::new(MALFORMED, format!("state must be one of {states}")))?;
        let payments = app.store.payments(state, LISTED).await.map_err(|error| refuse(error.into()))?;
        Ok(Json(json!({ "payments": payments })).into_response())
    };
    answered(answer.await, &headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    /// The example of the specification.
    #[test]
    fn a_signature_is_that_of_the_standard() {
        let signature =
            signature(SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signature.as_deref(), Ok("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="));
    }

    #[test]
    fn secrets_are_read_and_never_shown() {
        assert!(Providers::parse(&format!("acme {SECRET} {SECRET}\n\nother {SECRET}")).is_ok());
        assert!(Providers::parse("").is_ok());
        for wrong in
            ["acme", "acme whsec_short", "Acme x", "acme hunter2hunter2", &format!("a {SECRET};a {SECRET}")]
        {
            let error = Providers::parse(wrong).err().expect(wrong);
            assert!(!error.contains("whsec_short") && !error.contains("hunter2"), "{error}");
        }
    }
}
