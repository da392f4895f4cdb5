//! Buyers who read their orders.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use hyper::Method;
use hyper::body::Bytes;
use tokio::time::Instant;

use super::click::is_durable;
use super::http::Connection;
use super::target::Target;
use crate::domain::{OrderId, SaleId, UserId};
use crate::rehearsal::judge::{Answer, Ask, Call, History, now_ms};

/// Connections over which [`read_in_the_end`] reads.
const CONNECTIONS: usize = 32;
/// How long it repeats a read without a final answer.
const REPEAT_FOR: Duration = Duration::from_secs(10);

/// Reads one order, and records the call. Returns whether the answer is final: it shows the order's state, or says that
/// there is no such order.
pub(super) async fn read(
    connection: &mut Connection,
    history: &History,
    sale: &SaleId,
    (user, bearer): (&UserId, &str),
    order: OrderId,
) -> bool {
    let from = now_ms();
    let path = format!("/v1/sales/{sale}/orders/{order}");
    let headers = [("authorization", bearer)];
    let answer = match connection.send(Method::GET, &path, &headers, Bytes::new()).await {
        Ok((status, bytes)) => {
            let body: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let word = ["status", "code"].into_iter().find_map(|name| body[name].as_str());
            let code = word.map_or_else(|| format!("http_{}", status.as_u16()), str::to_owned);
            let is_durable = is_durable(&body);
            Answer { status: Some(status.as_u16()), code, is_durable, ..Answer::default() }
        }
        Err(_) => Answer { code: "unanswered".into(), ..Answer::default() },
    };
    let is_final = answer.is_success() || answer.status == Some(404);
    history.add(from, user.as_str(), Ask::Read { order: order.uuid() }, answer);
    is_final
}

/// Reads every order that an answer in `calls` gave to a buyer, each until the answer is final or 10 s have passed.
pub async fn read_in_the_end(target: &Target, sale: &SaleId, calls: &[Call]) {
    let given: std::collections::BTreeMap<OrderId, &str> = calls
        .iter()
        .filter(|call| call.answer.gives_order())
        .filter_map(|call| Some((OrderId::from(call.answer.order?), call.user.as_str())))
        .collect();
    let connections = Arc::new(tokio::sync::Mutex::new(
        (0..CONNECTIONS).map(|_| Connection::new(target.buyers)).collect::<Vec<_>>(),
    ));
    let reads = given.into_iter().map(|(order, user)| {
        let connections = connections.clone();
        async move {
            let Ok(user) = UserId::parse(user) else { return };
            let bearer = target.bearer(&user);
            let taken = connections.lock().await.pop();
            let mut connection = taken.unwrap_or_else(|| Connection::new(target.buyers));
            let until = Instant::now() + REPEAT_FOR;
            while !read(&mut connection, &target.history, sale, (&user, &bearer), order).await
                && Instant::now() < until
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            connections.lock().await.push(connection);
        }
    });
    futures_util::stream::iter(reads).buffer_unordered(CONNECTIONS).collect::<()>().await;
}
