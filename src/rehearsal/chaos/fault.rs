//! The faults, and the plan that a seed produces: which fault, when, and for how long.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::layout::{PROCESSES, Route};
use super::plan::ChaosPlan;
use super::proxy::Weather;
use crate::rehearsal::servers::Kind;

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fault {
    KillProcess(usize),
    /// SIGTERM: the process drains and is restarted.
    Restart(usize),
    /// SIGSTOP, then SIGCONT at most a second after its leases have expired.
    StopProcess(usize, Duration),
    KillServer(Kind),
    /// A server is killed and comes back after this time.
    ServerAway(Kind, Duration),
    StopServer(Kind, Duration),
    Network(Route, Weather, Duration),
    Reset(Route),
    /// A process reaches none of its servers, as if its host were cut off.
    CutOff(usize, Duration),
    /// Redis forgets all scripts.
    ScriptFlush,
    /// Redis has reached `maxmemory`.
    RedisFull(Duration),
    /// The broker loses the messages that wait in the queue.
    Purge,
    /// The queue is deleted, with its messages.
    DeleteQueue,
    /// The broker's memory alarm: it stops reading from publishers.
    MemoryAlarm(Duration),
    /// An administrator ends every session of the database.
    EndSessions,
    /// A session holds a lock on the hottest sale and goes silent.
    HoldLock(Duration),
    /// Every process, and then every server, is restarted by SIGTERM, one after the other.
    RollingRestart,
    /// The clock of a process is so many seconds ahead, and then jumps.
    WrongClock(usize, [i64; 2], Duration),
    /// Another program writes to the disk of the servers.
    BusyDisk(Duration),
    /// A server cannot write to its files; then it is restarted. The broker only sees that its disk is nearly full.
    DiskFull(Kind, Duration),
    /// One half of the processes becomes this build. Only in a drill that begins with another one.
    Upgrade(usize),
    /// A server comes back without its data.
    Empty(Kind),
    /// A server is set back to what it had this long ago.
    SetBack(Kind, Duration),
    /// Redis comes back without the last so many percent of its append-only file.
    CutFile(u64),
}

impl Fault {
    /// The kind that the report counts it under.
    pub(super) fn kind(&self) -> String {
        match self {
            Self::KillProcess(nth) => format!("kill -9 {}", PROCESSES[*nth]),
            Self::Restart(nth) => format!("restart {}", PROCESSES[*nth]),
            Self::StopProcess(nth, _) => format!("stop {}", PROCESSES[*nth]),
            Self::KillServer(kind) => format!("kill -9 {}", kind.name()),
            Self::ServerAway(kind, _) => format!("{} away", kind.name()),
            Self::StopServer(kind, _) => format!("stop {}", kind.name()),
            Self::Network(_, weather, _) => match weather {
                Weather::Slow(_) => "network slow".into(),
                Weather::Frozen => "network frozen".into(),
                Weather::AnswersLost => "answers lost".into(),
                Weather::HalfOpen => "network half open".into(),
                Weather::Down | Weather::Fair => "network down".into(),
            },
            Self::Reset(_) => "network reset".into(),
            Self::CutOff(nth, _) => format!("{} cut off", PROCESSES[*nth]),
            Self::ScriptFlush => "scripts forgotten".into(),
            Self::RedisFull(_) => "redis full".into(),
            Self::Purge => "queue purged".into(),
            Self::DeleteQueue => "queue deleted".into(),
            Self::MemoryAlarm(_) => "memory alarm".into(),
            Self::EndSessions => "sessions ended".into(),
            Self::HoldLock(_) => "lock held".into(),
            Self::RollingRestart => "rolling restart".into(),
            Self::WrongClock(nth, ..) => format!("wrong clock {}", PROCESSES[*nth]),
            Self::BusyDisk(_) => "busy disk".into(),
            Self::DiskFull(kind, _) => format!("{} disk full", kind.name()),
            Self::Upgrade(_) => "upgrade".into(),
            Self::Empty(kind) => format!("{} emptied", kind.name()),
            Self::SetBack(kind, _) => format!("{} set back", kind.name()),
            Self::CutFile(_) => "redis file cut".into(),
        }
    }

    /// The server that loses data which it had acknowledged.
    pub(super) fn loses(&self) -> Option<Kind> {
        match self {
            Self::Empty(kind) | Self::SetBack(kind, _) => Some(*kind),
            Self::CutFile(_) => Some(Kind::Redis),
            _ => None,
        }
    }
}

/// RabbitMQ takes 7 to 10 s to come back. Killed more often, it would hardly ever be up.
const BROKER_AT_MOST_EVERY: Duration = Duration::from_secs(60);

/// How long a loss takes, with its recovery.
const LOSS_TAKES: Duration = Duration::from_secs(18);

