//! The nemesis: inflicts one fault, waits, and heals it.

use std::time::Duration;

use lapin::options::{QueueDeleteOptions, QueuePurgeOptions};
use lapin::{Connection, ConnectionProperties};
use rustix::process::{Signal, kill_process};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use super::fault::Fault;
use super::layout::{PROCESSES, Route};
use super::missed::Missed;
use super::proxy::Weather;
use super::stack::Stack;
use super::{disk, losses, sessions, upgrade};
use crate::rehearsal::servers::{FakeClock, Kind};

/// Inflicts a fault, waits for as long as it lasts, and heals it. Returns the interval in which the end of an order may
/// have been undone.
pub(super) async fn inflict(stack: &Stack, fault: Fault) -> Result<Option<(i64, i64)>, Missed> {
    match fault {
        Fault::KillProcess(nth) => stack.restart(nth, Signal::KILL).await?,
        Fault::Restart(nth) => stack.restart(nth, Signal::TERM).await?,
        Fault::StopProcess(nth, lasts) => {
            stack.signal(nth, Signal::STOP)?;
            tokio::time::sleep(lasts).await;
            stack.signal(nth, Signal::CONT)?;
        }
        Fault::KillServer(kind) => stack.kill_server(kind).await?,
        Fault::ServerAway(kind, lasts) => stack.keep_down(kind, lasts).await?,
        Fault::StopServer(kind, lasts) => {
            let pid = stack.pid(kind).await?;
            let _ = kill_process(pid, Signal::STOP);
            tokio::time::sleep(lasts).await;
            let _ = kill_process(pid, Signal::CONT);
        }
        Fault::Network(route, weather, lasts) => {
            stack.proxy(route).set(weather);
            tokio::time::sleep(lasts).await;
            stack.proxy(route).set(Weather::Fair);
        }
        Fault::Reset(route) => stack.proxy(route).reset(),
        Fault::CutOff(nth, lasts) => {
            stack.proxies_of(nth).for_each(|proxy| proxy.set(Weather::Frozen));
            tokio::time::sleep(lasts).await;
            stack.proxies_of(nth).for_each(|proxy| proxy.set(Weather::Fair));
        }
        Fault::ScriptFlush => redis(stack, "SCRIPT FLUSH").await?,
        Fault::RedisFull(lasts) => {
            redis(stack, "CONFIG SET maxmemory 1").await?;
            tokio::time::sleep(lasts).await;
            make_room(stack).await;
        }
        Fault::Purge => broker(stack, false).await?,
        Fault::DeleteQueue => broker(stack, true).await?,
        Fault::MemoryAlarm(lasts) => {
            let limit = ["set_vm_memory_high_watermark", "absolute"];
            alarm(stack, &limit, ["1kB", "1GB"], lasts).await?;
        }
        Fault::DiskFull(Kind::Rabbitmq, lasts) => {
            alarm(stack, &["set_disk_free_limit"], ["100000GB", "50MB"], lasts).await?;
        }
        Fault::EndSessions => sessions::end_all(stack).await?,
        Fault::HoldLock(lasts) => sessions::hold_lock(stack, lasts).await?,
        Fault::RollingRestart => restart_all(stack).await?,
        Fault::WrongClock(nth, ahead_s, lasts) => wrong_clock(stack, nth, ahead_s, lasts).await?,
        Fault::BusyDisk(lasts) => disk::keep_busy(stack, lasts).await?,
        Fault::DiskFull(kind, lasts) => disk::fill(stack, kind, lasts).await?,
        Fault::Upgrade(half) => upgrade::upgrade(stack, half).await?,
        Fault::Empty(kind) => losses::empty(stack, kind).await?,
        Fault::SetBack(kind, by) => return losses::set_back(stack, kind, by).await,
        Fault::CutFile(percent) => losses::cut_file(stack, percent).await?,
    }
    Ok(None)
}

