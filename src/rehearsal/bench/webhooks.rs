//! What webhooks cost a worker: it empties a backlog while an endpoint never answers, and while there is none.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::error::{BenchError, broken};
use super::orders::{publish, until_persisted};
use super::persist::{BACKLOG, first_batches};
use super::report::{Figure, Wanted};
use super::sample::{PLENTY, open_sale, sale};
use super::world::World;
use crate::domain::{EventTypes, Sale};
use crate::gate::Gate;
use crate::queue::Publisher;
use crate::rehearsal::servers::Kind;
use crate::store::EndpointState;
use crate::webhook::Secret;

const ROUNDS: u64 = 3;
const ENDPOINT: &str = "silent";
/// Until every process follows an endpoint that was switched.
const FOLLOWED: Duration = Duration::from_secs(3);

/// A front makes the deliveries and tries to send them meanwhile.
pub(super) async fn webhooks(world: &mut World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let (gate, store) = (world.gate()?, world.store(Kind::Postgres).await?);
    let publisher = Publisher::open(world.queue()?);
    publisher.wait_until_up().await;
    let (url, _silent) = silent().await?;
    let secret = Secret::generate().ok_or_else(|| broken("this host has no source of random bytes"))?;
    store.add_endpoint(ENDPOINT, &url, &secret, &EventTypes::all()).await.map_err(broken)?;
    let _front = world.process("front", &["webhooks.allow_private=true"]).await?;
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        announce(&format!("a backlog of {BACKLOG} with a silent endpoint, round {} of {ROUNDS}", round + 1));
        let mut rates = Vec::new();
        for state in [EndpointState::On, EndpointState::Off("the benchmark".into())] {
            store.switch_endpoint(ENDPOINT, &state).await.map_err(broken)?;
            let with = if state == EndpointState::On { "with" } else { "without" };
            let sale = sale(&format!("webhooks-{round}-{with}"), PLENTY)?;
            open_sale(&gate, &store, &sale).await?;
            publish(&gate, &publisher, &sale, 0..BACKLOG).await?;
            tokio::time::sleep(FOLLOWED).await;
            rates.push(empty(world, &gate, &sale).await?);
            // What is left to deliver must not weigh on the next measurement.
            store
                .switch_endpoint(ENDPOINT, &EndpointState::Off("the benchmark".into()))
                .await
                .map_err(broken)?;
            while store.make_deliveries(1_000).await.map_err(broken)? > 0 {}
        }
        rounds.push((rates[0], rates[1]));
    }
    let what = "persisted, an endpoint that never answers; no endpoint";
    Ok(vec![Figure::beside(what, "orders/s", rounds, Wanted::Ratio(0.6))])
}

/// The orders per second of a worker from its first batch on.
async fn empty(world: &mut World, gate: &Gate, sale: &Sale) -> Result<f64, BenchError> {
    let (worker, (left, begun)) = tokio::try_join!(world.process("worker", &[]), first_batches(gate, sale))?;
    until_persisted(gate, sale).await?;
    let rate = left as f64 / begun.elapsed().as_secs_f64();
    world.end(worker).await;
    Ok(rate)
}

/// Accepts connections, and answers nothing.
async fn silent() -> Result<(String, AbortOnDropHandle<()>), BenchError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(broken)?;
    let url = format!("http://{}/webhooks", listener.local_addr().map_err(broken)?);
    let task = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.push(stream);
        }
    });
    Ok((url, AbortOnDropHandle::new(task)))
}
