//! `doorbuster dev` as its user meets it, and what it leaves behind: nothing.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use doorbuster::rehearsal::servers::{Ending, Kind, Server};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::support::until;

struct Dev {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    text: String,
}

impl Dev {
    fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    fn start_with(args: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_doorbuster"))
            .arg("dev")
            .args(["--set", "front.listen=127.0.0.1:0", "--set", "operations.listen=127.0.0.1:0"])
            .args(args)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("it runs");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, lines, text: String::new() }
    }

    /// Reads on until a line contains `what`.
    async fn says(&mut self, what: &str) -> String {
        let reading = async {
            loop {
                let line = self
                    .lines
                    .next_line()
                    .await
                    .expect("readable")
                    .unwrap_or_else(|| panic!("ended without {what:?}:\n{}", self.text));
                self.text.push_str(&line);
                self.text.push('\n');
                if line.contains(what) {
                    return line;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(120), reading).await.expect("it says so in time")
    }

    async fn signal(&mut self, signal: rustix::process::Signal) -> std::process::ExitStatus {
        let pid = rustix::process::Pid::from_raw(self.child.id().expect("running") as i32).expect("a pid");
        rustix::process::kill_process(pid, signal).expect("sent");
        tokio::time::timeout(Duration::from_secs(60), self.child.wait())
            .await
            .expect("it ends")
            .expect("waited")
    }
}

/// Processes of this machine whose folder is below `folder`.
fn living_in(folder: &Path) -> Vec<String> {
    let needle = folder.as_os_str().as_encoded_bytes();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("Linux").flatten() {
        let read = |file: &str| std::fs::read(entry.path().join(file)).unwrap_or_default();
        let here = std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder));
        if here || read("environ").windows(needle.len()).any(|part| part == needle) {
            found.push(String::from_utf8_lossy(&read("cmdline")).replace('\0', " "));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_serves_before_the_broker_is_up_and_ends_with_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let began = Instant::now();
    let mut dev = Dev::start(&["--data-dir", data.to_str().unwrap()]);
    dev.says("orders are taken meanwhile").await;
    let up = dev.says("buyers  ").await;
    let served = began.elapsed();
    assert!(up.contains("http://127.0.0.1:"), "{up}");
    assert!(served < Duration::from_secs(10), "{served:?} even on a busy machine is too long");
    dev.says("buyer token").await;
    let commands = [dev.says("sale create").await, dev.says("sale open").await, dev.says("curl").await];
    assert!(commands.iter().all(|line| line.starts_with("  ")), "{commands:?}");
    let second = Dev::start(&["--data-dir", data.to_str().unwrap()]).child.wait_with_output().await.unwrap();
    let error = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && error.contains("another doorbuster uses"), "{error}");
    dev.says("broker up").await;
    assert!(living_in(&data).iter().any(|process| process.contains("beam")), "{:?}", living_in(&data));
    assert!(dev.signal(rustix::process::Signal::TERM).await.success());
    assert_eq!(living_in(&data), Vec::<String>::new());
    assert!(data.join("doorbuster.db").exists(), "the data stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_dev_takes_its_children_along_and_starts_again_on_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let args = ["--data-dir", data.to_str().unwrap()];
    let mut dev = Dev::start(&args);
    dev.says("broker up").await;
    dev.signal(rustix::process::Signal::KILL).await;
    until("the children ended", Duration::from_secs(20), async || living_in(&data).is_empty().then_some(()))
        .await;
    let mut again = Dev::start(&args);
    // A Redis that has restarted sells once it has been compared with the log.
    again.says("it sells in some seconds, when the broker is up").await;
    again.says("broker up").await;
    assert!(again.signal(rustix::process::Signal::INT).await.success());
    assert_eq!(living_in(&data), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_a_killed_dev_left_running_is_ended_first() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let redis = data.join("redis");
    std::fs::create_dir_all(&redis).unwrap();
    // As if the death of the parent had not reached it: a server of this folder, and its pid file.
    let mut leftover = Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--dir", redis.to_str().unwrap()])
        .current_dir(&redis)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("redis-server");
    std::fs::write(redis.join("pid"), leftover.id().expect("running").to_string()).unwrap();
    let mut dev = Dev::start(&["--data-dir", data.to_str().unwrap()]);
    dev.says("buyers  ").await;
    let ended = tokio::time::timeout(Duration::from_secs(20), leftover.wait()).await;
    assert!(ended.is_ok(), "the leftover still runs");
    dev.signal(rustix::process::Signal::TERM).await;
    assert_eq!(living_in(&data), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_productions_addresses_in_the_environment_are_not_met() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("with a space");
    let mut dev = Dev::start_with(
        &["--data-dir", data.to_str().unwrap()],
        &[
            ("DOORBUSTER__REDIS__URL", "rediss://production.invalid"),
            ("DOORBUSTER__QUEUE__URL", "amqps://production.invalid"),
            ("DOORBUSTER__DATABASE__URL", "postgres://production.invalid/shop"),
        ],
    );
    dev.says("broker up").await;
    assert!(data.join("doorbuster.db").exists());
    let settings = std::fs::read_to_string(data.join("config.toml")).unwrap();
    assert!(settings.contains("redis://127.0.0.1:") && !settings.contains("production"), "{settings}");
    dev.signal(rustix::process::Signal::HUP).await;
    assert_eq!(living_in(&data), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_named_is_not_started_on_the_data_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (data, theirs) = (folder.path().join("data"), folder.path().join("theirs"));
    std::fs::create_dir_all(&theirs).unwrap();
    let redis = Server::start(Kind::Redis, &theirs).await.unwrap();
    let named = format!("redis.url={}", redis.url);
    let mut dev = Dev::start(&["--data-dir", data.to_str().unwrap(), "--set", &named]);
    dev.says("broker up").await;
    let children = living_in(&data);
    assert!(children.iter().any(|process| process.contains("beam")), "{children:?}");
    assert!(!children.iter().any(|process| process.contains("redis-server")), "{children:?}");
    assert!(!data.join("redis").exists());
    let settings = std::fs::read_to_string(data.join("config.toml")).unwrap();
    assert!(settings.contains(&redis.url), "{settings}");
    assert!(dev.signal(rustix::process::Signal::TERM).await.success());
    redis.stop(Ending::AtOnce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_finds_no_database_leaves_none_behind() {
    let folder = tempfile::tempdir().unwrap();
    for args in [&["sale", "list"][..], &["audit", "--all"], &["doctor"], &["replay", "list"]] {
        let (code, out, err) = run_in(folder.path(), args, &[]).await;
        assert_ne!(code, 0, "{args:?}: {out}{err}");
        assert!(format!("{out}{err}").contains("doorbuster migrate"), "{args:?}: {out}{err}");
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "{args:?} left {left:?}");
    }
}

/// A command in `folder`: exit code, standard output, standard error.
async fn run_in(folder: &Path, args: &[&str], environment: &[(&str, &str)]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_doorbuster"))
        .args(args)
        .current_dir(folder)
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .await
        .expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_dev_is_found_from_its_folder_and_below_and_one_that_ended_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let (here, below) = (folder.path().to_owned(), folder.path().join("a/b"));
    std::fs::create_dir_all(&below).unwrap();
    let mut dev = Dev::start(&["--data-dir", here.join(".doorbuster").to_str().unwrap()]);
    dev.says("buyers  ").await;
    let settings = std::fs::metadata(here.join(".doorbuster/config.toml")).unwrap();
    assert_eq!(settings.permissions().mode() & 0o777, 0o600, "it has secrets");

    let (code, out, err) = run_in(&here, &["sale", "list"], &[]).await;
    assert_eq!((code, err.as_str()), (0, "using .doorbuster/config.toml\n"), "{out}");
    let (code, out, err) = run_in(&below, &["token", "ada"], &[]).await;
    assert!(code == 0 && err.starts_with("using /") && err.lines().count() == 1, "{out}{err}");
    // A command that starts servers, or names one, meets no others.
    let (_, out, err) =
        run_in(&here, &["config", "show", "--set", "redis.url=rediss://elsewhere"], &[]).await;
    assert!(
        err.is_empty() && out.contains("rediss://elsewhere") && out.contains("sqlite:doorbuster.db"),
        "{out}{err}"
    );
    let named = [("DOORBUSTER__QUEUE__URL", "amqps://elsewhere")];
    let (_, out, err) = run_in(&here, &["config", "show"], &named).await;
    assert!(err.is_empty() && out.contains("amqps://elsewhere"), "{out}{err}");

    let other = here.join("other.toml");
    std::fs::write(&other, "worker.batch = 7\n").unwrap();
    let variable = [("DOORBUSTER_CONFIG", other.to_str().unwrap())];
    let (code, out, err) = run_in(&here, &["config", "show"], &variable).await;
    assert!(code == 0 && err.is_empty() && out.contains("batch = 7"), "{out}{err}");
    let (code, _, err) = run_in(&here, &["config", "show"], &[("DOORBUSTER_CONFIG", "none.toml")]).await;
    assert!(code == 2 && err.contains("DOORBUSTER_CONFIG names none.toml"), "{err}");
    let option = ["config", "show", "--config", ".doorbuster/config.toml"];
    let (code, out, _) = run_in(&here, &option, &variable).await;
    assert!(code == 0 && !out.contains("batch = 7"), "--config wins: {out}");

    assert!(dev.signal(rustix::process::Signal::TERM).await.success());
    let (code, _, err) = run_in(&here, &["sale", "list"], &[]).await;
    assert!(code == 2 && err.contains("no longer runs") && err.contains("start that again"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_told_before_any_server_starts() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let dev = Dev::start(&["--data-dir", data.to_str().unwrap(), "--set", "worker.bach=3"]);
    let output = dev.child.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(!data.join("redis").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demonstration_ends_with_its_verdict() {
    let mut dev = Dev::start(&["--demo"]);
    dev.says("sold 500 of 500 · 0 oversold · 0 duplicate · 0 lost").await;
    let ended = tokio::time::timeout(Duration::from_secs(60), dev.child.wait()).await;
    assert!(ended.expect("it ends").expect("waited").success());
}
