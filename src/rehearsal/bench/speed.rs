//! The whole way of an order, part by part, each beside its ceiling.

use super::report::{Figure, Report};
use super::world::World;
use super::{BenchError, broken, growth, http, parts, persist};
use crate::rehearsal::servers::Kind;

/// What is measured: one part, or all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Refusals and repeats over HTTP.
    Refusals,
    /// Acceptances over HTTP while a worker persists.
    Accepted,
    /// A backlog that a worker empties.
    Backlog,
    /// Latency at a fixed rate.
    Rush,
    /// The gate and the publisher alone.
    Parts,
    /// The store alone, on each database.
    Stores,
    /// Memory of idle connections, orders and sales.
    Memory,
    /// What an order costs after a million others, and with a thousand sales at once.
    Growth,
}

impl Part {
    const ALL: [Self; 8] = [
        Self::Refusals,
        Self::Accepted,
        Self::Backlog,
        Self::Rush,
        Self::Parts,
        Self::Stores,
        Self::Memory,
        Self::Growth,
    ];
}

/// Measures on private servers, with the settings of `config/default.toml`; each part on servers of its
/// own, so that none works on what another has left.
pub async fn run(parts: &[Part], tell: impl Fn(&str)) -> Result<Report, BenchError> {
    let parts = if parts.is_empty() { &Part::ALL[..] } else { parts };
    let mut figures = Vec::new();
    for part in parts {
        match on_its_own(*part, &tell).await {
            Ok(measured) => figures.extend(measured),
            // What was measured by then is not thrown away.
            Err(error) => return Ok(Report { bench: "speed", figures, unfinished: Some(error.to_string()) }),
        }
    }
    Ok(Report { bench: "speed", figures, unfinished: None })
}

async fn on_its_own(part: Part, tell: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let mut world = new_world(part, tell).await?;
    let measured = measure(part, &mut world, tell).await;
    world.stop().await;
    measured
}

/// Servers that have not done anything yet, with tables: processes need them.
async fn new_world(part: Part, tell: &impl Fn(&str)) -> Result<World, BenchError> {
    let mut kinds = vec![Kind::Redis, Kind::Rabbitmq, Kind::Postgres];
    if part == Part::Stores {
        kinds.push(Kind::Mariadb);
    }
    tell("starting private servers");
    let world = World::start(&kinds).await?;
    world.store(Kind::Postgres).await?.close().await;
    // What the part before and the making of these servers have left to be written would make each sync of
    // theirs wait.
    tokio::task::spawn_blocking(rustix::fs::sync).await.map_err(broken)?;
    Ok(world)
}

async fn measure(part: Part, world: &mut World, tell: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    match part {
        Part::Refusals => http::refusals(world, tell).await,
        Part::Accepted => http::accepted(world, tell).await,
        Part::Backlog => persist::backlog(world, tell).await,
        Part::Rush => http::rush(world, tell).await,
        Part::Parts => {
            let mut figures = parts::gate(world, tell).await?;
            figures.extend(parts::publisher(world, tell).await?);
            Ok(figures)
        }
        Part::Stores => persist::stores(world, tell).await,
        Part::Memory => {
            let mut figures = http::idle(world, tell).await?;
            figures.extend(http::redis_memory(world, tell).await?);
            Ok(figures)
        }
        Part::Growth => {
            let mut new = new_world(part, tell).await?;
            let orders = growth::orders(world, &mut new, tell).await;
            new.stop().await;
            let mut figures = orders?;
            figures.extend(growth::sales(world, tell).await?);
            Ok(figures)
        }
    }
}