/// A drill of at least this length has a long outage and a long cut in the middle of its thirds: by chance alone, some
/// drills would have none.
const LONG_DRILL: Duration = Duration::from_secs(240);

/// A pause in a long drill in which no fault begins. Without one, nothing could be said of a front that sells nothing while
/// nothing is down: what a fault disturbs is excused for ten seconds.
const CALM: Duration = Duration::from_secs(25);

/// As many faults spread over the time of the plan, with the times at which they begin; the losses of data come at even
/// distances. The same plan gives the same faults.
pub(super) fn draw_all(plan: &ChaosPlan) -> Vec<(Duration, Fault)> {
    let ChaosPlan { faults: count, lasts, database, .. } = *plan;
    let mut rng = StdRng::seed_from_u64(plan.seed);
    let losses = plan.losses.min(count);
    let every = count.checked_div(losses).unwrap_or(usize::MAX);
    let calm = if lasts >= LONG_DRILL { CALM } else { Duration::ZERO };
    let others = lasts.as_secs_f64() - LOSS_TAKES.as_secs_f64() * losses as f64 - calm.as_secs_f64();
    let interval = others.max(0.0) / (count - losses).max(1) as f64;
    let mut broker: Option<Duration> = None;
    let (mut begins, mut loss) = (0.0, 0);
    let mut drawn = Vec::with_capacity(count);
    for nth in 0..count {
        if nth == count / 2 {
            begins += calm.as_secs_f64();
        }
        if nth % every == every / 2 && loss < losses {
            drawn.push((Duration::from_secs_f64(begins), draw_loss(&mut rng, loss, database)));
            (begins, loss) = (begins + LOSS_TAKES.as_secs_f64(), loss + 1);
            continue;
        }
        let at = Duration::from_secs_f64(begins + rng.random_range(0.0..0.8) * interval);
        begins += interval;
        if lasts >= LONG_DRILL && [count / 3, 2 * count / 3].contains(&nth) {
            let fault = if nth == count / 3 { server_away(&mut rng, database) } else { cut_off(&mut rng) };
            drawn.push((at, fault));
            continue;
        }
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
        drawn.push((at, fault));
    }
    if plan.other.is_some() {
        drawn.extend([0, 1].map(|half| (lasts * (1 + half) / 3, Fault::Upgrade(half as usize))));
        drawn.sort_by_key(|(at, _)| *at);
    }
    drawn
}

/// Every loss in turn, so that a short drill has each of them. The database goes back longest after the broker has lost the
/// order log, from which it is brought up to date.
fn draw_loss(rng: &mut StdRng, nth: usize, database: Kind) -> Fault {
    let by = Duration::from_millis(rng.random_range(2_000..6_000));
    match nth % 4 {
        0 => Fault::Empty(Kind::Rabbitmq),
        1 => Fault::Empty(Kind::Redis),
        2 if rng.random_bool(0.5) => Fault::CutFile(rng.random_range(2..20)),
        2 => Fault::SetBack(Kind::Redis, by),
        _ => Fault::SetBack(database, by),
    }
}

fn draw(rng: &mut StdRng, database: Kind) -> Fault {
    let short = |rng: &mut StdRng| Duration::from_millis(rng.random_range(200..2_500));
    let routes = Route::all(database);
    let route = |rng: &mut StdRng| routes[rng.random_range(0..routes.len())];
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
        53..55 => Fault::StopServer(Kind::Rabbitmq, short(rng)),
        55 => Fault::BusyDisk(Duration::from_millis(rng.random_range(2_000..6_000))),
        56..61 => {
            let by = Duration::from_millis(rng.random_range(20..400));
            Fault::Network(route(rng), Weather::Slow(by), short(rng))
        }
        61..66 => Fault::Network(route(rng), Weather::Frozen, short(rng)),
        66..72 => Fault::Network(route(rng), Weather::AnswersLost, short(rng)),
        72..76 => Fault::Network(route(rng), Weather::HalfOpen, short(rng)),
        76..80 => Fault::Network(route(rng), Weather::Down, short(rng)),
        80..85 => Fault::Reset(route(rng)),
        85 => Fault::ScriptFlush,
        86 => Fault::RollingRestart,
        // Longer than a hold, a confirm and a lease: one process alone cannot reach one server.
        87 => {
            let weather = [Weather::Down, Weather::Frozen, Weather::HalfOpen][rng.random_range(0..3)];
            let server = [Kind::Redis, Kind::Rabbitmq, database][rng.random_range(0..3)];
            let lasts = Duration::from_millis(rng.random_range(20_000..40_000));
            Fault::Network(Route::From(process(rng), server), weather, lasts)
        }
        88..91 => Fault::RedisFull(short(rng)),
        91 => Fault::Purge,
        92 => Fault::DeleteQueue,
        93 => Fault::MemoryAlarm(short(rng)),
        94..96 => {
            Fault::DiskFull([Kind::Redis, Kind::Rabbitmq, database][rng.random_range(0..3)], short(rng))
        }
        // Longer than the database lets the sessions of a worker wait.
        96..98 => Fault::HoldLock(Duration::from_millis(rng.random_range(5_000..15_000))),
        98 => wrong_clock(process(rng), rng),
        _ => Fault::EndSessions,
    }
}

