//! A lease as Redis stores it.

use std::time::Duration;

use super::LeaseError;
use crate::link::Fault;

/// A lease as Redis has it, with times by Redis's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The hash tag of the lease's key.
    pub scope: String,
    /// The name that is held, unique within the scope.
    pub name: String,
    /// 128 random bits, new with each acquisition. Zeros if the holder has released the lease and it stays taken
    /// for its minimum hold.
    pub owner: String,
    /// The fencing token.
    pub token: i64,
    /// The process that holds it: process id and host name.
    pub holder: String,
    /// Time since it was taken.
    pub age: Duration,
    /// Time until it expires, unless it is renewed.
    pub ends_in: Duration,
}

impl Lease {
    /// Parses what `take.lua` wrote: end, owner, token, time of taking and holder, joined by bars. `now` is Redis's
    /// clock in ms.
    pub(super) fn read(scope: &str, name: &str, text: &str, now: i64) -> Result<Self, LeaseError> {
        let unreadable =
            || LeaseError::Redis(Fault::Broken(format!("a lease that cannot be read: {text:?}")));
        let mut fields = text.splitn(5, '|');
        let mut field = || fields.next().ok_or_else(unreadable);
        let (ends, owner, token, taken, holder) = (field()?, field()?, field()?, field()?, field()?);
        let number = |text: &str| text.parse::<i64>().map_err(|_| unreadable());
        let span = |ms: i64| Duration::from_millis(ms.max(0).unsigned_abs());
        Ok(Self {
            scope: scope.to_owned(),
            name: name.to_owned(),
            owner: owner.to_owned(),
            token: number(token)?,
            holder: holder.to_owned(),
            age: span(now - number(taken)?),
            ends_in: span(number(ends)? - now),
        })
    }
}
