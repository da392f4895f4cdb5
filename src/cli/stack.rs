//! A whole stack in this process, on private servers: what `dev` and the drills start.

use std::path::Path;

use super::Failed;
use crate::front::Tokens;
use crate::process::config::{Config, Sources};
use crate::process::run::{Role, Running};
use crate::rehearsal::drill::{Target, payment_secret};
use crate::rehearsal::servers::{Ending, Folder, Kind, Secret, Server};

/// Private servers with a front and a worker on top. Used by `dev` and by the drills.
pub(super) struct Stack {
    pub(super) running: Running,
    pub(super) config: Config,
    pub(super) redis: Server,
    folder: Folder,
    broker: tokio::task::JoinHandle<Result<Server, crate::rehearsal::servers::ServerError>>,
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

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// This stack as a drill meets it.
    pub(super) fn target(&self) -> Result<Target, Failed> {
        let buyers = self.running.buyers.ok_or_else(|| Failed::Said("this stack serves no buyers".into()))?;
        let tokens = Tokens::new(self.config.auth());
        let payment_secret = payment_secret(&self.config.auth.secret);
        Ok(Target { buyers, operations: self.running.operations, tokens, payment_secret })
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
    let running = Box::pin(Running::start(config, Role::Both)).await?;
    running.parts.store.migrate().await?;
    Ok(running)
}

/// What is configured, with the private servers under it. The URLs of Redis and the broker are
/// always the private ones, unless `--set` names others: a shell in which a production's addresses
/// are set must not make `dev` meet them.
fn configure(sources: &Sources, folder: &Path, redis: &str, broker: &str) -> Result<Config, Failed> {
    let mut sources = sources.clone();
    let secret = Secret::in_folder(folder)?.0;
    sources.defaults = vec![
        ("payments.secrets", format!("drill {}", payment_secret(&secret))),
        ("auth.secret", secret),
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
