//! A connection to Redis that is never replaced.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisResult};

use super::error::Fault;

/// A connection on which every call fails once it is lost. So all answers on it come from one server that has not
/// restarted in between. Cheap to clone.
#[derive(Clone)]
pub struct Pinned(Arc<Connection>);

struct Connection {
    calls: MultiplexedConnection,
    since: Instant,
    address: Arc<str>,
    /// The longest that a call may take.
    limit: Duration,
}

impl Pinned {
    pub(super) fn new(calls: MultiplexedConnection, address: Arc<str>, limit: Duration) -> Self {
        Self(Arc::new(Connection { calls, since: Instant::now(), address, limit }))
    }

    /// How long it has been open.
    pub fn age(&self) -> Duration {
        self.0.since.elapsed()
    }

    /// Whether both are the same connection.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Sends several commands, as one transaction if they are atomic. After an error the connection may be lost.
    pub async fn query<T: FromRedisValue>(&self, commands: &redis::Pipeline) -> Result<T, Fault> {
        self.within(commands.query_async(&mut self.0.calls.clone())).await
    }

    /// Sends one command. After an error the connection may be lost.
    pub async fn ask<T: FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, Fault> {
        self.within(command.query_async(&mut self.0.calls.clone())).await
    }

    /// Loads a script without running it.
    pub(super) async fn load(&self, script: &redis::Script) -> Result<(), Fault> {
        let _hash: String = self.within(script.load_async(&mut self.0.calls.clone())).await?;
        Ok(())
    }

    async fn within<T>(&self, call: impl Future<Output = RedisResult<T>>) -> Result<T, Fault> {
        let Connection { address, limit, .. } = &*self.0;
        let answer = tokio::time::timeout(*limit, call).await;
        let answer = answer.map_err(|_| Fault::Late(format!("no reply within {limit:?}")));
        answer.and_then(|reply| reply.map_err(Fault::from)).map_err(|fault| fault.at(address))
    }
}
