//! The nemesis: what it does, when, and for how long follows from its seed alone.

use std::time::Duration;

use lapin::options::{QueueDeleteOptions, QueuePurgeOptions};
use lapin::{Connection, ConnectionProperties};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use sqlx::Connection as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use super::proxy::Weather;
use super::stack::{PROCESSES, Stack, Way};
use crate::rehearsal::servers::Kind;

/// Something bad.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fault {
    KillProcess(usize),
    /// SIGTERM: it drains and is started again.
    Restart(usize),
    /// SIGSTOP, then SIGCONT; at most a second longer than a lease.
    StopProcess(usize, Duration),
    KillServer(Kind),
    StopServer(Kind, Duration),
    Network(Way, Weather, Duration),
    Reset(Way),
    /// Redis forgets all scripts.
    ScriptFlush,
    /// Redis is at `maxmemory`.
    RedisFull(Duration),
    /// The broker loses what waits in the queue.
    Purge,
    /// The queue is gone, with what is in it.
    DeleteQueue,
    /// The broker's memory alarm: it reads nothing from publishers.
    MemoryAlarm(Duration),
    /// Every session of the database is ended by its administrator.
    EndSessions,
}

impl Fault {
    /// Its kind, for counting.
    pub(super) fn kind(&self) -> String {
        match self {
            Self::KillProcess(nth) => format!("kill -9 {}", PROCESSES[*nth]),
            Self::Restart(nth) => format!("restart {}", PROCESSES[*nth]),
            Self::StopProcess(nth, _) => format!("stop {}", PROCESSES[*nth]),
            Self::KillServer(kind) => format!("kill -9 {}", kind.name()),
            Self::StopServer(kind, _) => format!("stop {}", kind.name()),
            Self::Network(_, weather, _) => match weather {
                Weather::Slow(_) => "network slow".into(),
                Weather::Frozen => "network frozen".into(),
                Weather::AnswersLost => "answers lost".into(),
                Weather::HalfOpen => "network half open".into(),
                Weather::Down | Weather::Fair => "network down".into(),
            },
            Self::Reset(_) => "network reset".into(),
            Self::ScriptFlush => "scripts forgotten".into(),
            Self::RedisFull(_) => "redis full".into(),
            Self::Purge => "queue purged".into(),
            Self::DeleteQueue => "queue deleted".into(),
            Self::MemoryAlarm(_) => "memory alarm".into(),
            Self::EndSessions => "sessions ended".into(),
        }
    }
}

/// A fault as it happened.
#[derive(Debug, Clone, Serialize)]
pub struct Inflicted {
    /// Seconds after the first click.
    pub at: f64,
    pub fault: String,
    /// Why it could not be done: what it meant to harm was down already.
    pub missed: Option<String>,
}

/// RabbitMQ needs 7 to 10 s to be back: more often it would hardly be there.
const BROKER_AT_MOST_EVERY: Duration = Duration::from_secs(60);

/// `count` faults over `lasts`, with the times at which they begin.
pub(super) fn plan(seed: u64, count: usize, lasts: Duration, database: Kind) -> Vec<(Duration, Fault)> {
    let mut rng = StdRng::seed_from_u64(seed);
    let interval = lasts.as_secs_f64() / count.max(1) as f64;
    let mut broker: Option<Duration> = None;
    (0..count)
        .map(|nth| {
            let at = Duration::from_secs_f64((nth as f64 + rng.random_range(0.0..0.8)) * interval);
            let fault = loop {
                let fault = draw(&mut rng, database);
                if fault != Fault::KillServer(Kind::Rabbitmq) {
                    break fault;
                }
                if broker.is_none_or(|before| at - before >= BROKER_AT_MOST_EVERY) {
                    broker = Some(at);
                    break fault;
                }
            };
            (at, fault)
        })
        .collect()
}

