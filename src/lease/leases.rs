//! The handle through which a process takes leases.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::core::Core;
use super::guard::Guard;
use super::request::{Mode, Request};
use super::take::take;
use super::wire::Wire;
use super::{LeaseError, LeaseOptions, watchdog};
use crate::link::{RedisLink, RedisSettings, listen};

/// Waits are capped at a year: longer ones could overflow the clock, and nobody needs them.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(365 * 86_400);

/// Takes leases, keeps them alive and gives them back. Cheap to clone. One per process is enough: all clones share
/// one watchdog.
#[derive(Clone)]
pub struct Leases {
    pub(super) core: Arc<Core>,
}

/// The answer to [`Leases::take`].
pub struct Taken {
    /// One entry for each name that was requested, in that order: whether it was taken.
    pub held: Vec<bool>,
    /// `None` if no name was free.
    pub guard: Option<Guard>,
}

impl Leases {
    /// Must be called inside the tokio runtime in which all work on leases will run. Does not wait for Redis.
    /// Every key begins with `prefix`.
    pub fn open(redis: &RedisSettings, prefix: &str) -> Result<Self, LeaseError> {
        let end = CancellationToken::new();
        let core = Arc::new(Core {
            wire: Wire::new(RedisLink::open(redis)?, prefix),
            holder: holder(),
            watchlist: Default::default(),
            watchdog: Default::default(),
            waiters: Default::default(),
            sightings: Default::default(),
            listener: Default::default(),
            scopes_recorded: Default::default(),
            tasks: TaskTracker::new(),
            runtime: tokio::runtime::Handle::current(),
            _end: end.clone().drop_guard(),
        });
        tokio::spawn(watchdog::watch(Arc::downgrade(&core), end.clone()));
        let link = core.wire.link.clone();
        tokio::spawn(listen(Arc::downgrade(&core), core.listener.clone(), link, end));
        Ok(Self { core })
    }

    /// Takes whichever of `names` are free, in one round trip, without waiting for the others. They share one owner,
    /// one token and one guard. `scope` is the hash tag: the names of a scope are in one slot of a Redis Cluster, and
    /// tokens rise within it.
    ///
    /// A dropped future leaves nothing behind: what it took is released.
    pub async fn take<'a>(
        &self,
        scope: &str,
        names: impl IntoIterator<Item = &'a str>,
        options: LeaseOptions,
    ) -> Result<Taken, LeaseError> {
        let reply = take(&self.core, Request::checked(scope, names, options, Mode::Free)?).await?;
        Ok(Taken { held: reply.held, guard: reply.guard })
    }

    /// The number of acquisitions that this process holds.
    pub fn held(&self) -> usize {
        self.core.watchlist.len()
    }

    /// The number of callers in this process that wait in [`Leases::acquire`].
    pub fn waiting(&self) -> usize {
        self.core.waiters.len()
    }

    /// Waits until nothing is being taken or released in the background: `true`, or `false` after `within`. A process
    /// calls this before it exits, so that the leases it dropped are freed and do not have to expire.
    pub async fn wait_until_idle(&self, within: Duration) -> bool {
        let idle = async {
            while !self.core.tasks.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(within.min(MAX_WAIT), idle).await.is_ok()
    }
}

/// Names this process to people who look at leases: process id and host name.
fn holder() -> String {
    let system = rustix::system::uname();
    let host: String =
        system.nodename().to_string_lossy().chars().filter(|c| c.is_ascii_graphic() && *c != '|').collect();
    format!("{}@{host}", std::process::id())
}
