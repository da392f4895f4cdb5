//! One child process: its pid, when it ended, and how to stop it.

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::watch;

use super::error::ServerError;
use super::proc::{children_of, wait_until_gone};

/// How to stop a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// SIGTERM, so that the process can close its files; SIGKILL after 15 s.
    Orderly,
    /// SIGKILL immediately: for data that will not be read again, and for drills.
    AtOnce,
}

/// How long an orderly stop may take before SIGKILL.
const ORDERLY_WITHIN: Duration = Duration::from_secs(15);

/// How long the helper processes of a server may outlive it. They end at once, but on a busy machine at once is long.
const HELPERS_WITHIN: Duration = Duration::from_secs(10);

/// How often the helper processes of a server that is stopping are listed.
const LISTED_EVERY: Duration = Duration::from_millis(50);

/// A child process. Dropping it kills it.
pub struct Child {
    name: &'static str,
    pid: Pid,
    home: PathBuf,
    ended: watch::Receiver<bool>,
}

impl Child {
    /// Takes over a spawned process; a thread waits for its end, so that it does not remain a zombie.
    pub(super) fn watch(name: &'static str, mut process: std::process::Child, home: &Path) -> Self {
        let pid = Pid::from_child(&process);
        let (report_end, ended) = watch::channel(false);
        std::thread::spawn(move || {
            if let Ok(status) = process.wait() {
                tracing::debug!(name, code = ?status.code(), signal = ?status.signal(), "process ended");
            }
            report_end.send_replace(true);
        });
        Self { name, pid, home: home.to_owned(), ended }
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// The name given at its start.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    pub(super) async fn ended(&self) {
        let mut ended = self.ended.clone();
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Stops the process. On return it has ended, and its children have ended or had 10 s to do so.
    pub async fn stop(self, ending: Ending) {
        let (pid, home) = (self.pid, self.home.clone());
        // A server that is still starting may get its children while it is being stopped.
        let mut helpers = HashSet::<Pid>::from_iter(children_of(pid));
        let stopped = self.stop_alone(ending);
        tokio::pin!(stopped);
        while tokio::time::timeout(LISTED_EVERY, &mut stopped).await.is_err() {
            helpers.extend(children_of(pid));
        }
        // They end by themselves a moment later: RabbitMQ's helper ends when its pipe is closed.
        let helpers = Vec::from_iter(helpers);
        wait_until_gone(&helpers, &home, HELPERS_WITHIN).await;
    }

    async fn stop_alone(self, ending: Ending) {
        if ending == Ending::Orderly {
            let _ = kill_process(self.pid, Signal::TERM);
            if tokio::time::timeout(ORDERLY_WITHIN, self.ended()).await.is_ok() {
                return;
            }
        }
        if !self.has_ended() {
            let _ = kill_process(self.pid, Signal::KILL);
        }
        self.ended().await;
    }

    /// The error for a server that does not come up, with the last 15 lines of its log.
    pub(super) fn not_started(&self, why: &str) -> ServerError {
        let log = std::fs::read(self.home.join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(15)..].join("\n");
        ServerError::NotStarted { name: self.name, why: why.to_owned(), log: last }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = kill_process(self.pid, Signal::KILL);
        }
    }
}
