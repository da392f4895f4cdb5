//! A rule, and what it finds.

use serde::Serialize;
use uuid::Uuid;

use super::facts::Facts;

/// What a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Must hold whatever fails.
    Promise,
    /// How well buyers have to be served although things fail.
    Floor,
}

/// A rule.
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// What must hold.
    pub says: &'static str,
    /// Whether it is a promise or a floor.
    pub kind: Kind,
    pub(super) look: fn(&Facts<'_>) -> Look,
}

/// What a rule finds in a case.
#[derive(Default)]
pub(super) struct Look {
    pub(super) found: Vec<Found>,
    /// What a floor measured.
    pub(super) measured: Option<f64>,
}

/// What contradicts a rule.
pub(super) struct Found {
    pub(super) says: String,
    pub(super) order: Option<Uuid>,
    pub(super) user: Option<String>,
}

impl Found {
    pub(super) fn new(says: String) -> Self {
        Self { says, order: None, user: None }
    }

    pub(super) fn of_order(order: Uuid, says: String) -> Self {
        Self { order: Some(order), ..Self::new(says) }
    }

    pub(super) fn of_user(user: &str, says: String) -> Self {
        Self { user: Some(user.to_owned()), ..Self::new(says) }
    }
}

impl FromIterator<Found> for Look {
    fn from_iter<T: IntoIterator<Item = Found>>(found: T) -> Self {
        Self { found: found.into_iter().collect(), measured: None }
    }
}

pub(super) const fn promise(name: &'static str, says: &'static str, look: fn(&Facts<'_>) -> Look) -> Rule {
    Rule { name, says, kind: Kind::Promise, look }
}

pub(super) const fn floor(name: &'static str, says: &'static str, look: fn(&Facts<'_>) -> Look) -> Rule {
    Rule { name, says, kind: Kind::Floor, look }
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The rule's name.
    pub rule: &'static str,
    /// What contradicts it.
    pub says: String,
    /// The order concerned.
    pub order: Option<Uuid>,
    /// The buyer concerned.
    pub user: Option<String>,
}
