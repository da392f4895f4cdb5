//! Names of many scopes: what a batch of orders of many sales needs, and gives back.

use std::collections::{BTreeMap, BTreeSet};

use super::{Guard, LeaseError, LeaseOptions, Leases, MAX_NAMES_PER_CALL};
use crate::link::call_together;

/// The fencing token of each scope and name that was taken.
pub type Tokens<'a> = BTreeMap<(&'a str, &'a str), i64>;

impl Leases {
    /// As [`Leases::take`], of any number of scopes and names: those that are free, and waits for none. One
    /// call for each scope and each [`MAX_NAMES_PER_CALL`], several under way together. A name that is given
    /// twice needs one lease.
    ///
    /// After an error, and where the future is dropped, nothing is held: what was taken is released.
    pub async fn take_in_scopes<'a>(
        &self,
        names: impl IntoIterator<Item = (&'a str, &'a str)>,
        options: LeaseOptions,
    ) -> Result<(Vec<Guard>, Tokens<'a>), LeaseError> {
        let mut scopes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (scope, name) in names {
            scopes.entry(scope).or_default().insert(name);
        }
        let mut pieces: Vec<(&str, Vec<&str>)> = Vec::new();
        for (scope, names) in scopes {
            let names = Vec::from_iter(names);
            pieces.extend(names.chunks(MAX_NAMES_PER_CALL).map(|names| (scope, names.to_vec())));
        }
        let calls = pieces.iter().map(|(scope, names)| self.take(scope, names.iter().copied(), options));
        let taken = call_together(calls).await;
        let (mut guards, mut tokens) = (Vec::new(), Tokens::new());
        for ((scope, names), taken) in pieces.into_iter().zip(taken) {
            let taken = taken?;
            if let Some(guard) = taken.guard {
                let held = names.into_iter().zip(taken.held).filter(|(_, held)| *held);
                tokens.extend(held.map(|(name, _)| ((scope, name), guard.token())));
                guards.push(guard);
            }
        }
        Ok((guards, tokens))
    }
}

/// Releases all of them as [`Guard::release`] does; what cannot be released now is tried again in the
/// background.
pub async fn release_all(guards: Vec<Guard>) {
    call_together(guards.into_iter().map(Guard::release)).await;
}
