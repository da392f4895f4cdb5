//! `dev`: a whole Doorbuster on this machine, with private servers.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::stack::Stack;
use super::{Ended, Failed};
use crate::domain::UserId;
use crate::front::Role;
use crate::process::config::{Sources, redact};
use crate::process::{log, signal};
use crate::rehearsal::drill::{Preset, Progress};
use crate::rehearsal::servers::{Ending, Folder};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where the servers keep their data.
    #[arg(long, default_value = ".doorbuster", value_name = "FOLDER")]
    data_dir: PathBuf,
    /// Keep the data in a temporary folder, and remove it at the end.
    #[arg(long)]
    ephemeral: bool,
    /// Hold a sale of 500 units for a crowd of 20,000 buyers, print the verdict, and end.
    #[arg(long)]
    demo: bool,
}

/// Seconds for which the printed tokens are valid: a day.
const TOKENS_LAST: u32 = 24 * 3600;

pub(super) async fn run(sources: &Sources, args: Args) -> Result<Ended, Failed> {
    // That the broker is not there yet is said below, and no news; and it takes no crowd, so that many files are
    // not missed.
    log::start_with("auto", "warn,doorbuster::queue=error,doorbuster::process::listen=error");
    if args.demo {
        return Box::pin(demo(sources)).await;
    }
    let began = Instant::now();
    let stop = signal::stop_token();
    let folder = if args.ephemeral { Folder::ephemeral()? } else { Folder::open(&args.data_dir)? };
    let mut stack = Stack::start(sources, folder).await?;
    let settings = write_settings(&stack)?;
    introduce(&stack, &settings, began);
    let ending = if args.ephemeral { Ending::AtOnce } else { Ending::Orderly };
    let broker = stop.run_until_cancelled(stack.broker_is_up()).await;
    let Some(broker) = broker else {
        stack.stop(None, ending).await;
        return Ok(Ended::Done);
    };
    let broker = broker?;
    println!(
        "  broker up after {:.1} s: orders now go through the queue to the database",
        began.elapsed().as_secs_f64()
    );
    let died = tokio::select! {
        () = stop.cancelled() => None,
        () = stack.redis.ended() => Some("redis-server ended by itself; its log is in the data folder".into()),
        () = broker.ended() => Some("rabbitmq-server ended by itself; its log is in the data folder".into()),
        why = stack.running.part_ended() => Some(why),
    };
    println!("  stopping");
    stack.stop(Some(broker), ending).await;
    match died {
        Some(why) => Err(Failed::Said(why)),
        None => Ok(Ended::Done),
    }
}

/// A file for `--config`, so that other commands meet this stack.
fn write_settings(stack: &Stack) -> Result<PathBuf, Failed> {
    let path = stack.folder().join("config.toml");
    let config = &stack.config;
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let mut text = String::from("# Written by `doorbuster dev`: how to reach its servers.\n");
    for (key, value) in [
        ("redis.url", &config.redis.url),
        ("redis.prefix", &config.redis.prefix),
        ("queue.url", &config.queue.url),
        ("queue.prefix", &config.queue.prefix),
        ("database.url", &config.database.url),
        ("auth.secret", &config.auth.secret),
        ("auth.issuer", &config.auth.issuer),
        ("auth.audience", &config.auth.audience),
    ] {
        text.push_str(&format!("{key} = {}\n", quoted(value)));
    }
    std::fs::write(&path, text)
        .map_err(|error| Failed::Said(format!("writing {}: {error}", path.display())))?;
    Ok(path)
}

fn introduce(stack: &Stack, settings: &Path, began: Instant) {
    let running = &stack.running;
    let Some(buyers) = running.buyers else { return };
    let shown = std::env::current_dir()
        .ok()
        .and_then(|here| settings.strip_prefix(here).ok().map(Path::to_owned))
        .unwrap_or_else(|| settings.to_owned());
    let mint = |user: &str, role| {
        UserId::parse(user).map(|user| running.tokens.mint(&user, role, TOKENS_LAST)).unwrap_or_default()
    };
    let (admin, buyer) = (mint("admin", Some(Role::Admin)), mint("ada", None));
    println!(
        "Doorbuster is up after {:.1} s (the broker still starts; orders are taken meanwhile)\n",
        began.elapsed().as_secs_f64()
    );
    println!("  buyers       http://{buyers}");
    println!("  operations   http://{}   /readyz /metrics /v1/admin/sales", running.operations);
    println!("  database     {}", redact(&stack.config.database.url));
    println!("  admin token  {admin}");
    println!("  buyer token  {buyer}   (user ada)\n");
    // As it was called, so that the lines can be pasted.
    let called = std::env::args().next().unwrap_or_else(|| "doorbuster".into());
    let doorbuster = format!("{called} --config {}", shown.display());
    println!("Try, in another terminal:\n");
    println!("  {doorbuster} sale create shoes --item shoe=500");
    println!("  {doorbuster} sale open shoes");
    println!(
        "  curl -i -X POST -H \"Authorization: Bearer $({doorbuster} token ada)\" http://{buyers}/v1/sales/shoes/orders\n"
    );
    println!("Ctrl-C ends everything.\n");
}

/// In a temporary folder, so that it can be run again and again.
async fn demo(sources: &Sources) -> Result<Ended, Failed> {
    println!("Doorbuster: 500 units, 20,000 buyers, a real Redis, a real RabbitMQ, a real database.\n");
    let progress = Progress::on_stderr();
    progress.say("starting private servers on free ports of 127.0.0.1, in a temporary folder");
    let report = super::drill::on_private_stack(sources, &Preset::Demo.plan(), &progress).await?;
    println!("{report}");
    Ok(super::drill::judge(&report))
}
