//! Private servers as children of this process: redis-server, rabbitmq-server, PostgreSQL and
//! MariaDB, on free ports of 127.0.0.1, each with a data folder of its own. Used by `dev`, the
//! drills and the tests. It touches no server that it did not start.

mod child;
mod folder;
mod mariadb;
mod ports;
mod postgres;
mod programs;
mod rabbitmq;
mod redis;

use std::path::Path;

pub use child::{Child, Ending, start_self};
pub use folder::{Folder, Secret};
pub use ports::free as free_port;
pub use rabbitmq::Starting;

/// Why a private server could not be started, with what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("{0} is not installed; `make demo` and `make test` install it, or see README")]
    Missing(&'static str),
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    #[error("another doorbuster uses {0}; stop it, or choose another --data-dir")]
    InUse(String),
    #[error("{0} has no control program")]
    NoControl(&'static str),
    #[error("{what}: {said}")]
    Refused { what: String, said: String },
    #[error("{name} did not start: {why}\n{log}")]
    NotStarted { name: &'static str, why: String, log: String },
}

impl ServerError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// The servers that can be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Kind {
    Redis,
    Rabbitmq,
    Postgres,
    Mariadb,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Rabbitmq => "rabbitmq",
            Self::Postgres => "postgres",
            Self::Mariadb => "mariadb",
        }
    }
}

/// A running private server. Ended with [`Server::stop`], or at the latest when this process ends.
pub struct Server {
    pub kind: Kind,
    /// For clients, such as `redis://127.0.0.1:40001`.
    pub url: String,
    child: Child,
    /// Processes that the server needs; they end after it.
    helpers: Vec<Child>,
    /// How to speak to it as its administrator, where that takes a program.
    control: Option<rabbitmq::Control>,
}

impl Server {
    /// Starts a server with its data under `folder`, and returns when it answers its protocol.
    /// What a killed predecessor left running on the same data is ended first.
    pub async fn start(kind: Kind, folder: &Path) -> Result<Self, ServerError> {
        let home = folder.join(kind.name());
        match kind {
            Kind::Redis => redis::start(&home).await,
            Kind::Rabbitmq => rabbitmq::begin(&home).await?.ready().await,
            Kind::Postgres => postgres::start(&home).await,
            Kind::Mariadb => mariadb::start(&home).await,
        }
    }

    /// Starts RabbitMQ, which takes seconds, without waiting for it: its URL is known at once.
    pub async fn begin_rabbitmq(folder: &Path) -> Result<Starting, ServerError> {
        rabbitmq::begin(&folder.join(Kind::Rabbitmq.name())).await
    }

    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Runs RabbitMQ's control program on this node.
    pub async fn control(&self, arguments: &[&str]) -> Result<(), ServerError> {
        match &self.control {
            Some(control) => control.run(arguments).await,
            None => Err(ServerError::NoControl(self.kind.name())),
        }
    }

    /// Returns when the server has ended by itself.
    pub async fn ended(&self) {
        self.child.ended().await;
    }

    pub async fn stop(self, ending: Ending) {
        self.child.stop(ending).await;
        for helper in self.helpers {
            helper.stop(ending).await;
        }
    }
}
