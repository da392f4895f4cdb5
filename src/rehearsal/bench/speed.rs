//! The path of an order, part by part, each next to its ceiling.

use super::error::{BenchError, broken};
use super::report::{Figure, Report};
use super::world::World;
use super::{
    accepted, events, fronts, growth, memory, parts, payments, persist, refusals, restarts, rush, strangers,
    traces, webhooks,
};
use crate::rehearsal::servers::Kind;

/// The parts of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Refusals and repeats over HTTP.
    Refusals,
    /// Orders accepted over HTTP while a worker persists them.
    Accepted,
    /// A worker empties a backlog.
    Backlog,
    /// The same with three restarts of the worker.
    Restarts,
    /// Payments over HTTP.
    Payments,
    /// Latency at a fixed rate.
    Rush,
    /// Latency at a fixed rate, next to a flood of forged tokens.
    Strangers,
    /// Streams of events: how soon a change arrives, and what open streams cost.
    Events,
    /// Readings of a hot sale by ten fronts.
    Fronts,
    /// The same as `backlog`, with an endpoint of webhooks that never answers.
    Webhooks,
    /// Orders accepted over HTTP, with traces and without.
    Traces,
    /// The gate and the publisher alone.
    Parts,
    /// The store alone, on each database.
    Stores,
    /// The memory use of idle connections, orders and sales.
    Memory,
    /// The cost of an order after a million others, and with a thousand sales at once.
    Growth,
}

impl Part {
    const ALL: [Self; 15] = [
        Self::Refusals,
        Self::Accepted,
        Self::Backlog,
        Self::Restarts,
        Self::Payments,
        Self::Rush,
        Self::Strangers,
        Self::Events,
        Self::Fronts,
        Self::Webhooks,
        Self::Traces,
        Self::Parts,
        Self::Stores,
        Self::Memory,
        Self::Growth,
    ];
}

/// Measures these parts, or all if none is given, with the settings of `config/default.toml`. Each part gets new
/// private servers, so that none inherits data from another. A part that fails ends the run; the report keeps the
/// figures measured so far.
pub async fn run(parts: &[Part], announce: impl Fn(&str)) -> Result<Report, BenchError> {
    let parts = if parts.is_empty() { &Part::ALL[..] } else { parts };
    let mut figures = Vec::new();
    for part in parts {
        match on_new_servers(*part, &announce).await {
            Ok(measured) => figures.extend(measured),
            Err(error) => return Ok(Report { bench: "speed", figures, unfinished: Some(error.to_string()) }),
        }
    }
    Ok(Report { bench: "speed", figures, unfinished: None })
}

async fn on_new_servers(part: Part, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let mut world = new_world(part, announce).await?;
    let measured = measure(part, &mut world, announce).await;
    world.stop().await;
    measured
}

/// Starts new servers, with the tables that the processes need.
async fn new_world(part: Part, announce: &impl Fn(&str)) -> Result<World, BenchError> {
    let mut kinds = vec![Kind::Redis, Kind::Rabbitmq, Kind::Postgres];
    if part == Part::Stores {
        kinds.push(Kind::Mariadb);
    }
    announce("starting private servers");
    let world = World::start(&kinds).await?;
    world.store(Kind::Postgres).await?.close().await;
    // Otherwise each sync would wait until the disk has written the page cache left by the previous part and the new
    // servers.
    tokio::task::spawn_blocking(rustix::fs::sync).await.map_err(broken)?;
    Ok(world)
}

async fn measure(part: Part, world: &mut World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    match part {
        Part::Refusals => refusals::refusals(world, announce).await,
        Part::Accepted => accepted::accepted(world, announce).await,
        Part::Backlog => persist::backlog(world, announce).await,
        Part::Restarts => restarts::restarts(world, announce).await,
        Part::Payments => payments::payments(world, announce).await,
        Part::Rush => rush::rush(world, announce).await,
        Part::Strangers => strangers::strangers(world, announce).await,
        Part::Events => events::events(world, announce).await,
        Part::Fronts => fronts::fronts(world, announce).await,
        Part::Webhooks => webhooks::webhooks(world, announce).await,
        Part::Traces => traces::traces(world, announce).await,
        Part::Parts => {
            let mut figures = parts::gate(world, announce).await?;
            figures.extend(parts::publisher(world, announce).await?);
            Ok(figures)
        }
        Part::Stores => persist::stores(world, announce).await,
        Part::Memory => {
            let mut figures = memory::idle(world, announce).await?;
            figures.extend(memory::redis_memory(world, announce).await?);
            Ok(figures)
        }
        Part::Growth => {
            let mut new = new_world(part, announce).await?;
            let orders = growth::orders(world, &mut new, announce).await;
            new.stop().await;
            let mut figures = orders?;
            figures.extend(growth::sales(world, announce).await?);
            Ok(figures)
        }
    }
}
