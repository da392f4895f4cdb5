//! Replaying what became of a million orders into a database that has them all, but none of their changes: payments, and
//! then ends. Each once with the database next door, and once where its answers take 5 ms.

use std::time::Duration;

use sqlx::Connection as _;

use super::command::{Ran, memory, seconds};
use super::error::{BenchError, broken};
use super::large_sale::{LARGE, connection, make_rows};
use super::report::{Figure, Report, Wanted};
use super::world::World;
use crate::rehearsal::chaos::{Proxy, Weather};
use crate::rehearsal::servers::Kind;

/// Half of the delay of an answer.
const DELAY: Duration = Duration::from_micros(2_500);

/// All orders, in their last state.
const PAID: [&str; 5] = [
    "DELETE FROM payment_events",
    "DELETE FROM order_events",
    "UPDATE orders SET status = 'paid', version = 2, live_key = key_digest WHERE sale_id = 'large'",
    "INSERT INTO order_events (order_id, version, sale_id, from_status, to_status, actor, reason, at_ms) \
     SELECT id, 2, sale_id, 'confirmed', status, 'bench', NULL, updated_at_ms FROM orders WHERE sale_id = 'large'",
    "INSERT INTO payment_events (provider, event_id, kind, sale_id, order_id, user_id, state, new_order_id, detail, \
         received_at_ms, due_at_ms, updated_at_ms) \
     SELECT 'bench', 'evt-' || id, 'paid', sale_id, id, user_id, 'applied', NULL, NULL, updated_at_ms, \
         updated_at_ms, updated_at_ms FROM orders WHERE sale_id = 'large'",
];
const CANCELLED: [&str; 4] = [
    "DELETE FROM payment_events",
    "DELETE FROM order_events",
    "UPDATE orders SET status = 'cancelled', version = 2, live_key = NULL WHERE sale_id = 'large'",
    "INSERT INTO order_events (order_id, version, sale_id, from_status, to_status, actor, reason, at_ms) \
     SELECT id, 2, sale_id, 'confirmed', status, 'bench', NULL, updated_at_ms FROM orders WHERE sale_id = 'large'",
];

/// The database as it was before. It is not analysed, as after a restore.
const SET_BACK: [&str; 8] = [
    "TRUNCATE payment_events",
    "TRUNCATE order_events",
    "TRUNCATE gate_returns",
    "TRUNCATE log_outbox",
    "UPDATE orders SET status = 'confirmed', version = 1, live_key = key_digest WHERE sale_id = 'large'",
    "UPDATE user_units SET units = 1, fence = 1 WHERE sale_id = 'large'",
    "UPDATE items SET sold = (SELECT COUNT(*) FROM orders WHERE sale_id = 'large') WHERE sale_id = 'large'",
    "VACUUM",
];

/// The names of the figures of one kind of change.
struct Names {
    next_door: &'static str,
    delayed: &'static str,
    memory: &'static str,
}

/// How much of the bench is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Payments and ends, each with and without a delay.
    Whole,
    /// Payments, without a delay.
    PaymentsNextDoor,
}

/// Measures on private servers with the settings of `config/default.toml`. Takes about 25 minutes for a million orders.
pub async fn run(orders: u64, extent: Extent, announce: impl Fn(&str)) -> Result<Report, BenchError> {
    announce("starting private servers");
    let world = World::start(&[Kind::Redis, Kind::Rabbitmq, Kind::Postgres]).await?;
    let mut figures = vec![Figure::limit("orders", "orders", orders as f64, Wanted::Informational)];
    let measured = measure(&world, orders, extent, &mut figures, &announce).await;
    world.stop().await;
    let unfinished = measured.err().map(|error| error.to_string());
    Ok(Report { bench: "restore", figures, unfinished })
}

async fn measure(
    world: &World,
    orders: u64,
    extent: Extent,
    figures: &mut Vec<Figure>,
    announce: &impl Fn(&str),
) -> Result<(), BenchError> {
    make_rows(world, orders, announce).await?;
    let paid = Names {
        next_door: "all paid, with their payments",
        delayed: "the same; answers take 5 ms",
        memory: "the same: memory",
    };
    let cancelled = Names {
        next_door: "all cancelled",
        delayed: "cancelled; answers take 5 ms",
        memory: "cancelled: memory",
    };
    for (changes, names) in [(&PAID[..], paid), (&CANCELLED[..], cancelled)] {
        announce(&format!("making the changes: {}", names.next_door));
        let file = export(world, changes).await?;
        let direct = world.url(Kind::Postgres)?;
        let ran = replay(world, orders, (&direct, &file), names.next_door, announce).await?;
        figures.push(seconds(names.next_door, &ran));
        figures.push(memory(names.memory, &ran));
        if extent == Extent::PaymentsNextDoor {
            break;
        }
        let (_proxy, delayed) = delayed(&direct).await?;
        let ran = replay(world, orders, (&delayed, &file), names.delayed, announce).await?;
        figures.push(seconds(names.delayed, &ran));
    }
    Ok(())
}

/// Makes the changes and returns the file that they were exported to.
async fn export(world: &World, changes: &[&'static str]) -> Result<String, BenchError> {
    execute(world, changes).await?;
    let file = world.folder().join("large.jsonl").to_string_lossy().into_owned();
    world.command(&["export", "--sale", LARGE, "--file", &file]).await?;
    Ok(file)
}

/// A URL by which the answers of the same database take twice [`DELAY`], while the proxy lives.
async fn delayed(direct: &str) -> Result<(Proxy, String), BenchError> {
    let proxy = Proxy::open().await.map_err(broken)?;
    let address = direct.split(['/', '@']).find(|part| part.parse::<std::net::SocketAddr>().is_ok());
    let address = address.ok_or_else(|| broken("the database has no address"))?;
    proxy.point_to(vec![address.parse().map_err(broken)?]);
    proxy.set(Weather::Slow(DELAY));
    let url = direct.replacen(address, &proxy.address().to_string(), 1);
    Ok((proxy, url))
}

/// Replays the file into the database as it was before the changes.
async fn replay(
    world: &World,
    orders: u64,
    (url, file): (&str, &str),
    name: &str,
    announce: &impl Fn(&str),
) -> Result<Ran, BenchError> {
    execute(world, &SET_BACK).await?;
    announce(&format!("replaying: {name}"));
    let ran = world.command_on(url, &["replay", "run", "file", file, "--yes"]).await?;
    if !ran.output.contains(&format!("{orders} brought up to date")) {
        return Err(broken(format!("not all of {orders} were brought up to date: {}", ran.output)));
    }
    Ok(ran)
}

async fn execute(world: &World, statements: &[&'static str]) -> Result<(), BenchError> {
    let mut connection = connection(world).await?;
    for statement in statements {
        sqlx::query(*statement).execute(&mut connection).await.map_err(broken)?;
    }
    connection.close().await.map_err(broken)
}
