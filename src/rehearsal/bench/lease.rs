//! Benchmarks the lease: taking and releasing, a batch of a thousand, waking a waiter, keeping many alive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;

use super::error::BenchError;
use super::proc::cpu_seconds;
use super::report::{Figure, Report, Wanted};
use super::stats::median;
use crate::lease::{Guard, LeaseOptions, Leases, MAX_NAMES_PER_CALL};
use crate::link::RedisSettings;
use crate::rehearsal::servers::{Ending, Folder, Kind, Server};

/// Tasks that share one connection. Requests sent at the same time share one write.
const TASKS: usize = 64;
/// Take-and-release pairs, per task and round.
const PAIRS: usize = 250;
/// Rounds of these pairs.
const ROUNDS: usize = 15;

/// The usual lock: the key is the lock, and a script deletes it only for its owner.
const BARE_RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

/// Measures on a private Redis with production settings (every write on disk before it is answered). Takes about a
/// minute and a half.
pub async fn run(announce: impl Fn(&str)) -> Result<Report, BenchError> {
    let folder = Folder::ephemeral()?;
    let server = Server::start(Kind::Redis, folder.path()).await?;
    let measured = measure(&server, announce).await;
    server.stop(Ending::AtOnce).await;
    Ok(Report { bench: "lease", figures: measured?, unfinished: None })
}

async fn measure(server: &Server, announce: impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let leases = open(server)?;
    announce("taking and releasing, beside bare SET NX PX");
    let mut figures = vec![take_and_release(server, &leases).await?];
    announce("a thousand users in one batch");
    figures.extend(batch(server, &leases).await?);
    announce("waking a waiter");
    figures.push(wake(server).await?);
    announce("keeping 10,000 leases alive for 40 seconds");
    figures.extend(keep(server, &leases).await?);
    Ok(figures)
}

fn open(server: &Server) -> Result<Leases, BenchError> {
    let settings = RedisSettings { url: server.url.clone(), timeout: Duration::from_secs(5), member: None };
    Ok(Leases::open(&settings, "bench")?)
}

async fn connect(server: &Server) -> Result<MultiplexedConnection, BenchError> {
    Ok(redis::Client::open(server.url.as_str())?.get_multiplexed_async_connection().await?)
}

/// Pairs per second, all tasks together. Each task uses a separate name.
async fn rate<F>(pair: impl Fn(String) -> F + Clone + Send + 'static) -> Result<f64, BenchError>
where
    F: Future<Output = Result<(), BenchError>> + Send,
{
    let begin = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let pair = pair.clone();
            tokio::spawn(async move {
                for _ in 0..PAIRS {
                    pair(format!("user-{task:012}")).await?;
                }
                Ok::<_, BenchError>(())
            })
        })
        .collect();
    for task in tasks {
        task.await.map_err(|error| BenchError::Broken(error.to_string()))??;
    }
    Ok((TASKS * PAIRS) as f64 / begin.elapsed().as_secs_f64())
}

async fn take_and_release(server: &Server, leases: &Leases) -> Result<Figure, BenchError> {
    let connection = connect(server).await?;
    let script = Arc::new(redis::Script::new(BARE_RELEASE));
    let bare = {
        move |name: String| {
            let (mut connection, script) = (connection.clone(), script.clone());
            async move {
                let (key, owner) =
                    (format!("bare:{{sale}}:{name}"), format!("{:032x}", rand::random::<u128>()));
                let mut set = redis::cmd("SET");
                set.arg(&key).arg(&owner).arg("NX").arg("PX").arg(30_000);
                let taken: Option<String> = set.query_async(&mut connection).await?;
                let freed: i64 = script.key(&key).arg(&owner).invoke_async(&mut connection).await?;
                expect(taken.is_some() && freed == 1, "the bare lock was busy")
            }
        }
    };
    let ours = {
        let leases = leases.clone();
        move |name: String| {
            let leases = leases.clone();
            async move {
                let guard = taken(&leases, &[name.as_str()]).await?;
                guard.release().await?;
                Ok(())
            }
        }
    };
    // The first round of each connects and loads the scripts.
    rate(bare.clone()).await?;
    rate(ours.clone()).await?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let ceiling = rate(bare.clone()).await?;
        rounds.push((rate(ours.clone()).await?, ceiling));
    }
    let what = "take and release, 64 tasks on one connection";
    Ok(Figure::beside(what, "pairs/s", rounds, Wanted::Ratio(0.5)))
}

/// Takes leases that are known to be free.
async fn taken(leases: &Leases, names: &[&str]) -> Result<Guard, BenchError> {
    let taken = leases.take("sale", names.iter().copied(), LeaseOptions::default()).await?;
    taken.guard.ok_or_else(|| BenchError::Broken("a lease was busy though nobody else takes it".into()))
}

