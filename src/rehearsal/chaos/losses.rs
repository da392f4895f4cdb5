//! Faults that lose data, and what an operator does about them.
//!
//! A loss comes alone: it begins when the stack has recovered from everything before it, and ends when the documented
//! recovery is done, because two losses at once can lose what only the two servers had.

use std::path::Path;
use std::time::{Duration, Instant};

use super::missed::Missed;
use super::stack::Stack;
use super::{operator, sessions};
use crate::rehearsal::judge::now_ms;
use crate::rehearsal::servers::Kind;

/// How long everything is left alone before a server goes back in time. Within this time the broker has what only Redis
/// had while the broker was away, and the order log has the latest changes of the database.
const CALM: Duration = Duration::from_secs(2);

/// The server comes back without its data.
pub(super) async fn empty(stack: &Stack, kind: Kind) -> Result<(), Missed> {
    until_recovered(stack).await?;
    let sales = sales(stack).await?;
    if kind == Kind::Redis {
        until_published(stack, &sales).await?;
    }
    stack.while_down(kind, |folder| std::fs::remove_dir_all(folder)).await?;
    match kind {
        Kind::Redis => {
            for sale in &sales {
                operator::rebuild(stack, sale).await?;
            }
        }
        // The sweep publishes the orders again by itself.
        Kind::Rabbitmq => tokio::time::sleep(REGISTERED_WITHIN).await,
        Kind::Postgres | Kind::Mariadb => {}
    }
    Ok(())
}

/// RabbitMQ 3.10 writes down half a second after it has made its first stream which server keeps the streams. Killed before
/// that, it knows the order log and never serves it again (docs/runbook.md, DependencyDown).
const REGISTERED_WITHIN: Duration = Duration::from_secs(3);

/// The order log gets a change up to a second after it was committed; twice that, for a busy machine.
const LOGGED_WITHIN_MS: i64 = 2_000;

/// The server is set back to what it had a while ago. Returns the interval in which an end of an order that nobody was
/// answered may have been undone.
pub(super) async fn set_back(stack: &Stack, kind: Kind, by: Duration) -> Result<Option<(i64, i64)>, Missed> {
    until_recovered(stack).await?;
    // A copy of the files of a running server would not be of one moment.
    stack.while_down(kind, |folder| copy(folder, &folder.with_extension("copy"))).await?;
    tokio::time::sleep(by).await;
    if kind == Kind::Redis {
        until_published(stack, &sales(stack).await?).await?;
    }
    if kind == stack.database() {
        until_logged(stack).await?;
    }
    let from = now_ms() - LOGGED_WITHIN_MS;
    stack
        .while_down(kind, |folder| {
            std::fs::remove_dir_all(folder)?;
            std::fs::rename(folder.with_extension("copy"), folder)
        })
        .await?;
    let until = now_ms();
    if kind == stack.database() {
        operator::replay_log(stack).await?;
        return Ok(Some((from, until)));
    }
    rebuild_what_stays_frozen(stack).await?;
    Ok(None)
}

/// Redis comes back without the last so many percent of its append-only file, as after a crash of a host whose disk had not
/// written what it confirmed.
pub(super) async fn cut_file(stack: &Stack, percent: u64) -> Result<(), Missed> {
    until_recovered(stack).await?;
    until_published(stack, &sales(stack).await?).await?;
    stack.while_down(Kind::Redis, move |folder| cut(folder, percent)).await?;
    rebuild_what_stays_frozen(stack).await
}

/// Cuts the file that Redis has written to last.
fn cut(folder: &Path, percent: u64) -> std::io::Result<()> {
    let mut newest = None;
    for entry in std::fs::read_dir(folder.join("appendonlydir"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "aof")
            && path.to_string_lossy().contains(".incr.")
        {
            newest = newest.max(Some((path.metadata()?.modified()?, path)));
        }
    }
    let (_, path) = newest.ok_or_else(|| std::io::Error::other("Redis has no append-only file"))?;
    let file = std::fs::OpenOptions::new().write(true).open(path)?;
    let length = file.metadata()?.len();
    file.set_len(length - length * percent / 100)
}

/// How long a front may take to rebuild a gate that is behind. It does not if the order log has been lost so shortly before
/// that it may lack orders without a row.
const REBUILT_WITHIN: Duration = Duration::from_secs(20);

/// Waits until the fronts have rebuilt every gate, and rebuilds the others, as the runbook says.
async fn rebuild_what_stays_frozen(stack: &Stack) -> Result<(), Missed> {
    // Until a front has compared it, a gate that is behind is not frozen.
    tokio::time::sleep(CALM).await;
    let until = Instant::now() + REBUILT_WITHIN;
    let mut frozen = frozen(stack).await?;
    while !frozen.is_empty() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(200)).await;
        frozen = self::frozen(stack).await?;
    }
    for sale in &frozen {
        operator::rebuild(stack, sale).await?;
    }
    Ok(())
}

