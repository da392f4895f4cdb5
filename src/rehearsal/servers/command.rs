//! Starts a process with an almost empty environment, and makes sure that it ends with this process even if this one
//! is killed.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, OnceLock, mpsc};

use rustix::process::Pid;

use super::child::Child;
use super::error::ServerError;
use super::{folder, programs};

/// A program and how to run it. The process gets only `PATH`, `HOME` (its folder) and the variables in `env`.
pub(super) struct Command<'a> {
    pub(super) name: &'static str,
    pub(super) program: &'a Path,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(&'static str, String)>,
    /// The server's folder: its HOME, with its output in `log` and its pid in `pid`.
    pub(super) home: &'a Path,
    /// The user to run it as; `None` keeps the current one.
    pub(super) user: Option<&'static str>,
}

impl Command<'_> {
    /// Starts the process, and writes its pid file.
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
            // Ctrl-C in a terminal goes to the whole group, and the servers must outlive the drain.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        let process = spawn_from_keeper(command).map_err(ServerError::io(starting()))?;
        let pid = Pid::from_child(&process);
        std::fs::write(self.home.join("pid"), pid.as_raw_nonzero().to_string())
            .map_err(ServerError::io(starting()))?;
        Ok(Child::watch(self.name, process, self.home))
    }

    /// Linux can kill a child when its parent dies (`PR_SET_PDEATHSIG`); `setpriv` sets that.
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

/// Starts this executable with other arguments. `home` is created if needed; the output goes to `home/log`,
/// and the log of an earlier start is appended to `home/log.before`.
pub fn start_self(
    name: &'static str,
    arguments: &[String],
    env: Vec<(&'static str, String)>,
    home: &Path,
) -> Result<Child, ServerError> {
    start_program(None, name, arguments, env, home)
}

/// The same with another build; `None` for this program.
pub fn start_program(
    program: Option<&Path>,
    name: &'static str,
    arguments: &[String],
    env: Vec<(&'static str, String)>,
    home: &Path,
) -> Result<Child, ServerError> {
    folder::private(home)?;
    let this = std::env::current_exe().map_err(ServerError::io("finding this program"))?;
    let program = program.unwrap_or(&this);
    // The last lines of the previous process may explain its end.
    if let Ok(text) = std::fs::read(home.join("log")) {
        let logs = std::fs::OpenOptions::new().create(true).append(true).open(home.join("log.before"));
        let _ = logs.and_then(|mut logs| std::io::Write::write_all(&mut logs, &text));
    }
    Command { name, program, args: arguments.to_vec(), env, home, user: None }.spawn()
}

type Job = (std::process::Command, mpsc::SyncSender<std::io::Result<std::process::Child>>);

/// For the parent-death signal, the kernel's "parent" is the thread that forked. So one thread starts all children,
/// and it lives as long as the process.
fn spawn_from_keeper(command: std::process::Command) -> std::io::Result<std::process::Child> {
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
