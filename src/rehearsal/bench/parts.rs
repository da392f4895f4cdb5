//! The gate and the publisher by themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use futures_util::future::try_join_all;

use super::persist::accept;
use super::report::{Figure, Wanted};
use super::world::{PLENTY, World, attempt, open_sale, sale};
use super::{BenchError, bare, broken};
use crate::domain::{Order, Verdict};
use crate::gate::Gate;
use crate::queue::Publisher;
use crate::rehearsal::servers::Kind;

const ROUNDS: usize = 3;
const ATTEMPTS: u64 = 100_000;
/// Attempts that wait at the same time, as those of as many connections.
const AT_ONCE: usize = 256;
/// Attempts in a call of the script by itself.
const IN_A_CALL: u64 = 64;

/// Attempts that come one by one and share calls, beside calls that are full.
pub(super) async fn gate(world: &World, tell: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    tell("the gate alone");
    let (gate, store) = (world.gate()?, world.store(Kind::Postgres).await?);
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let one = sale(&format!("gate-{round}"), PLENTY)?;
        open_sale(&gate, &store, &one).await?;
        let begin = Instant::now();
        for from in (0..ATTEMPTS).step_by(2 * IN_A_CALL as usize) {
            let calls = [from, from + IN_A_CALL].map(|from| accept(&gate, &one, from..from + IN_A_CALL));
            try_join_all(calls).await?;
        }
        let ceiling = ATTEMPTS as f64 / begin.elapsed().as_secs_f64();
        let next = Arc::new(AtomicU64::new(2 * ATTEMPTS));
        let begin = Instant::now();
        let tasks = (0..AT_ONCE).map(|_| tokio::spawn(admit(gate.clone(), one.clone(), next.clone())));
        for task in tasks.collect::<Vec<_>>() {
            task.await.map_err(broken)??;
        }
        rounds.push((ATTEMPTS as f64 / begin.elapsed().as_secs_f64(), ceiling));
    }
    Ok(vec![Figure::beside(
        "the gate alone; its script with 64 in a call",
        "orders/s",
        rounds,
        Wanted::Informational,
    )])
}

async fn admit(gate: Gate, sale: crate::domain::Sale, next: Arc<AtomicU64>) -> Result<(), BenchError> {
    loop {
        let nth = next.fetch_add(1, Ordering::Relaxed);
        if nth >= 3 * ATTEMPTS {
            return Ok(());
        }
        match gate.admit(attempt(&sale, nth)?).await.map_err(broken)? {
            Verdict::Accepted(_) => {}
            other => return Err(broken(format!("not accepted: {other:?}"))),
        }
    }
}

/// Many orders in a message, beside one in each.
pub(super) async fn publisher(world: &World, tell: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    const ORDERS: usize = 60_000;
    tell("the publisher alone");
    let publisher = Publisher::open(world.queue()?);
    publisher.wait_until_up().await;
    let one = sale("publisher", PLENTY)?;
    let number = crate::domain::Number { epoch: 1, seq: 7 };
    let orders: Vec<Order> = (0..ORDERS as u64)
        .map(|nth| Ok(attempt(&one, nth)?.admitted(number, 1, crate::domain::Millis::now())))
        .collect::<Result<_, BenchError>>()?;
    let message =
        serde_json::to_vec(&serde_json::json!({ "v": 1, "orders": [orders[0]] })).map_err(broken)?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let ceiling = bare::publish(&world.url(Kind::Rabbitmq)?, ORDERS, 1_000, &message).await?;
        let begin = Instant::now();
        for together in orders.chunks(8 * 32) {
            try_join_all(together.chunks(32).map(|orders| publisher.publish(orders)))
                .await
                .map_err(broken)?;
        }
        rounds.push((ORDERS as f64 / begin.elapsed().as_secs_f64(), ceiling));
    }
    let what = "the publisher alone, 32 in a message; one in each";
    Ok(vec![Figure::beside(what, "orders/s", rounds, Wanted::Informational)])
}
