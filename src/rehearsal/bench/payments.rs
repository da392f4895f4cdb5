//! Payments of one sale over HTTP, next to bare transactions of the same rows.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::try_join_all;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use super::error::{BenchError, broken};
use super::report::{Figure, Wanted};
use super::sample::{PLENTY, attempt, open_sale, sale};
use super::world::World;
use super::{cost, load};
use crate::domain::{Millis, Number, Order, Sale};
use crate::front::signature;
use crate::rehearsal::servers::Kind;
use crate::store::{Claim, Store};

/// Payments in a round.
const PAYMENTS: u64 = 10_000;
/// Payments in a round of the ceiling: fewer, because it is slow.
const SINGLY: u64 = 2_000;
/// Payments at once, each on a connection of its own.
const AT_ONCE: usize = 256;
/// Transactions at once in the ceiling: as many as a front with the default settings has connections for payments.
const LANES: usize = 6;
const ROUNDS: u64 = 3;
/// Orders per transaction when the rows are made.
const BATCH: usize = 800;
/// The key of the payment provider.
const SECRET: &str = "whsec_YmVuY2htYXJrLWtleS1vZi10d2VudHktZm91ci1ieXRlcw==";

/// Payments as they come just before the deadline of a sale: each is answered once the database, Redis and the order log
/// have it. The ceiling is one transaction for each payment that writes the order and the event, and nothing else.
pub(super) async fn payments(world: &mut World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let (gate, store) = (world.gate()?, world.store(Kind::Postgres).await?);
    let file = world.folder().join("payment-secrets");
    std::fs::write(&file, format!("bench {SECRET}\n")).map_err(broken)?;
    let secrets = format!("payments.secrets_file={}", file.display());
    let front = world.process("front", &[&secrets]).await?;
    let url = world.url(Kind::Postgres)?;
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        announce(&format!("{PAYMENTS} payments, round {} of {ROUNDS}", round + 1));
        let sale = sale(&format!("paid-{round}"), PLENTY)?;
        open_sale(&gate, &store, &sale).await?;
        let requests = requests(&confirmed(&store, &sale, 0..PAYMENTS).await?)?;
        let single = confirmed(&store, &sale, PAYMENTS..PAYMENTS + SINGLY).await?;
        let ceiling = singly(&url, &single).await?;
        let before = world.cpu()?;
        let answers = load::closed(front.buyers, &requests, AT_ONCE, 1).await?;
        rounds.push((answers.all(200)?.rate(), ceiling));
        announce(&cost::per_order(&before, &world.cpu()?, PAYMENTS));
    }
    world.end(front).await;
    let what = "payments (200, in the order log); one transaction for each";
    Ok(vec![Figure::beside(what, "payments/s", rounds, Wanted::Informational)])
}

/// Orders with rows, as after their settlement.
async fn confirmed(store: &Store, sale: &Sale, buyers: Range<u64>) -> Result<Vec<Order>, BenchError> {
    let orders = buyers.map(|nth| {
        let seq = i64::try_from(nth).unwrap_or(i64::MAX) + 2;
        Ok(attempt(sale, nth)?.admitted(Number { epoch: 1, seq }, 1, Millis::now()))
    });
    let orders: Vec<Order> = orders.collect::<Result<_, BenchError>>()?;
    let claims: Vec<Claim> = orders.iter().map(|order| Claim { order: order.clone(), fence: 1 }).collect();
    for claims in claims.chunks(BATCH) {
        store.record(claims, &|| true).await.map_err(broken)?;
    }
    Ok(orders)
}

/// One event of the provider for each order.
fn requests(orders: &[Order]) -> Result<Arc<Vec<Vec<u8>>>, BenchError> {
    let now = Millis::now().0 / 1_000;
    let requests = orders.iter().map(|order| {
        let (id, sale) = (order.id, &order.sale);
        let body =
            format!(r#"{{"type":"payment.succeeded","data":{{"sale_id":"{sale}","order_id":"{id}"}}}}"#);
        let signature = signature(SECRET, &id.to_string(), now, &body).map_err(broken)?;
        Ok(format!(
            "POST /v1/payments/callback/bench HTTP/1.1\r\nhost: doorbuster\r\ncontent-type: application/json\r\n\
             webhook-id: {id}\r\nwebhook-timestamp: {now}\r\nwebhook-signature: {signature}\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes())
    });
    Ok(Arc::new(requests.collect::<Result<_, BenchError>>()?))
}

/// Payments per second when each is a transaction of its own.
async fn singly(url: &str, orders: &[Order]) -> Result<f64, BenchError> {
    let mut open = Vec::new();
    for _ in 0..LANES {
        open.push(PgConnection::connect(url).await.map_err(broken)?);
    }
    let begin = Instant::now();
    let parts = orders.chunks(orders.len().div_ceil(LANES));
    try_join_all(open.into_iter().zip(parts).map(async |(connection, orders)| pay(connection, orders).await))
        .await?;
    Ok(orders.len() as f64 / begin.elapsed().as_secs_f64())
}

async fn pay(mut connection: PgConnection, orders: &[Order]) -> Result<(), BenchError> {
    const PAID: &str =
        "UPDATE orders SET status = 'paid', version = version + 1, updated_at_ms = $2 WHERE id = $1";
    const EVENT: &str = "INSERT INTO payment_events (provider, event_id, kind, sale_id, order_id, state, \
         received_at_ms, due_at_ms, updated_at_ms) VALUES ('bare', $1, 'paid', $2, $3, 'applied', $4, $4, $4)";
    for order in orders {
        let (id, now): (Uuid, i64) = (order.id.uuid(), Millis::now().0);
        let mut transaction = connection.begin().await.map_err(broken)?;
        sqlx::query(PAID).bind(id).bind(now).execute(&mut *transaction).await.map_err(broken)?;
        let event = sqlx::query(EVENT).bind(id.to_string()).bind(order.sale.as_str()).bind(id).bind(now);
        event.execute(&mut *transaction).await.map_err(broken)?;
        transaction.commit().await.map_err(broken)?;
    }
    Ok(())
}
