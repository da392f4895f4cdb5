//! A connection to Redis that is never replaced.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::FromRedisValue;
use redis::aio::MultiplexedConnection;

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
        let Connection { calls, address, limit, .. } = &*self.0;
        let answer = tokio::time::timeout(*limit, commands.query_async(&mut calls.clone())).await;
        let answer = answer.map_err(|_| Fault::Late(format!("no reply within {limit:?}")));
        answer.and_then(|reply| reply.map_err(Fault::from)).map_err(|fault| fault.at(address))
    }
}