fn draw(rng: &mut StdRng, database: Kind) -> Fault {
    let short = |rng: &mut StdRng| Duration::from_millis(rng.random_range(200..2_500));
    let way = |rng: &mut StdRng| Way::ALL[rng.random_range(0..Way::ALL.len())];
    let process = |rng: &mut StdRng| rng.random_range(0..PROCESSES.len());
    match rng.random_range(0..100) {
        0..14 => Fault::KillProcess(process(rng)),
        14..20 => Fault::Restart(process(rng)),
        20..26 => Fault::StopProcess(process(rng), short(rng)),
        // Longer than a lease.
        26..30 => Fault::StopProcess(process(rng), Duration::from_millis(rng.random_range(5_200..6_000))),
        30..38 => Fault::KillServer(Kind::Redis),
        38..42 => Fault::KillServer(Kind::Rabbitmq),
        42..49 => Fault::KillServer(database),
        49..53 => Fault::StopServer(Kind::Redis, short(rng)),
        53..56 => Fault::StopServer(Kind::Rabbitmq, short(rng)),
        56..61 => {
            let by = Duration::from_millis(rng.random_range(20..400));
            Fault::Network(way(rng), Weather::Slow(by), short(rng))
        }
        61..66 => Fault::Network(way(rng), Weather::Frozen, short(rng)),
        66..72 => Fault::Network(way(rng), Weather::AnswersLost, short(rng)),
        72..76 => Fault::Network(way(rng), Weather::HalfOpen, short(rng)),
        76..80 => Fault::Network(way(rng), Weather::Down, short(rng)),
        80..85 => Fault::Reset(way(rng)),
        85..88 => Fault::ScriptFlush,
        88..91 => Fault::RedisFull(short(rng)),
        91..93 => Fault::Purge,
        93..95 => Fault::DeleteQueue,
        95..97 => Fault::MemoryAlarm(short(rng)),
        _ => Fault::EndSessions,
    }
}

/// Does it, waits until it is over, and heals it.
pub(super) async fn inflict(stack: &Stack, fault: Fault) -> Result<(), String> {
    match fault {
        Fault::KillProcess(nth) => stack.signal(nth, Signal::KILL)?,
        Fault::Restart(nth) => stack.signal(nth, Signal::TERM)?,
        Fault::StopProcess(nth, lasts) => {
            stack.signal(nth, Signal::STOP)?;
            tokio::time::sleep(lasts).await;
            stack.signal(nth, Signal::CONT)?;
        }
        Fault::KillServer(kind) => stack.kill_server(kind).await?,
        Fault::StopServer(kind, lasts) => {
            let pid = stack.pid(kind).await.and_then(|pid| Pid::from_raw(pid.cast_signed()));
            let pid = pid.ok_or("it is down")?;
            let _ = kill_process(pid, Signal::STOP);
            tokio::time::sleep(lasts).await;
            let _ = kill_process(pid, Signal::CONT);
        }
        Fault::Network(way, weather, lasts) => {
            stack.way(way).set(weather);
            tokio::time::sleep(lasts).await;
            stack.way(way).set(Weather::Fair);
        }
        Fault::Reset(way) => stack.way(way).reset(),
        Fault::ScriptFlush => redis(stack, "SCRIPT FLUSH").await?,
        Fault::RedisFull(lasts) => {
            redis(stack, "CONFIG SET maxmemory 1").await?;
            tokio::time::sleep(lasts).await;
            make_room(stack).await;
        }
        Fault::Purge => broker(stack, false).await?,
        Fault::DeleteQueue => broker(stack, true).await?,
        Fault::MemoryAlarm(lasts) => {
            let set = async |to: &str| {
                stack.control_broker(&["set_vm_memory_high_watermark", "absolute", to]).await
            };
            set("1kB").await.map_err(|error| error.to_string())?;
            tokio::time::sleep(lasts).await;
            // A broker that was killed meanwhile comes back with its own setting.
            for _ in 0..3 {
                if set("1GB").await.is_ok() {
                    break;
                }
            }
        }
        Fault::EndSessions => end_sessions(stack).await?,
    }
    Ok(())
}