/// Longer than a hold, a confirm, a lease and the time to pay. Not much longer: within 45 s something must be sold again.
fn server_away(rng: &mut StdRng, database: Kind) -> Fault {
    let server = [Kind::Redis, Kind::Rabbitmq, database][rng.random_range(0..3)];
    Fault::ServerAway(server, Duration::from_millis(rng.random_range(20_000..25_000)))
}

fn cut_off(rng: &mut StdRng) -> Fault {
    let lasts = Duration::from_millis(rng.random_range(20_000..60_000));
    Fault::CutOff(rng.random_range(0..PROCESSES.len()), lasts)
}

/// A front judges tokens and signatures by its own clock: if that is behind, no token is valid yet, and if it is ahead by
/// five minutes, a payment is too old.
fn wrong_clock(nth: usize, rng: &mut StdRng) -> Fault {
    let ahead_s = if PROCESSES[nth] == "front" { [200, 0] } else { [600, -600] };
    Fault::WrongClock(nth, ahead_s, Duration::from_millis(rng.random_range(4_000..12_000)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A tenth of the faults lose data.
    fn plan_of(faults: usize, lasts: Duration) -> ChaosPlan {
        ChaosPlan {
            seed: 0,
            faults,
            losses: faults / 10,
            orders: 1,
            sales: 3,
            lasts,
            database: Kind::Postgres,
            follow_up: true,
            other: None,
            settings: Vec::new(),
        }
    }

    #[test]
    fn a_seed_is_a_plan_and_another_seed_is_another() {
        let of = |seed| draw_all(&ChaosPlan { seed, ..plan_of(200, Duration::from_secs(600)) });
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
        let broker: Vec<_> =
            of(7).into_iter().filter(|(_, fault)| *fault == Fault::KillServer(Kind::Rabbitmq)).collect();
        assert!(!broker.is_empty());
        assert_eq!(of(7).iter().filter(|(_, fault)| fault.loses().is_some()).count(), 20);
        assert!(of(7).windows(2).all(|pair| pair[0].0 <= pair[1].0), "in the order of time");
        assert!(broker.windows(2).all(|pair| pair[1].0 - pair[0].0 >= BROKER_AT_MOST_EVERY));
    }
    /// Longer than what a fault disturbs and the floor for a front that sells nothing, together.
    #[test]
    fn a_long_drill_has_a_time_in_which_no_fault_begins() {
        for (losses, other) in [(0, None), (10, None), (10, Some("other".into()))] {
            let drawn = draw_all(&ChaosPlan { losses, other, ..plan_of(100, Duration::from_secs(300)) });
            let gap = drawn.windows(2).map(|pair| pair[1].0 - pair[0].0).max().expect("faults");
            assert!(gap >= Duration::from_secs(20), "{gap:?}");
            assert!(drawn.iter().all(|(at, _)| *at <= Duration::from_secs(300)), "{drawn:?}");
        }
    }

    #[test]
    fn every_kind_of_fault_is_drawn() {
        let plan = |seed| ChaosPlan { seed, ..plan_of(600, Duration::from_secs(600)) };
        let drawn: BTreeSet<String> =
            (0..4).flat_map(|seed| draw_all(&plan(seed))).map(|(_, fault)| fault.kind()).collect();
        let servers = ["redis", "rabbitmq", "postgres"];
        let mut kinds: BTreeSet<String> = [
            "network slow",
            "network frozen",
            "answers lost",
            "network half open",
            "network down",
            "network reset",
            "scripts forgotten",
            "redis full",
            "queue purged",
            "queue deleted",
            "memory alarm",
            "sessions ended",
            "lock held",
            "rolling restart",
            "busy disk",
            "stop redis",
            "stop rabbitmq",
            "redis emptied",
            "rabbitmq emptied",
            "redis set back",
            "postgres set back",
            "redis file cut",
        ]
        .map(str::to_owned)
        .into();
        for server in servers {
            kinds.extend([
                format!("kill -9 {server}"),
                format!("{server} away"),
                format!("{server} disk full"),
            ]);
        }
        for process in PROCESSES {
            kinds.extend(
                ["kill -9", "restart", "stop", "wrong clock"].map(|what| format!("{what} {process}")),
            );
            kinds.insert(format!("{process} cut off"));
        }
        assert_eq!(drawn, kinds);
    }
}