fn expect(fact: bool, otherwise: &str) -> Result<(), BenchError> {
    if fact { Ok(()) } else { Err(BenchError::Broken(otherwise.to_owned())) }
}

/// The script calls that Redis has served so far.
async fn script_calls(connection: &mut MultiplexedConnection) -> Result<f64, BenchError> {
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(connection).await?;
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    calls
        .and_then(|calls| calls.split(',').next()?.parse().ok())
        .ok_or_else(|| BenchError::Broken("redis does not report its script calls".into()))
}

async fn batch(server: &Server, leases: &Leases) -> Result<Vec<Figure>, BenchError> {
    let mut connection = connect(server).await?;
    let names: Vec<String> = (0..MAX_NAMES_PER_CALL).map(|nth| format!("user-{nth:012}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (mut calls, mut times) = (Vec::new(), Vec::new());
    for _ in 0..101 {
        leases.wait_until_idle(Duration::from_secs(60)).await;
        let before = script_calls(&mut connection).await?;
        let begin = Instant::now();
        let guard = taken(leases, &names).await?;
        guard.release().await?;
        times.push(begin.elapsed().as_secs_f64() * 1_000.0);
        calls.push(script_calls(&mut connection).await? - before);
    }
    Ok(vec![
        Figure::limit(
            "1,000 leases taken and released: script calls",
            "calls",
            median(calls),
            Wanted::AtMost(2.0),
        ),
        Figure::limit("1,000 leases taken and released: time", "ms", median(times), Wanted::AtMost(25.0)),
    ])
}

/// Measures from just before the release to the return of the waiter, which uses another handle with separate
/// connections.
async fn wake(server: &Server) -> Result<Figure, BenchError> {
    let (holder, waiter) = (open(server)?, open(server)?);
    let mut times = Vec::new();
    for _ in 0..301 {
        let held = taken(&holder, &["user"]).await?;
        let waiting = {
            let waiter = waiter.clone();
            tokio::spawn(async move {
                let got =
                    waiter.acquire("sale", ["user"], LeaseOptions::default(), Duration::from_secs(60)).await;
                (got, Instant::now())
            })
        };
        // Long enough that the waiter is asleep, and random, so that it does not coincide with the waiter's polls.
        tokio::time::sleep(Duration::from_millis(rand::random_range(20..60))).await;
        let begin = Instant::now();
        held.release().await?;
        let (got, at) = waiting.await.map_err(|error| BenchError::Broken(error.to_string()))?;
        got?.ok_or_else(|| BenchError::Broken("the waiter was not woken within a minute".into()))?
            .release()
            .await?;
        times.push(at.saturating_duration_since(begin).as_secs_f64() * 1_000.0);
    }
    Ok(Figure::limit("a waiter wakes after the release", "ms", median(times), Wanted::AtMost(5.0)))
}

/// 10,000 acquisitions of one lease each, held for longer than four renewals.
async fn keep(server: &Server, leases: &Leases) -> Result<Vec<Figure>, BenchError> {
    const HELD: usize = 10_000;
    let mut guards = Vec::with_capacity(HELD);
    for nth in 0..HELD {
        guards.push(taken(leases, &[format!("kept-{nth:012}").as_str()]).await?);
    }
    let mut connection = connect(server).await?;
    let (calls, ours, redis) =
        (script_calls(&mut connection).await?, cpu_seconds(std::process::id())?, cpu_seconds(server.pid())?);
    let begin = Instant::now();
    tokio::time::sleep(Duration::from_secs(40)).await;
    let seconds = begin.elapsed().as_secs_f64();
    let percent = |before: f64, after: f64| (after - before) / seconds * 100.0;
    let figures = vec![
        Figure::limit(
            "10,000 leases kept alive: this process",
            "% of core",
            percent(ours, cpu_seconds(std::process::id())?),
            Wanted::AtMost(2.0),
        ),
        Figure::limit(
            "10,000 leases kept alive: redis",
            "% of core",
            percent(redis, cpu_seconds(server.pid())?),
            Wanted::AtMost(2.0),
        ),
        Figure::limit(
            "10,000 leases kept alive: script calls",
            "calls/s",
            (script_calls(&mut connection).await? - calls) / seconds,
            Wanted::AtMost(20.0),
        ),
    ];
    expect(guards.iter().all(|guard| guard.is_valid_for(Duration::from_secs(15))), "a lease was lost")?;
    let releasing = guards.into_iter().map(Guard::release);
    futures_util::future::try_join_all(releasing).await?;
    expect(leases.list("sale").await?.is_empty() && leases.held() == 0, "leases were left behind")?;
    Ok(figures)
}
