//! Puts orders into the gate and the queue, and waits until they have their rows.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;

use super::error::{BenchError, broken};
use super::sample::attempt;
use crate::domain::{Order, Sale, Verdict};
use crate::gate::Gate;
use crate::queue::Publisher;

/// Orders per script call and per message, as in a rush.
const TOGETHER: u64 = 64;

/// Gets these buyers' orders accepted by the gate and confirmed by the broker.
pub(super) async fn publish(
    gate: &Gate,
    publisher: &Publisher,
    sale: &Sale,
    buyers: std::ops::Range<u64>,
) -> Result<(), BenchError> {
    let mut from = buyers.start;
    while from < buyers.end {
        // Several messages are in flight at once, as from the relay.
        let calls = (0..8).map(|call| from + call * TOGETHER).filter(|from| *from < buyers.end);
        try_join_all(calls.map(async |from| {
            let orders = accept(gate, sale, from..(from + TOGETHER).min(buyers.end)).await?;
            publisher.publish(&orders).await.map_err(broken)
        }))
        .await?;
        from += 8 * TOGETHER;
    }
    Ok(())
}

/// Gets these buyers' orders accepted by the gate, in one script call.
pub(super) async fn accept(
    gate: &Gate,
    sale: &Sale,
    buyers: std::ops::Range<u64>,
) -> Result<Vec<Order>, BenchError> {
    let attempts = buyers.map(|nth| attempt(sale, nth)).collect::<Result<Vec<_>, _>>()?;
    let verdicts = gate.admit_all(&sale.id, &attempts).await.map_err(broken)?;
    let accepted = verdicts.into_iter().map(|verdict| match verdict.map_err(broken)? {
        Verdict::Accepted(order) => Ok(order),
        other => Err(broken(format!("not accepted: {other:?}"))),
    });
    accepted.collect()
}

/// How many orders of the sale have no row yet. Asks the gate, because counting rows would load the database.
pub(super) async fn waiting(gate: &Gate, sale: &Sale) -> Result<u64, BenchError> {
    let described = gate.describe(&sale.id).await.map_err(broken)?;
    Ok(described.ok_or_else(|| broken("the gate does not know the sale"))?.waiting)
}

/// Returns when every order of the sale has its row and is settled; fails after ten minutes.
pub(super) async fn until_persisted(gate: &Gate, sale: &Sale) -> Result<(), BenchError> {
    let begin = Instant::now();
    while waiting(gate, sale).await? > 0 {
        if begin.elapsed() > Duration::from_secs(600) {
            return Err(broken("the queue is not empty after ten minutes"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
