//! Leases between processes: a holder that dies, and one that is stopped for longer than its lease.

use std::process::Stdio;
use std::time::Duration;

use doorbuster::lease::{LeaseOptions, Leases};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{AssertSqlSafe, Connection as _};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, Command};

use crate::seams::lease::leases_of;
use crate::support::{Database, World};

const LONG: Duration = Duration::from_secs(60);

/// Carries the arguments of a holder's process: the overrides of its world, and whether its writes are fenced.
const ARGUMENTS: &str = "DOORBUSTER_TEST_HOLDER";

const LEASE: Duration = Duration::from_millis(1_000);

/// A counter that is read, kept for a while and written back. Only the lease protects it. With `fenced`, a write with
/// a token lower than the last one changes nothing.
struct Probe {
    database: sqlx::PgConnection,
    fenced: bool,
}

impl Probe {
    async fn open(world: &World, fenced: bool) -> Self {
        let mut database = sqlx::PgConnection::connect(&world.config().database.url).await.unwrap();
        let table = "CREATE TABLE IF NOT EXISTS probe AS SELECT 0::BIGINT AS value, 0::BIGINT AS fence";
        sqlx::query(table).execute(&mut database).await.unwrap();
        Self { database, fenced }
    }

    async fn read(&mut self) -> i64 {
        sqlx::query_scalar("SELECT value FROM probe").fetch_one(&mut self.database).await.unwrap()
    }

    async fn write(&mut self, value: i64, token: i64) -> bool {
        let fence = if self.fenced { format!("WHERE fence <= {token}") } else { String::new() };
        let update = AssertSqlSafe(format!("UPDATE probe SET value = {value}, fence = {token} {fence}"));
        sqlx::query(update).execute(&mut self.database).await.unwrap().rows_affected() == 1
    }

    /// Adds one under the lease, with `between` run after the read. Returns `false` if the write was refused.
    async fn count(&mut self, leases: &Leases, between: impl AsyncFnOnce()) -> bool {
        let guard = leases.acquire("_probe", ["number"], LeaseOptions::lasting(LEASE), LONG).await.unwrap();
        let guard = guard.expect("the lease in time");
        let value = self.read().await;
        between().await;
        let written = self.write(value + 1, guard.token()).await;
        guard.release().await.unwrap();
        written
    }
}

/// The parent test starts this test as a separate process, with arguments. Without arguments it counts once.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_counts_under_its_lease() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        let world = World::new(Database::Postgres).await;
        let mut probe = Probe::open(&world, true).await;
        assert!(probe.count(&leases_of(&world), async || ()).await);
        assert_eq!(probe.read().await, 1);
        return;
    };
    let (overrides, fenced): (Vec<String>, bool) = serde_json::from_str(&arguments).unwrap();
    let world = World::with(overrides);
    let (leases, mut probe) = (leases_of(&world), Probe::open(&world, fenced).await);
    let mut tries = 1;
    while !probe
        .count(&leases, async || {
            eprintln!("holds");
            // Here the parent stops or kills this process, or lets it continue.
            let reading = || std::io::stdin().read_line(&mut String::new());
            tokio::task::spawn_blocking(reading).await.unwrap().unwrap();
        })
        .await
    {
        tries += 1;
    }
    eprintln!("counted after {tries}");
}

struct Holder {
    child: Child,
    lines: Lines<BufReader<tokio::process::ChildStderr>>,
}

impl Holder {
    async fn start(world: &World, fenced: bool) -> Self {
        let arguments = serde_json::to_string(&(&world.overrides, fenced)).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["seams::lease_processes::a_holder_counts_under_its_lease", "--exact", "--nocapture"])
            .env(ARGUMENTS, arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut holder = Self { child, lines };
        holder.prints("holds").await;
        holder
    }

    async fn prints(&mut self, words: &str) -> String {
        let printing = async {
            loop {
                let line = self.lines.next_line().await.unwrap().expect("the holder still runs");
                if line.contains(words) {
                    return line;
                }
            }
        };
        tokio::time::timeout(LONG, printing)
            .await
            .unwrap_or_else(|_| panic!("the holder never printed {words:?}"))
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed())).expect("the holder runs");
        kill_process(pid, signal).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_a_killed_process_is_free_once_it_expires() {
    let world = World::new(Database::Postgres).await;
    let leases = leases_of(&world);
    let holder = Holder::start(&world, true).await;
    assert!(leases.take("_probe", ["number"], LeaseOptions::default()).await.unwrap().guard.is_none());
    holder.signal(Signal::KILL);
    let guard = leases.acquire("_probe", ["number"], LeaseOptions::default(), LONG).await.unwrap();
    assert!(guard.is_some());
}

/// The holder reads, is stopped for longer than its lease, continues, and writes. Returns how many counts were
/// overwritten, and the last line that the holder printed.
async fn stopped_for_longer_than_its_lease(fenced: bool) -> (i64, String) {
    let world = World::new(Database::Postgres).await;
    let leases = leases_of(&world);
    let mut probe = Probe::open(&world, fenced).await;
    let mut holder = Holder::start(&world, fenced).await;
    holder.signal(Signal::STOP);
    for _ in 0..5 {
        assert!(probe.count(&leases, async || ()).await);
    }
    holder.signal(Signal::CONT);
    // Each line lets the holder continue once. The closed pipe lets its second try continue.
    holder.child.stdin.as_mut().unwrap().write_all(b"go on\n").await.unwrap();
    drop(holder.child.stdin.take());
    let printed = holder.prints("counted after").await;
    (6 - probe.read().await, printed)
}

#[tokio::test(flavor = "multi_thread")]
async fn without_fencing_a_stopped_holder_overwrites_the_work_of_others() {
    let (overwritten, printed) = stopped_for_longer_than_its_lease(false).await;
    assert!(overwritten == 5 && printed.contains("counted after 1"), "{overwritten}: {printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_fencing_a_stopped_holder_overwrites_nothing() {
    let (overwritten, printed) = stopped_for_longer_than_its_lease(true).await;
    assert!(overwritten == 0 && printed.contains("counted after 2"), "{overwritten}: {printed}");
}
