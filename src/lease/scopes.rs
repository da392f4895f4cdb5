//! Leases in many scopes at once, as a batch with orders of many sales needs them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Guard, LeaseError, LeaseOptions, Leases, MAX_NAMES_PER_CALL};
use crate::link::call_together;

/// The fencing token of each scope and name that was taken.
pub type Tokens<'a> = BTreeMap<(&'a str, &'a str), i64>;

impl Leases {
    /// Like [`Leases::take`] for any number of scopes and names: takes those that are free, and waits for none. Makes
    /// one call for each scope and each [`MAX_NAMES_PER_CALL`] names, several of them at once. A name that is given
    /// twice is taken once.
    ///
    /// After an error, or if the future is dropped, nothing is held: what was taken is released.
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

/// Releases all of them as [`Guard::release`] does. A release that fails is retried in the background.
pub async fn release_all(guards: Vec<Guard>) {
    call_together(guards.into_iter().map(Guard::release)).await;
}
