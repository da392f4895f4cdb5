//! Refusals and repeats over HTTP, next to a bare axum route.

use std::sync::Arc;

use super::buyers::{LONG_TIMEOUTS, Login, requests, tokens};
use super::error::BenchError;
use super::load::{self, order};
use super::orders::until_persisted;
use super::report::{Figure, Wanted};
use super::sample::{open_sale, sale, user};
use super::world::{Process, World};
use crate::rehearsal::servers::Kind;

const CONNECTIONS: usize = 128;
/// Rounds of each measurement.
const ROUNDS: usize = 5;
/// Requests in a round.
const REQUESTS: usize = 100_000;
/// Buyers of a sale that is sold out.
const CROWD: u64 = 20_000;
/// Buyers who have an order.
const OWNERS: u64 = 100;

/// Sold-out answers and repeats, next to the bare route.
pub(super) async fn refusals(world: &mut World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let bare = world.bare_http().await?;
    let login = Login::new()?;
    let public_key = format!("auth.public_key={}", login.x);
    let front = world.process("front", &[&[public_key.as_str()][..], &LONG_TIMEOUTS].concat()).await?;
    let owners = sell_out(world, &front).await?;
    let late = requests(&tokens(world), "gone", OWNERS..OWNERS + CROWD)?;
    let late_ed: Vec<_> = (OWNERS..OWNERS + CROWD)
        .map(|nth| Ok(order("gone", &login.token(&user(nth)?)?, None)))
        .collect::<Result<_, BenchError>>()?;
    let late_ed = Arc::new(late_ed);
    // Measured first, before the front has verified and cached any of these tokens.
    let mut first = Vec::new();
    for (what, requests) in [
        ("sold out, each HS256 token seen first", &late),
        ("sold out, each EdDSA token seen first", &late_ed),
    ] {
        announce(what);
        let answers = load::closed(front.buyers, requests, CONNECTIONS, 1).await?;
        first.push(Figure::limit(what, "answers/s", answers.all(409)?.rate(), Wanted::Informational));
    }
    let mut figures = Vec::new();
    for turns in [
        Turns {
            what: "sold out, HS256; a bare axum route",
            requests: &late,
            status: 409,
            wanted: Wanted::Ratio(0.8),
        },
        Turns {
            what: "sold out, EdDSA; a bare axum route",
            requests: &late_ed,
            status: 409,
            wanted: Wanted::Informational,
        },
        Turns {
            what: "a repeat, read from its row; a bare axum route",
            requests: &owners,
            status: 200,
            wanted: Wanted::Informational,
        },
    ] {
        announce(turns.what);
        figures.push(turns.measure(&front, &bare).await?);
    }
    figures.extend(first);
    world.end(front).await;
    world.end(bare).await;
    Ok(figures)
}

/// Opens the sale `gone`, sells all of it, and persists the orders. Returns the requests of its buyers.
async fn sell_out(world: &mut World, front: &Process) -> Result<Arc<Vec<Vec<u8>>>, BenchError> {
    let (gate, store) = (world.gate()?, world.store(Kind::Postgres).await?);
    let gone = sale("gone", 100)?;
    open_sale(&gate, &store, &gone).await?;
    let owners = requests(&tokens(world), "gone", 0..OWNERS)?;
    load::closed(front.buyers, &owners, 8, 1).await?.all(202)?;
    let worker = world.process("worker", &[]).await?;
    until_persisted(&gate, &gone).await?;
    world.end(worker).await;
    Ok(owners)
}

/// Sends the same requests to the front and to the bare route, alternately.
struct Turns<'a> {
    what: &'static str,
    requests: &'a Arc<Vec<Vec<u8>>>,
    /// The expected status of the front's answers.
    status: u16,
    wanted: Wanted,
}

impl Turns<'_> {
    async fn measure(&self, front: &Process, bare: &Process) -> Result<Figure, BenchError> {
        let times = (REQUESTS / self.requests.len()).max(1);
        let load = async |process: &Process, status: u16, times: usize| {
            let answers = load::closed(process.buyers, self.requests, CONNECTIONS, times).await?;
            Ok::<_, BenchError>(answers.all(status)?.rate())
        };
        // One round to warm both up.
        load(front, self.status, times.div_ceil(10)).await?;
        load(bare, 409, times.div_ceil(10)).await?;
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let ceiling = load(bare, 409, times).await?;
            rounds.push((load(front, self.status, times).await?, ceiling));
        }
        Ok(Figure::beside(self.what, "answers/s", rounds, self.wanted))
    }
}