/// The sales that are frozen.
async fn frozen(stack: &Stack) -> Result<Vec<String>, Missed> {
    let sales = sales(stack).await?;
    let mut redis = connect(stack).await?;
    let mut frozen = Vec::new();
    for sale in sales {
        let key = format!("doorbuster:{{{sale}}}:sale");
        let state: Option<String> = redis::cmd("HGET").arg(key).arg("state").query_async(&mut redis).await?;
        if state.as_deref() == Some("frozen") {
            frozen.push(sale);
        }
    }
    Ok(frozen)
}

/// Copies a folder with the owners of its files.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let copied = std::process::Command::new("cp").arg("-a").args([from, to]).status()?;
    if copied.success() { Ok(()) } else { Err(std::io::Error::other(format!("cp -a: {copied}"))) }
}

/// A connection to Redis, past every proxy.
async fn connect(stack: &Stack) -> Result<redis::aio::MultiplexedConnection, Missed> {
    Ok(redis::Client::open(stack.url(Kind::Redis).await?)?.get_multiplexed_async_connection().await?)
}

/// The sales that the gate has loaded.
async fn sales(stack: &Stack) -> Result<Vec<String>, Missed> {
    let mut redis = connect(stack).await?;
    Ok(redis::cmd("SMEMBERS").arg("doorbuster:sales").query_async(&mut redis).await?)
}

/// How long an order may wait for its row once the stack has recovered.
const RECORDED_WITHIN: Duration = Duration::from_secs(5);
/// How long the stack may take to recover from the faults before.
const RECOVERED_WITHIN: Duration = Duration::from_secs(90);

/// Waits until every server answers and no order has waited for its row for longer than [`RECORDED_WITHIN`]. An older one
/// may be in Redis alone, because the broker lost its data, or in the two of them alone, because the database did.
async fn until_recovered(stack: &Stack) -> Result<(), Missed> {
    let began = Instant::now();
    stack.until_healed().await;
    tokio::time::sleep(CALM).await;
    let until = Instant::now() + RECOVERED_WITHIN;
    loop {
        let waited = oldest_wait(stack).await?;
        if waited <= RECORDED_WITHIN {
            tracing::info!(recovered = ?began.elapsed(), "data is lost now");
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Missed::NotRecovered(waited));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// How long the order that was accepted first of those without a row has waited.
async fn oldest_wait(stack: &Stack) -> Result<Duration, Missed> {
    let sales = sales(stack).await?;
    let mut redis = connect(stack).await?;
    let mut longest = 0;
    for sale in &sales {
        let mut first = redis::cmd("ZRANGE");
        first.arg(format!("doorbuster:{{{sale}}}:age")).arg(&["0", "0", "WITHSCORES"]);
        let first: Vec<(String, i64)> = first.query_async(&mut redis).await?;
        longest = first.iter().map(|(_, accepted)| now_ms() - accepted).fold(longest, i64::max);
    }
    Ok(Duration::from_millis(u64::try_from(longest).unwrap_or(0)))
}

/// Waits until the order log lacks no change but those of the last moment: the others would be lost with the database.
async fn until_logged(stack: &Stack) -> Result<(), Missed> {
    let until = Instant::now() + RECOVERED_WITHIN;
    loop {
        let oldest = sessions::oldest_unlogged_ms(stack).await?;
        let age = oldest.map_or(0, |oldest| now_ms() - oldest);
        if age <= LOGGED_WITHIN_MS / 2 {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Missed::NotLogged(Duration::from_millis(age.unsigned_abs())));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// How long an order may be on its way to the broker.
const ON_ITS_WAY: Duration = Duration::from_secs(1);
/// How long to wait until none is older than that.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(20);

/// Waits until no order is in Redis alone but those that were accepted just now: the others would be lost, as the
/// documents say. An entry is `state|epoch|seq|accepted at|...`.
async fn until_published(stack: &Stack, sales: &[String]) -> Result<(), Missed> {
    let mut redis = connect(stack).await?;
    let until = Instant::now() + PUBLISHED_WITHIN;
    let old = i64::try_from(ON_ITS_WAY.as_millis()).unwrap_or(i64::MAX);
    loop {
        let mut alone = 0;
        for sale in sales {
            let entries: Vec<String> = redis::cmd("HVALS")
                .arg(format!("doorbuster:{{{sale}}}:outbox"))
                .query_async(&mut redis)
                .await?;
            let accepted =
                entries.iter().filter_map(|entry| entry.strip_prefix("outbox|")?.split('|').nth(2));
            alone += accepted.filter(|at| at.parse().is_ok_and(|at: i64| at < now_ms() - old)).count();
        }
        if alone == 0 || Instant::now() >= until {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
