//! The ceilings for HTTP and for publishing: a bare axum route that reads and answers the same JSON as the order
//! route, and a publisher of single messages with a window of confirms.

use std::time::Instant;

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};
use serde::{Deserialize, Serialize};

use super::error::{BenchError, broken};

/// The body of an order request.
#[derive(Deserialize)]
struct Wanted {
    sku: String,
    quantity: u32,
}

/// A problem of the same length as the front's.
#[derive(Serialize)]
struct Refused {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    code: &'static str,
    retryable: bool,
    request_id: &'static str,
}

/// Serves the bare route on this port of 127.0.0.1 until the process ends.
pub async fn http(port: u16) -> Result<(), BenchError> {
    let refuse = |Path(sale): Path<String>, Json(wanted): Json<Wanted>| async move {
        let detail = format!("fewer than {} of {} are left in {sale}", wanted.quantity, wanted.sku);
        let refused = Refused {
            r#type: "urn:doorbuster:problem:sold_out",
            title: "Sold out",
            status: 409,
            detail,
            code: "sold_out",
            retryable: false,
            request_id: "01994ad4-7c1e-7a60-bd1c-3a8e5c1f5f10",
        };
        (StatusCode::CONFLICT, [(header::CACHE_CONTROL, "no-store")], Json(refused)).into_response()
    };
    let router = Router::new().route("/", get(async || "")).route("/v1/sales/{sale}/orders", post(refuse));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.map_err(broken)?;
    axum::serve(listener, router).await.map_err(broken)
}

/// Messages per second that one quorum queue confirms, with at most `window` of them unconfirmed.
pub(super) async fn publish(
    url: &str,
    count: usize,
    window: usize,
    payload: &[u8],
) -> Result<f64, BenchError> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.map_err(broken)?;
    let channel = connection.create_channel().await.map_err(broken)?;
    channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(broken)?;
    let name = "bench.ceiling";
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(name.into(), durable, arguments).await.map_err(broken)?;
    let persistent = BasicProperties::default().with_delivery_mode(2);
    let begin = Instant::now();
    let mut waiting = FuturesUnordered::new();
    let confirmed = |confirmed: lapin::Result<Confirmation>| match confirmed {
        Ok(Confirmation::Ack(None)) => Ok(()),
        other => Err(broken(format!("not confirmed: {other:?}"))),
    };
    for _ in 0..count {
        if waiting.len() >= window
            && let Some(result) = waiting.next().await
        {
            confirmed(result)?;
        }
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let sent = channel.basic_publish("".into(), name.into(), options, payload, persistent.clone());
        waiting.push(sent.await.map_err(broken)?);
    }
    while let Some(result) = waiting.next().await {
        confirmed(result)?;
    }
    let rate = count as f64 / begin.elapsed().as_secs_f64();
    channel.queue_purge(name.into(), Default::default()).await.map_err(broken)?;
    connection.close(200, "done".into()).await.map_err(broken)?;
    Ok(rate)
}
