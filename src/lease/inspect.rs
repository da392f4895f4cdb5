//! What people see of leases: who holds what, since when, for how long; and the operator's release.

use std::time::Duration;

use super::{LeaseError, Leases, check_name, check_scope};
use crate::link::Fault;

/// A lease as Redis has it, times by Redis's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub scope: String,
    pub name: String,
    /// 128 random bits, new with each acquisition; zeros where the holder is done, and the lease stays
    /// for its least holding time.
    pub owner: String,
    pub token: i64,
    /// The process: its number and machine.
    pub holder: String,
    pub age: Duration,
    /// Until it ends, unless it is renewed.
    pub ends_in: Duration,
}

impl Lease {
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

impl Leases {
    /// The scopes in which leases were taken in the last thirty days. Where Redis has lost its data, a
    /// scope that is in use is back within the hour.
    pub async fn scopes(&self) -> Result<Vec<String>, LeaseError> {
        Ok(self.core.wire.remember_scope("").await?)
    }

    /// The leases that are held in a scope now, by name. Reads this scope alone, in pages.
    pub async fn list(&self, scope: &str) -> Result<Vec<Lease>, LeaseError> {
        check_scope(scope)?;
        self.core.wire.list(scope, None).await
    }

    /// Who holds this name? `None` where it is free.
    pub async fn show(&self, scope: &str, name: &str) -> Result<Option<Lease>, LeaseError> {
        check_scope(scope)?;
        check_name(name)?;
        Ok(self.core.wire.list(scope, Some(name)).await?.pop())
    }

    /// Takes a lease from its holder, whoever that is: for an operator who knows that the holder is
    /// gone. `token` says which lease was meant: `false`, and nothing done, where the name is free or
    /// somebody else has it by now. The holder learns it at its next renewal; until then only its
    /// fencing token keeps it from writing.
    pub async fn force_release(&self, scope: &str, name: &str, token: i64) -> Result<bool, LeaseError> {
        let Some(lease) = self.show(scope, name).await?.filter(|lease| lease.token == token) else {
            return Ok(false);
        };
        let names = [lease.name];
        Ok(self.core.wire.release(scope, &lease.owner, Duration::ZERO, &names).await? == [true])
    }
}
