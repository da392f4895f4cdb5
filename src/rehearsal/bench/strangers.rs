//! A rush next to a flood of callers without any right.

use std::sync::Arc;

use super::buyers::{requests, tokens};
use super::error::{BenchError, broken};
use super::load::{self, order};
use super::orders::until_persisted;
use super::report::{Figure, Wanted};
use super::sample::{open_sale, sale, user};
use super::world::World;
use crate::front::{AuthSettings, Signer};
use crate::rehearsal::servers::Kind;

/// Buyers per second, and the units that they want.
const RATE: u32 = 5_000;
const UNITS: u32 = 10_000;
const BUYERS: u64 = 50_000;

/// Attempts per second of strangers: a million in a minute.
const STRANGERS: u32 = 16_667;

/// The 99th percentile of the same rush, calm and with a million attempts in a minute whose tokens are forged.
pub(super) async fn strangers(
    world: &mut World,
    announce: &impl Fn(&str),
) -> Result<Vec<Figure>, BenchError> {
    let front = world.process("front", &[]).await?;
    let worker = world.process("worker", &[]).await?;
    let forger =
        Signer::new(AuthSettings::with_secret("a secret that the front does not know, and long enough"));
    let forged = (0..1_000).map(|nth| Ok(order("flooded", &forger.mint(&user(nth)?, None, 86_400), None)));
    let forged: Vec<_> = forged.collect::<Result<_, BenchError>>()?;
    let seconds = BUYERS / u64::from(RATE);
    let flood = forged.iter().cycle().take((u64::from(STRANGERS) * seconds) as usize).cloned().collect();
    let flood = Arc::new(flood);

    announce("a calm rush, 5,000 requests per second");
    let calm = one_rush(world, front.buyers, "calm").await?;
    announce("the same, with 16,667 forged tokens per second");
    let (flooded, refused) = tokio::join!(
        one_rush(world, front.buyers, "flooded"),
        load::at_rate(front.buyers, &flood, 500, STRANGERS)
    );
    let (flooded, refused) = (flooded?, refused?);
    refused.all(401)?;
    world.end(worker).await;
    world.end(front).await;
    Ok(vec![
        Figure::limit("a calm rush: p99", "ms", calm, Wanted::Informational),
        Figure::limit("with forged tokens: p99", "ms", flooded, Wanted::Informational),
        Figure::limit("forged tokens refused", "answers/s", refused.rate(), Wanted::Informational),
        Figure::limit(
            "with forged tokens: p99 to the calm one",
            "times",
            flooded / calm,
            Wanted::AtMost(2.0),
        ),
    ])
}

/// The 99th percentile of a rush for a sale of its own, in milliseconds.
async fn one_rush(world: &World, buyers: std::net::SocketAddr, name: &str) -> Result<f64, BenchError> {
    let (gate, store) = (world.gate()?, world.store(Kind::Postgres).await?);
    let sale = sale(name, UNITS)?;
    open_sale(&gate, &store, &sale).await?;
    let crowd = requests(&tokens(world), name, 0..BUYERS)?;
    let answers = load::at_rate(buyers, &crowd, 500, RATE).await?;
    let accepted = answers.of(202).map_or(0, |accepted| accepted.len());
    if accepted != u64::from(UNITS) {
        return Err(broken(format!("{UNITS} units, and {:?}", answers.statuses())));
    }
    until_persisted(&gate, &sale).await?;
    Ok(answers.latency.value_at_quantile(0.99) as f64 / 1000.0)
}
