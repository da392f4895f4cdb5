//! A front and a worker in this process, on private servers: the stack that `dev` and the drills start.

use std::path::Path;

use tokio::task::JoinHandle;

use super::discover::Advertised;
use super::ended::Failed;
use crate::front::Signer;
use crate::process::{Config, Role, Running, Sources};
use crate::rehearsal::drill::{Target, payment_secret};
use crate::rehearsal::judge::History;
use crate::rehearsal::servers::{Ending, Folder, Kind, Secret, Server, ServerError};

/// Private servers, with a front and a worker on top.
pub(super) struct Stack {
    pub(super) running: Running,
    pub(super) config: Config,
    pub(super) redis: Server,
    folder: Folder,
    broker: JoinHandle<Result<Server, ServerError>>,
}

impl Stack {
    /// Serves before the broker has started: the front takes orders without it, and its answers show the difference
    /// in `durability`.
    pub(super) async fn start(sources: &Sources, folder: Folder) -> Result<Self, Failed> {
        // Reports mistakes before anything starts; the addresses are not known yet.
        configure(sources, folder.path(), "redis://127.0.0.1", "amqp://127.0.0.1")?;
        let redis = Server::start(Kind::Redis, folder.path()).await?;
        let starting = Server::begin_rabbitmq(folder.path()).await?;
        let config = configure(sources, folder.path(), &redis.url, &starting.url)?;
        let running = start(&config).await?;
        let broker = tokio::spawn(starting.ready());
        Ok(Self { running, config, redis, folder, broker })
    }

    /// This stack as the target of a drill.
    pub(super) fn target(&self) -> Result<Target, Failed> {
        let buyers =
            self.running.buyers.ok_or_else(|| Failed::Other("this stack serves no buyers".into()))?;
        let tokens = Signer::new(self.config.auth());
        let payment_secret = payment_secret(&self.config.auth.secret);
        Ok(Target {
            buyers,
            operations: self.running.operations,
            tokens,
            payment_secret,
            history: History::none(),
        })
    }

    pub(super) async fn broker_is_up(&mut self) -> Result<Server, Failed> {
        match (&mut self.broker).await {
            Ok(started) => Ok(started?),
            Err(error) => Err(Failed::Other(format!("starting rabbitmq: {error}"))),
        }
    }

    /// Writes the file that lets commands in other terminals reach this stack.
    pub(super) fn advertise(&self) -> Result<Advertised, Failed> {
        let config = &self.config;
        let settings = [
            ("redis.url", config.redis.url.as_str()),
            ("redis.prefix", &config.redis.prefix),
            ("queue.url", &config.queue.url),
            ("queue.prefix", &config.queue.prefix),
            ("database.url", &config.database.url),
            ("auth.secret", &config.auth.secret),
            ("auth.issuer", &config.auth.issuer),
            ("auth.audience", &config.auth.audience),
            ("auth.operators_audience", &config.auth.operators_audience),
            ("auth.role_claim", &config.auth.role_claim),
        ];
        let folder = self.folder.path();
        Advertised::write(folder, &settings).map_err(|error| {
            Failed::Other(format!("writing the settings into {}: {error}", folder.display()))
        })
    }

    pub(super) async fn stop(self, broker: Option<Server>, ending: Ending) {
        self.running.stop().await;
        if let Some(broker) = broker {
            broker.stop(ending).await;
        } else {
            self.broker.abort();
            // On return the process that it started is gone.
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

/// The configuration, with the private servers as its defaults. The URLs of Redis and the broker are always the
/// private ones unless `--set` names others: `dev` must not connect to production because a shell has its addresses
/// in the environment.
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

/// The usual address, or a free port if another process has taken it.
fn free_or_any(usual: &str) -> String {
    match std::net::TcpListener::bind(usual) {
        Ok(_) => usual.to_owned(),
        Err(_) => "127.0.0.1:0".to_owned(),
    }
}
