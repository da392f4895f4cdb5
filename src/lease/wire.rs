//! The scripts of the lease, their keys, and how their replies are read.
//!
//! | key | type | holds |
//! | --- | --- | --- |
//! | `P:{S}:leases` | hash | name -> end, owner, token, time of taking and holder, joined by bars, times in ms; and under names that no lease can have, the highest token and the time when somebody last waited. A lease that was released and stays taken for its minimum hold has an owner of zeros |
//! | `P:lease-scopes` | zset | the scopes in which leases are taken, scored by the last time |
//!
//! Freed names are published on the channel `P:{S}:leases`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::LeaseError;
use super::record::Lease;
use super::request::{Mode, Request};
use crate::link::{Fault, RedisLink, Script};

pub(super) struct Wire {
    pub(super) link: RedisLink,
    prefix: String,
    take: Script,
    renew: Script,
    release: Script,
    list: Script,
    list_scopes: Script,
}

/// By how much Redis's clock may step, ahead or back, without a lease having two holders: a failover brings the clock of
/// another host.
pub(super) const CLOCK_STEP: Duration = Duration::from_secs(10);

/// The reply of `take.lua` for one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameReply {
    /// Taken, with this fencing token.
    Taken(i64),
    /// Free, but not taken because another name was not free.
    Free,
    /// Someone else holds it.
    Busy(Held),
}

/// A lease that someone else holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    /// The time until it ends by Redis's clock, unless it is renewed.
    pub(super) left: Duration,
    /// The time since it ended by that clock.
    pub(super) ended_ago: Duration,
    /// Its end by that clock, in ms: another one after each renewal.
    pub(super) ends: i64,
    /// The time from when it was taken to its end; no renewal extends it for longer.
    pub(super) lasts: Duration,
}

/// One argument of `renew.lua`: an owner's lease, and how long it should last from now on.
pub(super) struct Extension {
    pub(super) owner: String,
    pub(super) lasts: Duration,
    pub(super) name: String,
}

impl Wire {
    pub(super) fn new(link: RedisLink, prefix: &str) -> Self {
        Self {
            link,
            prefix: prefix.to_owned(),
            take: Script::new(include_str!("../../lua/lease/take.lua")),
            renew: Script::new(include_str!("../../lua/lease/renew.lua")),
            release: Script::new(include_str!("../../lua/lease/release.lua")),
            list: Script::new(include_str!("../../lua/lease/list.lua")),
            list_scopes: Script::new(include_str!("../../lua/lease/list_scopes.lua")),
        }
    }

    /// The key of a scope's leases, and the channel on which freed names are published.
    pub(super) fn leases(&self, scope: &str) -> String {
        format!("{}:{{{scope}}}:leases", self.prefix)
    }

    /// The scope of a channel that [`Wire::leases`] names.
    pub(super) fn scope<'a>(&self, channel: &'a str) -> Option<&'a str> {
        channel.strip_prefix(&self.prefix)?.strip_prefix(":{")?.strip_suffix("}:leases")
    }

    /// One reply for each name of the request, in that order. `ended` has names of the request whose leases this process
    /// knows to have ended, with their ends.
    pub(super) async fn take(
        &self,
        request: &Request,
        (owner, holder): (&str, &str),
        ended: &[(String, i64)],
    ) -> Result<Vec<NameReply>, Fault> {
        let mode = match request.mode {
            Mode::Free => "any",
            Mode::AllOrNone => "all",
            Mode::AllOrWait => "wait",
        };
        let mut args = vec![
            owner.to_owned(),
            ms(request.options.initial_duration()),
            holder.to_owned(),
            mode.to_owned(),
            ms(CLOCK_STEP),
            ended.len().to_string(),
        ];
        args.extend(ended.iter().flat_map(|(name, ends)| [name.clone(), ends.to_string()]));
        args.extend_from_slice(&request.names);
        let replies: Vec<redis::Value> =
            self.link.run(&self.take, &[self.leases(&request.scope)], &args).await?;
        replies.iter().map(name_reply).collect()
    }

    /// For each lease: whether its owner still held it.
    pub(super) async fn renew(&self, scope: &str, leases: &[Extension]) -> Result<Vec<bool>, Fault> {
        let args: Vec<String> = leases
            .iter()
            .flat_map(|lease| [lease.owner.clone(), ms(lease.lasts), lease.name.clone()])
            .collect();
        self.link.run(&self.renew, &[self.leases(scope)], &args).await
    }

    /// For each name: whether the owner still held it. Each lease stays taken until `min_hold` after it was taken.
    pub(super) async fn release(
        &self,
        scope: &str,
        owner: &str,
        min_hold: Duration,
        names: &[String],
    ) -> Result<Vec<bool>, Fault> {
        let mut args = vec![owner.to_owned(), ms(min_hold)];
        args.extend_from_slice(names);
        self.link.run(&self.release, &[self.leases(scope)], &args).await
    }

    /// Records that leases are taken in the scope.
    pub(super) async fn record_scope(&self, scope: &str) -> Result<(), Fault> {
        self.run_list_scopes(scope).await.map(drop)
    }

    /// The scopes that were recorded in the last thirty days.
    pub(super) async fn list_scopes(&self) -> Result<Vec<String>, Fault> {
        self.run_list_scopes("").await
    }

    async fn run_list_scopes(&self, recorded: &str) -> Result<Vec<String>, Fault> {
        let keys = [format!("{}:lease-scopes", self.prefix)];
        self.link.run(&self.list_scopes, &keys, &[recorded.to_owned()]).await
    }

    /// All leases of a scope, or the lease on one name.
    pub(super) async fn list(&self, scope: &str, name: Option<&str>) -> Result<Vec<Lease>, LeaseError> {
        let mut cursor = "0".to_owned();
        // A page may repeat leases of an earlier one.
        let mut leases = BTreeMap::new();
        loop {
            let args = [cursor, name.unwrap_or_default().to_owned(), ms(CLOCK_STEP)];
            let (now, next, found): (i64, String, Vec<String>) =
                self.link.run(&self.list, &[self.leases(scope)], &args).await?;
            for pair in found.chunks(2) {
                let [name, text] = pair else { continue };
                leases.insert(name.clone(), Lease::read(scope, name, text, now)?);
            }
            if next == "0" {
                return Ok(leases.into_values().collect());
            }
            cursor = next;
        }
    }
}

fn name_reply(reply: &redis::Value) -> Result<NameReply, Fault> {
    if let redis::Value::Int(token) = reply {
        return Ok(if *token == 0 { NameReply::Free } else { NameReply::Taken(*token) });
    }
    let read: Result<(i64, i64, i64), _> = redis::from_redis_value_ref(reply);
    let (left, ends, lasts) =
        read.map_err(|error| Fault::Broken(format!("a reply about a lease that cannot be read: {error}")))?;
    let span = |ms: i64| Duration::from_millis(ms.max(0).unsigned_abs());
    Ok(NameReply::Busy(Held { left: span(left), ended_ago: span(-left), ends, lasts: span(lasts) }))
}

/// Rounded up: a lease must not be shorter than its holder assumes.
fn ms(time: Duration) -> String {
    time.as_micros().div_ceil(1_000).to_string()
}