/// The broker stops reading from publishers, because a limit is set to the first value; then to the second, which it has by
/// its configuration.
async fn alarm(
    stack: &Stack,
    limit: &[&str],
    [low, usual]: [&str; 2],
    lasts: Duration,
) -> Result<(), Missed> {
    stack.control_broker(&[limit, &[low]].concat()).await?;
    tokio::time::sleep(lasts).await;
    // A broker killed in the meantime comes back with its configured limit.
    for _ in 0..3 {
        if stack.control_broker(&[limit, &[usual]].concat()).await.is_ok() {
            break;
        }
    }
    Ok(())
}

/// Raises the limit again. A Redis killed in the meantime comes back with its configured limit.
async fn make_room(stack: &Stack) {
    let until = Instant::now() + Duration::from_secs(10);
    while redis(stack, "CONFIG SET maxmemory 1gb").await.is_err() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn redis(stack: &Stack, command: &str) -> Result<(), Missed> {
    let url = stack.url(Kind::Redis).await?;
    let work = async {
        let mut stream = tokio::net::TcpStream::connect(url.trim_start_matches("redis://")).await?;
        stream.write_all(format!("{command}\r\n").as_bytes()).await?;
        let mut answer = [0; 64];
        let length = stream.read(&mut answer).await?;
        if answer[..length].starts_with(b"+OK") { Ok(()) } else { Err(Missed::Refused(command.to_owned())) }
    };
    tokio::time::timeout(Duration::from_secs(3), work).await.unwrap_or(Err(Missed::TimedOut("redis")))
}

/// Purges or deletes the queue.
async fn broker(stack: &Stack, delete: bool) -> Result<(), Missed> {
    let url = stack.url(Kind::Rabbitmq).await?;
    // Workers hold hundreds of deliveries. Cutting them off returns these to the queue, so that there is something to
    // lose.
    for route in Route::of_workers_to(Kind::Rabbitmq) {
        stack.proxy(route).set(Weather::Down);
    }
    tokio::time::sleep(Duration::from_millis(700)).await;
    let done = lose_queue(&url, delete).await;
    for route in Route::of_workers_to(Kind::Rabbitmq) {
        stack.proxy(route).set(Weather::Fair);
    }
    done
}

async fn lose_queue(url: &str, delete: bool) -> Result<(), Missed> {
    let work = async {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        let queue = "doorbuster.orders".into();
        let lost = match delete {
            true => channel.queue_delete(queue, QueueDeleteOptions::default()).await?,
            false => channel.queue_purge(queue, QueuePurgeOptions::default()).await?,
        };
        connection.close(200, "done".into()).await?;
        if lost == 0 && !delete { Err(Missed::QueueEmpty) } else { Ok(()) }
    };
    tokio::time::timeout(Duration::from_secs(5), work).await.unwrap_or(Err(Missed::TimedOut("the broker")))
}

/// A process is restarted with a wrong clock, which jumps in the middle, and then with a right one.
async fn wrong_clock(stack: &Stack, nth: usize, ahead_s: [i64; 2], lasts: Duration) -> Result<(), Missed> {
    let clock = FakeClock::in_file(&stack.clock_file(nth)).ok_or(Missed::NotInstalled("libfaketime"))?;
    clock.set(ahead_s[0])?;
    stack.give_clock(nth, Some(clock.clone()));
    let done = async {
        stack.restart(nth, Signal::TERM).await?;
        tokio::time::sleep(lasts / 2).await;
        clock.set(ahead_s[1])?;
        tokio::time::sleep(lasts / 2).await;
        Ok::<_, Missed>(())
    };
    let done = done.await;
    stack.give_clock(nth, None);
    // One that is down comes back with the right clock.
    let _ = stack.restart(nth, Signal::TERM).await;
    done
}

/// Every process is restarted, one after the other, as in a deployment; and then every server, as for an upgrade.
async fn restart_all(stack: &Stack) -> Result<(), Missed> {
    for nth in 0..PROCESSES.len() {
        stack.restart(nth, Signal::TERM).await?;
        // A deployment goes on when the process serves.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    for kind in stack.servers() {
        stack.restart_server(kind).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}
