//! One server process: started with an almost empty environment, ended with this process even if
//! that is killed, and recognised by its folder if it should be left over all the same.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::watch;

use super::{ServerError, programs};

/// How a server is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// ActRequest first, so that it may close its files; killed when it takes too long.
    Orderly,
    /// Killed. For data that nobody will read again, and for drills.
    AtOnce,
}

const ORDERLY: Duration = Duration::from_secs(15);

/// How long what a server has started may outlive it, and a leftover the signal that kills it.
const HELPERS: Duration = Duration::from_secs(2);
const KILLED: Duration = Duration::from_secs(5);

pub struct Child {
    name: &'static str,
    pid: Pid,
    home: PathBuf,
    ended: watch::Receiver<bool>,
}

/// What to run. The process sees `PATH`, `HOME` (its folder) and what is in `env`, nothing else.
pub(super) struct Command<'a> {
    pub(super) name: &'static str,
    pub(super) program: &'a Path,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(&'static str, String)>,
    /// The server's folder: its HOME, and where its output goes (`log`) and its pid (`pid`).
    pub(super) home: &'a Path,
    /// The user to run it as, where that is another one.
    pub(super) user: Option<&'static str>,
}

impl Command<'_> {
    pub(super) fn spawn(self) -> Result<Child, ServerError> {
        let starting = || format!("starting {}", self.name);
        let log = File::create(self.home.join("log")).map_err(ServerError::io(starting()))?;
        let errors = log.try_clone().map_err(ServerError::io(starting()))?;
        let (program, args) = self.with_parent_death();
        let mut command = std::process::Command::new(program);
        command
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home)
            .envs(self.env.iter().map(|(name, value)| (name, OsStr::new(value))))
            .current_dir(if self.user.is_some() { Path::new("/") } else { self.home })
            // Ctrl-C in a terminal goes to the whole group: the servers must outlive the drain.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        let mut process = keep(command).map_err(ServerError::io(starting()))?;
        let pid = Pid::from_child(&process);
        std::fs::write(self.home.join("pid"), pid.as_raw_nonzero().to_string())
            .map_err(ServerError::io(starting()))?;
        let (tell, ended) = watch::channel(false);
        let name = self.name;
        std::thread::spawn(move || {
            if let Ok(status) = process.wait() {
                tracing::debug!(name, code = ?status.code(), signal = ?status.signal(), "server ended");
            }
            tell.send_replace(true);
        });
        Ok(Child { name, pid, home: self.home.to_owned(), ended })
    }

    /// Linux ends a child with its parent if it was asked to; `setpriv` is the tool that asks.
    fn with_parent_death(&self) -> (PathBuf, Vec<String>) {
        let mut args = self.args.clone();
        let Some(setpriv) = programs::in_path("setpriv") else {
            return (self.program.to_owned(), args);
        };
        let mut before = vec!["--pdeathsig".to_owned(), "KILL".to_owned()];
        if let Some(user) = self.user {
            before.extend([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into()]);
        }
        before.extend(["--".to_owned(), self.program.display().to_string()]);
        before.append(&mut args);
        (setpriv, before)
    }
}

/// Starts this very program with other arguments, its output in `home`.
pub fn start_self(
    name: &'static str,
    arguments: &[String],
    env: Vec<(&'static str, String)>,
    home: &Path,
) -> Result<Child, ServerError> {
    super::folder::private(home)?;
    let program = std::env::current_exe().map_err(ServerError::io("finding this program"))?;
    // Each start has a log of its own: the last words of the one before are what one looks for.
    if let Ok(text) = std::fs::read(home.join("log")) {
        let logs = std::fs::OpenOptions::new().create(true).append(true).open(home.join("log.before"));
        let _ = logs.and_then(|mut logs| std::io::Write::write_all(&mut logs, &text));
    }
    Command { name, program: &program, args: arguments.to_vec(), env, home, user: None }.spawn()
}

impl Child {
    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    pub(super) async fn ended(&self) {
        let mut ended = self.ended.clone();
        let _ = ended.wait_for(|ended| *ended).await;
    }

    pub async fn stop(self, ending: Ending) {
        let helpers = children(self.pid);
        let home = self.home.clone();
        self.stop_alone(ending).await;
        // What it had started ends by itself a moment later: RabbitMQ's helper, when its pipe is closed.
        until_gone(&helpers, &home, HELPERS).await;
    }

    async fn stop_alone(self, ending: Ending) {
        if ending == Ending::Orderly {
            let _ = kill_process(self.pid, Signal::TERM);
            if tokio::time::timeout(ORDERLY, self.ended()).await.is_ok() {
                return;
            }
        }
        if !*self.ended.borrow() {
            let _ = kill_process(self.pid, Signal::KILL);
        }
        self.ended().await;
    }

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
        if !*self.ended.borrow() {
            let _ = kill_process(self.pid, Signal::KILL);
        }
    }
}

/// What a process has started itself.
fn children(pid: Pid) -> Vec<Pid> {
    let (pid, mut children) = (pid.as_raw_nonzero(), Vec::new());
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for thread in threads {
        let text = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        children.extend(text.split_whitespace().filter_map(|pid| pid.parse().ok()).filter_map(Pid::from_raw));
    }
    children
}

/// Ends what a killed predecessor left running. A pid alone may be anybody's by now: the process
/// must also live in this folder.
pub(super) async fn end_leftover(home: &Path) {
    let Ok(text) = std::fs::read_to_string(home.join("pid")) else { return };
    let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) else { return };
    if !lives_in(pid, home) {
        return;
    }
    tracing::warn!(pid = text.trim(), folder = %home.display(), "ending a server that was left over");
    let _ = kill_process(pid, Signal::KILL);
    until_gone(&[pid], home, KILLED).await;
}

/// On return none of them lives there any more, or the time is over.
async fn until_gone(pids: &[Pid], home: &Path, within: Duration) {
    let until = Instant::now() + within;
    while pids.iter().any(|pid| lives_in(*pid, home)) && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn lives_in(pid: Pid, home: &Path) -> bool {
    let about = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let needle = home.as_os_str().as_encoded_bytes();
    let mentions = |file: &str| {
        std::fs::read(about.join(file))
            .is_ok_and(|text| text.windows(needle.len()).any(|part| part == needle))
    };
    let works_there = std::fs::read_link(about.join("cwd")).is_ok_and(|cwd| cwd.starts_with(home));
    works_there || mentions("environ") || mentions("cmdline")
}

type Job = (std::process::Command, mpsc::SyncSender<std::io::Result<std::process::Child>>);

/// The kernel means the thread that forked when it speaks of the parent, so children are started
/// by one thread that lives as long as the process.
fn keep(command: std::process::Command) -> std::io::Result<std::process::Child> {
    static KEEPER: OnceLock<Mutex<mpsc::Sender<Job>>> = OnceLock::new();
    let keeper = KEEPER.get_or_init(|| {
        let (jobs, inbox) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, answer) in inbox {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(jobs)
    });
    let (answer, spawned) = mpsc::sync_channel(1);
    let lost = || std::io::Error::other("the thread that starts servers has ended");
    keeper.lock().map_err(|_| lost())?.send((command, answer)).map_err(|_| lost())?;
    spawned.recv().map_err(|_| lost())?
}
