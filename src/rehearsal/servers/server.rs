//! A running private server: its address, its process, and how to stop it.

use super::child::{Child, Ending};
use super::error::ServerError;
use super::rabbitmqctl::Rabbitmqctl;

/// The servers that can be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Kind {
    /// redis-server, or valkey-server if there is no redis-server.
    Redis,
    /// A RabbitMQ node with its own epmd.
    Rabbitmq,
    /// PostgreSQL, in the newest version installed.
    Postgres,
    /// MariaDB.
    Mariadb,
}

impl Kind {
    /// The name of its folder, and its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Rabbitmq => "rabbitmq",
            Self::Postgres => "postgres",
            Self::Mariadb => "mariadb",
        }
    }
}

/// A running private server. Stop it with [`Server::stop`]; it is killed when it is dropped or this process ends.
pub struct Server {
    /// Which server this is.
    pub kind: Kind,
    /// The address for clients, such as `redis://127.0.0.1:40001`.
    pub url: String,
    pub(super) child: Child,
    /// Other processes that the server needs. They are stopped after it.
    pub(super) helpers: Vec<Child>,
    /// RabbitMQ's control program; `None` for other servers.
    pub(super) control: Option<Rabbitmqctl>,
}

impl Server {
    /// The process id of the server, not of its helpers.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Runs RabbitMQ's control program on this node, for at most 20 s.
    pub async fn control(&self, arguments: &[&str]) -> Result<(), ServerError> {
        match &self.control {
            Some(control) => control.run(arguments).await,
            None => Err(ServerError::NoControl(self.kind.name())),
        }
    }

    /// Returns once the server's process has ended, for any reason.
    pub async fn ended(&self) {
        self.child.ended().await;
    }

    /// Stops the server, then its helpers. On return the processes have ended; the data stays in its folder.
    pub async fn stop(self, ending: Ending) {
        self.child.stop(ending).await;
        for helper in self.helpers {
            helper.stop(ending).await;
        }
    }
}
