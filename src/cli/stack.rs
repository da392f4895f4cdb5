//! A front and a worker in this process, on private servers: the stack that `dev` and the drills start.

use std::path::Path;

use tokio::task::JoinHandle;

use super::discover::Advertised;
use super::ended::Failed;
use crate::front::Signer;
use crate::process::{Config, Role, Running, Sources};
use crate::rehearsal::drill::{Followers, Target, payment_secret};
use crate::rehearsal::judge::History;
use crate::rehearsal::servers::{Ending, Folder, Kind, Secret, Server, ServerError};
use crate::store::{Store, missing_file};

/// Private servers, with a front and a worker on top.
pub(super) struct Stack {
    pub(super) running: Running,
    pub(super) config: Config,
    /// `None` if `--set redis.url` names another one.
    redis: Option<Server>,
    broker: Broker,
    folder: Folder,
    /// Whether the private Redis was made by this start.
    is_new: bool,
}

enum Broker {
    /// `--set queue.url` names one, or the private one could not be started.
    NotOurs,
    Starting(JoinHandle<Result<Server, ServerError>>),
    Up(Server),
}

impl Stack {
    /// Serves before the broker has started: the front takes orders without it, and its answers show the difference
    /// in `durability`.
    pub(super) async fn start(sources: &Sources, folder: Folder) -> Result<Self, Failed> {
        // Reports mistakes before anything starts; the addresses are not known yet.
        configure(sources, folder.path(), "redis://127.0.0.1", "amqp://127.0.0.1")?;
        let is_new = !names(sources, "redis.url") && !folder.path().join("redis").exists();
        // A second server on the data of one that somebody runs would destroy it.
        let redis = match names(sources, "redis.url") {
            true => None,
            false => Some(Server::start(Kind::Redis, folder.path()).await?),
        };
        let starting = match names(sources, "queue.url") {
            true => None,
            false => Some(Server::begin_rabbitmq(folder.path()).await?),
        };
        let redis_url = redis.as_ref().map_or("", |redis| &redis.url);
        let broker_url = starting.as_ref().map_or("", |broker| &broker.url);
        let config = configure(sources, folder.path(), redis_url, broker_url)?;
        let running = start(&config, is_new).await?;
        let broker = match starting {
            Some(starting) => Broker::Starting(tokio::spawn(starting.ready())),
            None => Broker::NotOurs,
        };
        Ok(Self { running, config, redis, broker, folder, is_new })
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
            followers: Followers::default(),
        })
    }

    /// Whether the private Redis was made by this start: it sells at once, and one that has restarted only when it has been
    /// compared with the order log.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Whether the private broker is still starting, which takes some seconds.
    pub(super) fn broker_starts(&self) -> bool {
        matches!(self.broker, Broker::Starting(_))
    }

    /// Returns once the private broker has started, if there is one.
    pub(super) async fn broker_is_up(&mut self) -> Result<(), Failed> {
        let Broker::Starting(starting) = &mut self.broker else { return Ok(()) };
        let started = starting.await;
        self.broker = Broker::NotOurs;
        let started = started.map_err(|error| Failed::Other(format!("starting rabbitmq: {error}")))?;
        self.broker = Broker::Up(started?);
        Ok(())
    }

    /// Returns why this stack no longer works: a server or a task has ended by itself.
    pub(super) async fn ended(&mut self) -> String {
        let redis = ended(self.redis.as_ref());
        let broker = ended(match &self.broker {
            Broker::Up(broker) => Some(broker),
            Broker::NotOurs | Broker::Starting(_) => None,
        });
        tokio::select! {
            () = redis => "redis-server ended by itself; its log is in the data folder".to_owned(),
            () = broker => "rabbitmq-server ended by itself; its log is in the data folder".to_owned(),
            why = self.running.task_ended() => why.to_string(),
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
            ("operations.listen", &self.running.operations.to_string()),
        ];
        let folder = self.folder.path();
        Advertised::write(folder, &settings).map_err(|error| {
            Failed::Other(format!("writing the settings into {}: {error}", folder.display()))
        })
    }

    pub(super) async fn stop(self, ending: Ending) {
        self.running.stop().await;
        match self.broker {
            Broker::Up(broker) => broker.stop(ending).await,
            Broker::Starting(starting) => {
                starting.abort();
                // On return the process that it started is gone.
                let _ = starting.await;
            }
            Broker::NotOurs => {}
        }
        if let Some(redis) = self.redis {
            redis.stop(ending).await;
        }
        drop(self.folder);
    }
}

/// Returns when the server has ended by itself; never if there is none.
async fn ended(server: Option<&Server>) {
    match server {
        Some(server) => server.ended().await,
        None => std::future::pending().await,
    }
}

async fn start(config: &Config, redis_is_new: bool) -> Result<Running, Failed> {
    // Where all is new, no part of the process should find a database without an installation. Any other database may
    // belong to another one: it is not touched before the start has compared the ids.
    if redis_is_new && missing_file(&config.database.url).is_some() {
        let store = Store::connect(&config.store()).await?;
        store.migrate().await?;
        store.close().await;
    }
    let running = Box::pin(Running::start(config, Role::Both)).await?;
    running.parts.store.migrate().await?;
    Ok(running)
}

/// The configuration, with the private servers as its defaults. The URLs of the servers are always the private ones unless
/// `--set` names others: `dev` and the drills must not connect to production because a shell has its addresses in the
/// environment. A private Redis and broker would take over the id of its installation, and a private broker its log.
fn configure(sources: &Sources, folder: &Path, redis: &str, broker: &str) -> Result<Config, Failed> {
    let mut sources = sources.clone();
    let secret = Secret::in_folder(folder)?.0;
    sources.defaults = vec![
        ("payments.secrets", format!("drill {}", payment_secret(&secret))),
        ("auth.secret", secret),
        ("front.listen", free_or_any("127.0.0.1:8080")),
        ("operations.listen", free_or_any("127.0.0.1:9090")),
    ];
    let database = format!("sqlite:{}", folder.join("doorbuster.db").display());
    for (key, url) in [("redis.url", redis), ("queue.url", broker), ("database.url", &database)] {
        if !names(&sources, key) {
            sources.overrides.push(format!("{key}={url}"));
        }
    }
    Ok(Config::load(&sources)?)
}

/// Whether `--set` names this server.
fn names(sources: &Sources, key: &str) -> bool {
    sources.overrides.iter().any(|pair| pair.split('=').next() == Some(key))
}

/// The usual address, or a free port if another process has taken it.
fn free_or_any(usual: &str) -> String {
    match std::net::TcpListener::bind(usual) {
        Ok(_) => usual.to_owned(),
        Err(_) => "127.0.0.1:0".to_owned(),
    }
}
