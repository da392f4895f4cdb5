//! Orders accepted over HTTP, next to bare publishing.

use super::buyers::{LONG_TIMEOUTS, requests, tokens};
use super::error::{BenchError, broken};
use super::orders::until_persisted;
use super::report::{Figure, Wanted};
use super::sample::{PLENTY, attempt, open_sale, sale};
use super::world::World;
use super::{bare, cost, load};
use crate::domain::{Millis, Number, Order, Sale};
use crate::rehearsal::servers::Kind;

/// Orders in a round.
const ACCEPTED: u64 = 60_000;
/// Orders in flight at once: one per connection here, and unconfirmed messages in the ceiling.
const IN_FLIGHT: usize = 1_000;

/// Orders accepted while a worker persists them, each answered after the broker's confirm; next to publishing the
/// same orders one by one.
pub(super) async fn accepted(world: &mut World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let (gate, store) = (world.gate()?, world.store(Kind::Postgres).await?);
    let broker = world.url(Kind::Rabbitmq)?;
    // Makes sure that 202 always means that the broker has the order.
    let front =
        world.process("front", &[&["intake.durability=broker_only"][..], &LONG_TIMEOUTS].concat()).await?;
    let worker = world.process("worker", &[]).await?;
    let tokens = tokens(world);
    let mut rounds = Vec::new();
    for round in 0..3 {
        announce(&format!("accepting {ACCEPTED} orders, round {} of 3", round + 1));
        let sale = sale(&format!("rush-{round}"), PLENTY)?;
        open_sale(&gate, &store, &sale).await?;
        let message = message(&sale)?;
        let ceiling = bare::publish(&broker, ACCEPTED as usize, IN_FLIGHT, &message).await?;
        let buyers = requests(&tokens, sale.id.as_str(), 0..ACCEPTED)?;
        let before = world.cpu()?;
        let answers = load::closed(front.buyers, &buyers, IN_FLIGHT, 1).await?;
        rounds.push((answers.all(202)?.rate(), ceiling));
        until_persisted(&gate, &sale).await?;
        announce(&cost::per_order(&before, &world.cpu()?, ACCEPTED));
    }
    let figure = Figure::beside(
        "accepted (202 after the confirm); bare publishing",
        "orders/s",
        rounds,
        Wanted::Ratio(1.0),
    );
    world.end(worker).await;
    world.end(front).await;
    Ok(vec![figure])
}

/// The message of one order, as the relay publishes it.
fn message(sale: &Sale) -> Result<Vec<u8>, BenchError> {
    let number = Number { epoch: 1, seq: 7 };
    let order: Order = attempt(sale, 7)?.admitted(number, 1, Millis::now());
    serde_json::to_vec(&serde_json::json!({ "v": 1, "orders": [order] })).map_err(broken)
}
