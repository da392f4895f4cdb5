//! The gate and the publisher alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use futures_util::future::try_join_all;

use super::bare;
use super::error::{BenchError, broken};
use super::orders::accept;
use super::report::{Figure, Wanted};
use super::sample::{PLENTY, attempt, open_sale, sale};
use super::world::World;
use crate::domain::{Millis, Number, Order, Sale, Verdict};
use crate::gate::Gate;
use crate::queue::Publisher;
use crate::rehearsal::servers::Kind;

/// Rounds of each measurement.
const ROUNDS: usize = 3;
/// Attempts in a round.
const ATTEMPTS: u64 = 100_000;
/// Attempts in flight at once, as from this many connections.
const AT_ONCE: usize = 256;
/// Attempts in one call of the script, in the ceiling.
const IN_A_CALL: u64 = 64;

/// Attempts that arrive one by one and share script calls, next to full calls.
pub(super) async fn gate(world: &World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    announce("the gate alone");
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

/// Admits attempts one by one until all have been admitted.
async fn admit(gate: Gate, sale: Sale, next: Arc<AtomicU64>) -> Result<(), BenchError> {
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

/// Messages with 32 orders, next to messages with one.
pub(super) async fn publisher(world: &World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    const ORDERS: usize = 60_000;
    announce("the publisher alone");
    let publisher = Publisher::open(world.queue()?);
    publisher.wait_until_up().await;
    let one = sale("publisher", PLENTY)?;
    let number = Number { epoch: 1, seq: 7 };
    let orders: Vec<Order> = (0..ORDERS as u64)
        .map(|nth| Ok(attempt(&one, nth)?.admitted(number, 1, Millis::now())))
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
