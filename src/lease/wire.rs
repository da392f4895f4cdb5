//! The scripts of the lease, their keys, and how their replies are read.
//!
//! | key | type | holds |
//! | --- | --- | --- |
//! | `P:{S}:leases` | hash | name -> end, owner, token, when it was taken and holder, joined by bars, times in ms; and under names that no lease can have, the highest token and when somebody waited last. What stays for its least holding time after its release has an owner of zeros |
//! | `P:lease-scopes` | zset | the scopes in which leases are taken, by when that was |
//!
//! The names that are freed are told on the channel `P:{S}:leases`.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Script;

use super::inspect::Lease;
use super::{LeaseError, LeaseOptions};
use crate::link::{Fault, RedisLink};

pub(super) struct Wire {
    pub(super) link: RedisLink,
    prefix: String,
    take: Script,
    renew: Script,
    release: Script,
    list: Script,
    scopes: Script,
}

/// What `take.lua` says of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    Taken(i64),
    /// It could have been taken if the others had been free.
    Free,
    /// Somebody else's, for this long unless it is renewed.
    Busy(Duration),
}

/// What is to be taken, after it has been checked.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) scope: String,
    pub(super) names: Vec<String>,
    pub(super) options: LeaseOptions,
    pub(super) which: Which,
}

/// Which of the names are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Those that are free.
    Free,
    AllOrNone,
    /// The same, and the caller is going to wait for them: releases have to be told.
    AllAndWait,
}

/// Seen in `renew.lua`: a lease of an owner, to last for some time from now.
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
            scopes: Script::new(include_str!("../../lua/lease/list_scopes.lua")),
        }
    }

    /// The key of a scope's leases, and the channel on which it is told what was freed.
    pub(super) fn leases(&self, scope: &str) -> String {
        format!("{}:{{{scope}}}:leases", self.prefix)
    }

    /// The scope of a channel, as [`Wire::leases`] names it.
    pub(super) fn scope<'a>(&self, channel: &'a str) -> Option<&'a str> {
        channel.strip_prefix(&self.prefix)?.strip_prefix(":{")?.strip_suffix("}:leases")
    }

    pub(super) async fn take(
        &self,
        request: &Request,
        owner: &str,
        holder: &str,
    ) -> Result<Vec<Said>, Fault> {
        let mode = match request.which {
            Which::Free => "any",
            Which::AllOrNone => "all",
            Which::AllAndWait => "wait",
        };
        let mut args = vec![
            owner.to_owned(),
            ms(request.options.initial_duration()),
            holder.to_owned(),
            mode.to_owned(),
        ];
        args.extend_from_slice(&request.names);
        let said: Vec<i64> = self.link.run(&self.take, &[self.leases(&request.scope)], &args).await?;
        let read = |said: i64| match said {
            0 => Said::Free,
            token if token > 0 => Said::Taken(token),
            left => Said::Busy(Duration::from_millis(left.unsigned_abs())),
        };
        Ok(said.into_iter().map(read).collect())
    }

    /// For each: is it still its owner's?
    pub(super) async fn renew(&self, scope: &str, leases: &[Extension]) -> Result<Vec<bool>, Fault> {
        let args: Vec<String> = leases
            .iter()
            .flat_map(|lease| [lease.owner.clone(), ms(lease.lasts), lease.name.clone()])
            .collect();
        self.link.run(&self.renew, &[self.leases(scope)], &args).await
    }

    /// For each: was it still its owner's?
    pub(super) async fn release(
        &self,
        scope: &str,
        owner: &str,
        must_stay: Duration,
        names: &[String],
    ) -> Result<Vec<bool>, Fault> {
        let mut args = vec![owner.to_owned(), ms(must_stay)];
        args.extend_from_slice(names);
        self.link.run(&self.release, &[self.leases(scope)], &args).await
    }

    pub(super) async fn remember_scope(&self, scope: &str) -> Result<Vec<String>, Fault> {
        self.link.run(&self.scopes, &[format!("{}:lease-scopes", self.prefix)], &[scope.to_owned()]).await
    }

    /// All leases of a scope, or that of one name.
    pub(super) async fn list(&self, scope: &str, name: Option<&str>) -> Result<Vec<Lease>, LeaseError> {
        let mut cursor = "0".to_owned();
        // A page may repeat what an earlier one had.
        let mut leases = BTreeMap::new();
        loop {
            let args = [cursor, name.unwrap_or_default().to_owned()];
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

/// Rounded up: a lease must not be shorter than what its holder counts on.
fn ms(time: Duration) -> String {
    time.as_micros().div_ceil(1_000).to_string()
}
