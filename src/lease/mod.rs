//! Who may act for a user now? A lease: a key in Redis with an owner and an end.
//!
//! A lease makes contention cheap; it does not make anything correct by itself. A holder that was
//! stopped for longer than its lease still believes that it holds it: therefore each lease carries
//! a fencing token, and the store refuses a write whose token is lower than one it has seen.
//!
//! Released by its owner only, and always ended by time: nothing scans for stuck leases.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use redis::Script;
use tokio::time::Instant;

pub use crate::link::Fault as LeaseError;
use crate::link::{RedisLink, RedisSettings};

/// Cheap to clone.
#[derive(Clone)]
pub struct Leases {
    link: RedisLink,
    prefix: String,
    scripts: Arc<Scripts>,
}

struct Scripts {
    take: Script,
    release: Script,
    renew: Script,
}

/// Leases taken by one acquisition: one owner, one fencing token. Dropping the guard releases
/// them in the background; [`Guard::release`] waits for it.
pub struct Guard {
    leases: Leases,
    owner: String,
    keys: Vec<String>,
    token: i64,
    lasts: Duration,
    ends: Instant,
}

/// The answer to [`Leases::take`].
pub struct Taken {
    /// One entry per name asked for, in that order: is it ours?
    pub held: Vec<bool>,
    pub guard: Guard,
}

impl Leases {
    /// Must be called inside a tokio runtime. Does not wait for Redis.
    pub fn open(redis: &RedisSettings, prefix: &str) -> Result<Self, LeaseError> {
        Ok(Self {
            link: RedisLink::open(redis)?,
            prefix: prefix.to_owned(),
            scripts: Arc::new(Scripts {
                take: Script::new(include_str!("../../lua/lease_take.lua")),
                release: Script::new(include_str!("../../lua/lease_release.lua")),
                renew: Script::new(include_str!("../../lua/lease_renew.lua")),
            }),
        })
    }

    /// Takes those of `names` that are free, in one round trip. `scope` is the hash tag: leases of
    /// one call lie in one slot. Does not wait for the others.
    ///
    /// After an error leases may have been taken; nobody renews them, and they end by themselves.
    pub async fn take<'a>(
        &self,
        scope: &str,
        names: impl IntoIterator<Item = &'a str>,
        lasts: Duration,
    ) -> Result<Taken, LeaseError> {
        let owner = format!("{:032x}", rand::rng().random::<u128>());
        let mut keys = vec![format!("{}:{{{scope}}}:fence", self.prefix)];
        keys.extend(names.into_iter().map(|name| format!("{}:{{{scope}}}:lease:{name}", self.prefix)));
        // Counted from before the request: Redis started its clock later than this.
        let ends = Instant::now() + lasts;
        let args = [owner.clone(), lasts.as_millis().to_string()];
        let tokens: Vec<i64> = self.link.run(&self.scripts.take, &keys, &args).await?;
        let held: Vec<bool> = tokens.iter().map(|token| *token > 0).collect();
        let keys =
            keys.into_iter().skip(1).zip(&held).filter_map(|(key, held)| held.then_some(key)).collect();
        let token = tokens.into_iter().max().unwrap_or(0);
        let guard = Guard { leases: self.clone(), owner, keys, token, lasts, ends };
        Ok(Taken { held, guard })
    }

    async fn release(&self, owner: &str, keys: &[String]) -> Result<(), LeaseError> {
        if keys.is_empty() {
            return Ok(());
        }
        let args = [owner.to_owned()];
        let _released: i64 = self.link.run(&self.scripts.release, keys, &args).await?;
        Ok(())
    }
}

impl Guard {
    /// Higher than every token given before for the same scope.
    pub fn token(&self) -> i64 {
        self.token
    }

    /// Will the leases last for `margin` more, by this process's own clock? Ask before COMMIT.
    pub fn is_valid_for(&self, margin: Duration) -> bool {
        Instant::now() + margin < self.ends
    }

    /// Extends the leases to their full time from now. `false` where one of them was lost.
    pub async fn renew(&mut self) -> Result<bool, LeaseError> {
        let ends = Instant::now() + self.lasts;
        let args = [self.owner.clone(), self.lasts.as_millis().to_string()];
        let kept: Vec<i64> = self.leases.link.run(&self.leases.scripts.renew, &self.keys, &args).await?;
        let all = kept.iter().all(|kept| *kept == 1);
        if all {
            self.ends = ends;
        }
        Ok(all)
    }

    /// Gives the leases back. What another owner holds by now is not touched. After an error they
    /// end by themselves.
    pub async fn release(mut self) -> Result<(), LeaseError> {
        let keys = std::mem::take(&mut self.keys);
        self.leases.release(&self.owner, &keys).await
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let keys = std::mem::take(&mut self.keys);
        if keys.is_empty() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (leases, owner) = (self.leases.clone(), std::mem::take(&mut self.owner));
            runtime.spawn(async move {
                // On failure they end by themselves.
                let _ = leases.release(&owner, &keys).await;
            });
        }
    }
}
