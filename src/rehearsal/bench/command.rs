//! Commands of this program: how long they take, and how much memory they need.

use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::Command;

use super::error::{BenchError, broken};
use super::proc::peak_mb;
use super::report::{Figure, Wanted};
use super::world::{PREFIX, World};
use crate::rehearsal::servers::Kind;

/// The most memory that a command may need, in MB.
const MEMORY: f64 = 256.0;

/// How one command went.
pub(super) struct Ran {
    pub(super) seconds: f64,
    pub(super) peak_mb: f64,
    pub(super) output: String,
}

pub(super) fn seconds(what: &'static str, ran: &Ran) -> Figure {
    Figure::limit(what, "s", ran.seconds, Wanted::Informational)
}

pub(super) fn memory(what: &'static str, ran: &Ran) -> Figure {
    Figure::limit(what, "MB", ran.peak_mb, Wanted::AtMost(MEMORY))
}

impl World {
    /// Runs a command of this program to its end, and watches its memory.
    pub(super) async fn command(&self, arguments: &[&str]) -> Result<Ran, BenchError> {
        self.command_on(&self.url(Kind::Postgres)?, arguments).await
    }

    /// The same with another way to the database.
    pub(super) async fn command_on(&self, database: &str, arguments: &[&str]) -> Result<Ran, BenchError> {
        let program = std::env::current_exe().map_err(broken)?;
        let mut command = Command::new(program);
        command.args(arguments).env("DOORBUSTER__AUTH__SECRET", &self.secret).kill_on_drop(true);
        for pair in [
            format!("redis.url={}", self.url(Kind::Redis)?),
            format!("queue.url={}", self.url(Kind::Rabbitmq)?),
            format!("database.url={database}"),
            format!("redis.prefix={PREFIX}"),
            format!("queue.prefix={PREFIX}"),
        ] {
            command.arg("--set").arg(pair);
        }
        let began = Instant::now();
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.map_err(broken)?;
        let pid = child.id().ok_or_else(|| broken("the command ended at once"))?;
        let mut peak = 0.0_f64;
        let ended = child.wait_with_output();
        tokio::pin!(ended);
        let ended = loop {
            tokio::select! {
                ended = &mut ended => break ended.map_err(broken)?,
                () = tokio::time::sleep(Duration::from_millis(50)) => peak = peak.max(peak_mb(pid).unwrap_or(0.0)),
            }
        };
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        if !ended.status.success() {
            let said = text(ended.stdout) + &text(ended.stderr);
            return Err(broken(format!("{} ended with {}: {said}", arguments.join(" "), ended.status)));
        }
        Ok(Ran { seconds: began.elapsed().as_secs_f64(), peak_mb: peak, output: text(ended.stdout) })
    }
}
