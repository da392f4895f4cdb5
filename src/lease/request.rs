//! A request for leases, checked before it is sent.

use super::{LeaseError, LeaseOptions, MAX_NAMES_PER_CALL};

/// Names to take in one call. The only constructor is [`Request::checked`].
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) scope: String,
    pub(super) names: Vec<String>,
    pub(super) options: LeaseOptions,
    pub(super) mode: Mode,
}

/// Which of the names to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Those that are free.
    Free,
    /// All of them, or none.
    AllOrNone,
    /// As `AllOrNone`, and the caller is going to wait: releases in the scope must be announced.
    AllOrWait,
}

impl Request {
    /// Checks scope, names and options.
    pub(super) fn checked<'a>(
        scope: &str,
        names: impl IntoIterator<Item = &'a str>,
        options: LeaseOptions,
        mode: Mode,
    ) -> Result<Self, LeaseError> {
        check_scope(scope)?;
        options.check()?;
        let mut checked = Vec::new();
        for name in names {
            check_name(name)?;
            checked.push(name.to_owned());
        }
        if checked.is_empty() || checked.len() > MAX_NAMES_PER_CALL {
            return Err(LeaseError::Invalid(format!(
                "{} names in one call: it takes from 1 to {MAX_NAMES_PER_CALL}",
                checked.len()
            )));
        }
        Ok(Self { scope: scope.to_owned(), names: checked, options, mode })
    }
}

/// 1 to 64 characters that cannot break a key or its hash tag.
pub(super) fn check_scope(scope: &str) -> Result<(), LeaseError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._:@-".contains(c);
    if (1..=64).contains(&scope.len()) && scope.chars().all(allowed) {
        return Ok(());
    }
    Err(LeaseError::Invalid(format!(
        "{scope:?} is not a valid scope: use 1 to 64 of A-Z, a-z, 0-9 and . _ : @ -"
    )))
}

/// 1 to 200 visible ASCII characters; a bar separates the fields of a lease in Redis.
pub(super) fn check_name(name: &str) -> Result<(), LeaseError> {
    let allowed = |c: char| c.is_ascii_graphic() && c != '|';
    if (1..=200).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(());
    }
    Err(LeaseError::Invalid(format!(
        "{name:?} is not a valid name for a lease: use 1 to 200 visible ASCII characters without a bar"
    )))
}