/// A Redis that was killed meanwhile comes back with room.
async fn make_room(stack: &Stack) {
    let until = Instant::now() + Duration::from_secs(10);
    while redis(stack, "CONFIG SET maxmemory 1gb").await.is_err() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn redis(stack: &Stack, command: &str) -> Result<(), String> {
    let url = stack.url(Kind::Redis).await.ok_or("it is down")?;
    let work = async {
        let mut stream = tokio::net::TcpStream::connect(url.trim_start_matches("redis://")).await?;
        stream.write_all(format!("{command}\r\n").as_bytes()).await?;
        let mut answer = [0; 64];
        let length = stream.read(&mut answer).await?;
        Ok::<_, std::io::Error>(answer[..length].starts_with(b"+OK"))
    };
    match tokio::time::timeout(Duration::from_secs(3), work).await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(format!("redis refused {command}")),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("redis did not answer".into()),
    }
}

async fn broker(stack: &Stack, delete: bool) -> Result<(), String> {
    let url = stack.url(Kind::Rabbitmq).await.ok_or("it is down")?;
    // Workers hold hundreds of deliveries: cut off, they give them back, and there is something to
    // lose.
    stack.way(Way::WorkerBroker).set(Weather::Down);
    tokio::time::sleep(Duration::from_millis(700)).await;
    let done = lose_queue(&url, delete).await;
    stack.way(Way::WorkerBroker).set(Weather::Fair);
    done
}

async fn lose_queue(url: &str, delete: bool) -> Result<(), String> {
    let work = async {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        let queue = "doorbuster.orders".into();
        let lost = match delete {
            true => channel.queue_delete(queue, QueueDeleteOptions::default()).await?,
            false => channel.queue_purge(queue, QueuePurgeOptions::default()).await?,
        };
        connection.close(200, "done".into()).await?;
        Ok::<_, lapin::Error>(lost)
    };
    match tokio::time::timeout(Duration::from_secs(5), work).await {
        Ok(Ok(0)) if !delete => Err("the queue was empty".into()),
        Ok(done) => done.map(|_| ()).map_err(|error| error.to_string()),
        Err(_) => Err("the broker did not answer".into()),
    }
}

async fn end_sessions(stack: &Stack) -> Result<(), String> {
    let url = stack.url(stack.database()).await.ok_or("it is down")?;
    let work = async {
        if stack.database() == Kind::Postgres {
            let mut connection = sqlx::PgConnection::connect(&url).await?;
            sqlx::query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
                .execute(&mut connection)
                .await?;
            return connection.close().await;
        }
        let mut connection = sqlx::MySqlConnection::connect(&url).await?;
        let sessions: Vec<(i64,)> = sqlx::query_as(
            "SELECT CAST(id AS SIGNED) FROM information_schema.processlist WHERE id <> connection_id() AND user <> 'system user'",
        )
        .fetch_all(&mut connection)
        .await?;
        for (session,) in sessions {
            let kill = sqlx::AssertSqlSafe(format!("KILL {session}"));
            // It may have ended by itself.
            let _ = sqlx::query(kill).execute(&mut connection).await;
        }
        connection.close().await
    };
    match tokio::time::timeout(Duration::from_secs(5), work).await {
        Ok(done) => done.map_err(|error: sqlx::Error| error.to_string()),
        Err(_) => Err("the database did not answer".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan_and_another_seed_is_another() {
        let of = |seed| plan(seed, 200, Duration::from_secs(600), Kind::Postgres);
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
        let kinds: std::collections::BTreeSet<String> = of(7).iter().map(|(_, fault)| fault.kind()).collect();
        assert!(kinds.len() >= 20, "{kinds:?}");
        let broker: Vec<_> =
            of(7).into_iter().filter(|(_, fault)| *fault == Fault::KillServer(Kind::Rabbitmq)).collect();
        assert!(!broker.is_empty());
        assert!(broker.windows(2).all(|pair| pair[1].0 - pair[0].0 >= BROKER_AT_MOST_EVERY));
    }
}
