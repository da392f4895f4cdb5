//! `dev`: a whole Doorbuster on this machine, with private servers.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::{Ended, Failed};
use crate::dev::{Ending, Folder, Kind, Secret, Server};
use crate::domain::UserId;
use crate::drill::{Place, Preset, Progress};
use crate::front::{Role as OperatorRole, Tokens};
use crate::process::config::{Config, Sources, redact};
use crate::process::run::{Role, Running};
use crate::process::{log, signal};

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

/// Private servers with a front and a worker on top. Used by `dev` and by the drills.
pub(super) struct Stack {
    pub(super) running: Running,
    pub(super) config: Config,
    pub(super) redis: Server,
    folder: Folder,
    broker: tokio::task::JoinHandle<Result<Server, crate::dev::DevError>>,
}

impl Stack {
    /// Serves before the broker has started: intake does not need it, only `durability` tells.
    pub(super) async fn start(sources: &Sources, folder: Folder) -> Result<Self, Failed> {
        // Mistakes are told before anything starts; the addresses are not known yet.
        configure(sources, folder.path(), "redis://127.0.0.1", "amqp://127.0.0.1")?;
        let redis = Server::start(Kind::Redis, folder.path()).await?;
        let starting = Server::begin_rabbitmq(folder.path()).await?;
        let config = configure(sources, folder.path(), &redis.url, &starting.url)?;
        let running = start(&config).await?;
        let broker = tokio::spawn(starting.ready());
        Ok(Self { running, config, redis, folder, broker })
    }

    /// This stack as a drill meets it.
    pub(super) fn place(&self) -> Result<Place, Failed> {
        let buyers = self.running.buyers.ok_or_else(|| Failed::Said("this stack serves no buyers".into()))?;
        let tokens = Tokens::new(self.config.auth());
        Ok(Place { buyers, operations: self.running.operations, tokens })
    }

    pub(super) async fn broker_is_up(&mut self) -> Result<Server, Failed> {
        match (&mut self.broker).await {
            Ok(started) => Ok(started?),
            Err(error) => Err(Failed::Said(format!("starting rabbitmq: {error}"))),
        }
    }

    pub(super) async fn stop(self, broker: Option<Server>, ending: Ending) {
        self.running.stop().await;
        if let Some(broker) = broker {
            broker.stop(ending).await;
        } else {
            self.broker.abort();
            // Its end kills what it had started.
            let _ = self.broker.await;
        }
        self.redis.stop(ending).await;
        drop(self.folder);
    }
}

async fn start(config: &Config) -> Result<Running, Failed> {
    let running = Running::start(config, Role::Both).await?;
    running.parts.store.migrate().await?;
    Ok(running)
}

/// What is configured, with the private servers under it. The URLs of Redis and the broker are
/// always the private ones, unless `--set` names others: a shell in which a production's addresses
/// are set must not make `dev` meet them.
fn configure(sources: &Sources, folder: &Path, redis: &str, broker: &str) -> Result<Config, Failed> {
    let mut sources = sources.clone();
    sources.defaults = vec![
        ("auth.secret", Secret::in_folder(folder)?.0),
        ("front.listen", free_or_any("127.0.0.1:8080")),
        ("operations.listen", free_or_any("127.0.0.1:9090")),
        ("database.url", format!("sqlite:{}", folder.join("doorbuster.db").display())),
    ];
    for (key, url) in [("redis.url", redis), ("queue.url", broker)] {
        if !sources.overrides.iter().any(|pair| pair.split('=').next() == Some(key)) {
            sources.overrides.push(format!("{key}={url}"));
        }
    }
    Ok(Config::load(&sources)?)
}

/// The usual address, or a free port where somebody has it already.
fn free_or_any(usual: &str) -> String {
    match std::net::TcpListener::bind(usual) {
        Ok(_) => usual.to_owned(),
        Err(_) => "127.0.0.1:0".to_owned(),
    }
}

pub(super) async fn run(sources: &Sources, args: Args) -> Result<Ended, Failed> {
    // That the broker is not there yet is said below, and no news.
    log::start_with("auto", "warn,doorbuster::queue=error");
    if args.demo {
        return demo(sources).await;
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
    let path = stack.folder.path().join("config.toml");
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
    let (admin, buyer) = (mint("admin", Some(OperatorRole::Admin)), mint("ada", None));
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
