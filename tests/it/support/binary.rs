//! Runs the `doorbuster` binary as a separate process.

use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use doorbuster::rehearsal::servers::FakeClock;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::{World, request};

/// Gives a process the settings of its world: secrets in the environment, as the command refuses them as options.
pub fn configure(command: &mut Command, world: &World) {
    for (nth, pair) in world.overrides.iter().enumerate() {
        let key = pair.split('=').next();
        // A secret goes into the environment, and an option would win over it.
        if world.overrides[nth + 1..].iter().any(|later| later.split('=').next() == key) {
            continue;
        }
        match pair.split_once('=') {
            Some(("auth.secret", secret)) => command.env("DOORBUSTER__AUTH__SECRET", secret),
            Some(("payments.secrets", secrets)) => command.env("DOORBUSTER__PAYMENTS__SECRETS", secrets),
            Some((key, url)) if has_password(url) => {
                command.env(format!("DOORBUSTER__{}", key.to_uppercase().replace('.', "__")), url)
            }
            _ => command.args(["--set", pair]),
        };
    }
}

fn has_password(url: &str) -> bool {
    let user = url.split_once("://").and_then(|(_, rest)| rest.split_once('@')).map(|(user, _)| user);
    user.is_some_and(|user| user.contains(':'))
}

/// Runs a command to its end. Returns exit code, standard output and standard error.
pub async fn run(world: Option<&World>, args: &[&str]) -> (i32, String, String) {
    run_with(world, args, None).await
}

/// The same with a failure point armed, such as `commit.after=abort`.
pub async fn run_with(world: Option<&World>, args: &[&str], fault: Option<&str>) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbuster"));
    if let Some(world) = world {
        configure(&mut command, world);
    }
    let command = command.envs(fault.map(|fault| ("DOORBUSTER_FAULT", fault)));
    let output = command.args(args).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(Duration::from_secs(240), output)
        .await
        .expect("the command ends")
        .expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

/// A front or worker that runs until it is dropped.
pub struct Doorbuster {
    pub child: Child,
    pub buyers: Option<std::net::SocketAddr>,
    pub operations: std::net::SocketAddr,
    /// The lines it has logged so far.
    log: Arc<Mutex<Vec<String>>>,
}

impl Doorbuster {
    /// Starts a process, and returns once it has logged its addresses.
    pub async fn start(world: &World, verb: &str) -> Self {
        Self::start_with(world, verb, None).await
    }

    /// The same with a failure point armed, such as `commit.after=abort`. If the process reaches the failure point
    /// while it starts and dies of it, it is started again without.
    pub async fn start_with(world: &World, verb: &str, fault: Option<&str>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_doorbuster"));
        command.envs(fault.map(|fault| ("DOORBUSTER_FAULT", fault)));
        match Self::launch(command, world, verb).await {
            Ok(started) => started,
            Err(before) => {
                assert!(
                    before.iter().any(|line| line.contains("failure point reached")),
                    "the process ended instead of starting: {before:#?}"
                );
                let again = Box::pin(Self::start(world, verb)).await;
                again.log.lock().unwrap().splice(0..0, before);
                again
            }
        }
    }

    /// Starts a process with a clock of its own.
    pub async fn start_with_clock(world: &World, verb: &str, clock: &FakeClock) -> Self {
        let env = clock.env();
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
        Self::start_with_env(world, verb, &env).await
    }

    /// Starts a process with these variables in its environment.
    pub async fn start_with_env(world: &World, verb: &str, env: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_doorbuster"));
        command.envs(env.iter().copied());
        Self::launch(command, world, verb).await.expect("the process starts")
    }

    /// Starts a process that may open at most `files` files.
    pub async fn start_with_files(world: &World, verb: &str, files: u32) -> Self {
        let mut command = Command::new("sh");
        let limited = r#"ulimit -n "$0" && exec "$@""#;
        command.args(["-c", limited, &files.to_string(), env!("CARGO_BIN_EXE_doorbuster")]);
        Self::launch(command, world, verb).await.expect("the process starts")
    }

    /// Returns the log as `Err` if the process ends before it has logged its addresses.
    async fn launch(mut command: Command, world: &World, verb: &str) -> Result<Self, Vec<String>> {
        configure(&mut command, world);
        let mut child = command
            .args(["--set", "log.format=json", verb])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the binary runs");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let (mut buyers, mut operations) = (None, None);
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let starting = async {
            while operations.is_none() {
                let Some(line) = lines.next_line().await.expect("readable") else { return false };
                log.lock().unwrap().push(line.clone());
                let line: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
                let address = |name: &str| line["fields"][name].as_str().and_then(|text| text.parse().ok());
                buyers = buyers.or_else(|| address("buyers"));
                operations = address("operations");
            }
            true
        };
        let started = tokio::time::timeout(Duration::from_secs(60), starting)
            .await
            .expect("the process starts in time");
        if !started {
            return Err(log.lock().unwrap().clone());
        }
        // A full pipe would block the process.
        let keep = log.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                keep.lock().unwrap().push(line);
            }
        });
        Ok(Self { child, buyers, operations: operations.expect("an operations listener"), log })
    }

    /// The lines with these words that the process has logged.
    pub fn logged(&self, words: &str) -> Vec<String> {
        self.log.lock().unwrap().iter().filter(|line| line.contains(words)).cloned().collect()
    }

    /// Has the process logged a line with these words?
    pub fn has_logged(&self, words: &str) -> bool {
        !self.logged(words).is_empty()
    }

    /// A metric of the process, with its labels; 0 if it has none of that name.
    pub async fn metric(&self, name: &str) -> f64 {
        let metrics = request(self.operations, "GET", "/metrics", &[], b"").await.text;
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_default()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }

    pub fn kill(&mut self) {
        self.child.start_kill().expect("SIGKILL");
    }
}
