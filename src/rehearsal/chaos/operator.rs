//! The operator of a chaos drill: does what the documents say, with the commands that they name.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::missed::Missed;
use super::stack::Stack;
use crate::rehearsal::servers::Kind;

/// How long one command may take.
const WITHIN: Duration = Duration::from_secs(60);
/// A command waits for a server that is away and then gives up; the operator tries again.
const TRIES: usize = 4;

/// Rebuilds the gate of a sale that Redis has lost. With exit code 3 it is rebuilt as well, but the order log begins late.
pub(super) async fn rebuild(stack: &Stack, sale: &str) -> Result<(), Missed> {
    run(stack, &["rebuild", "--sale", sale, "--yes"], &[0, 3]).await.map(|_| ())
}

/// Brings a database that went back in time up to date. If the log does not reach back to it, because the broker lost its
/// data shortly before, declares the rest as lost; the judge finds out what was. That ends with exit code 3 as well, since
/// earlier entries are missing.
pub(super) async fn replay_log(stack: &Stack) -> Result<(), Missed> {
    let replay = ["replay", "run", "log", "--yes"];
    if run(stack, &replay, &[0, 3]).await? == 3 {
        run(stack, &[&replay[..], &["--accept-loss"]].concat(), &[0, 3]).await?;
    }
    Ok(())
}

/// Creates the tables of a build, or upgrades them to it; `None` for this one.
pub(super) async fn migrate(stack: &Stack, program: Option<&Path>) -> Result<(), Missed> {
    run_as(program, stack, &["migrate"], &[0]).await.map(|_| ())
}

/// Adds the shop's endpoint.
pub(super) async fn add_endpoint(stack: &Stack, url: &str) -> Result<(), Missed> {
    let private = ["--set", "webhooks.allow_private=true"];
    run(stack, &[&["webhook", "add", "shop", url][..], &private].concat(), &[0]).await.map(|_| ())
}

/// Runs a command of this program against the servers themselves, not through a proxy, until it exits with one of these
/// codes, which it returns.
async fn run(stack: &Stack, command: &[&str], codes: &[i32]) -> Result<i32, Missed> {
    run_as(None, stack, command, codes).await
}

async fn run_as(
    program: Option<&Path>,
    stack: &Stack,
    command: &[&str],
    codes: &[i32],
) -> Result<i32, Missed> {
    let this = std::env::current_exe()?;
    let (began, mut printed) = (Instant::now(), String::new());
    for _ in 0..TRIES {
        let process = tokio::process::Command::new(program.unwrap_or(&this))
            .args(command)
            .args(settings(stack).await?)
            // No setting of the shell that the drill was started from.
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .current_dir(stack.home())
            .env("DOORBUSTER__AUTH__SECRET", stack.secret())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let Ok(output) = tokio::time::timeout(WITHIN, process).await else { continue };
        let output = output?;
        if let Some(code) = output.status.code().filter(|code| codes.contains(code)) {
            tracing::info!(?command, code, took = ?began.elapsed(), "the operator's command has ended");
            return Ok(code);
        }
        printed = format!(
            "{}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        tracing::warn!(?command, printed, "the operator's command failed, will retry");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Err(Missed::Operator { command: command.join(" "), printed })
}

async fn settings(stack: &Stack) -> Result<Vec<String>, Missed> {
    let mut settings = Vec::new();
    for (key, kind) in
        [("redis.url", Kind::Redis), ("queue.url", Kind::Rabbitmq), ("database.url", stack.database())]
    {
        settings.extend(["--set".to_owned(), format!("{key}={}", stack.url(kind).await?)]);
    }
    Ok(settings)
}
