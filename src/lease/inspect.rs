//! For operators: who holds which lease, since when and for how long, and a forced release.

use std::time::Duration;

use super::request::{check_name, check_scope};
use super::{Lease, LeaseError, Leases};

impl Leases {
    /// The scopes in which leases were taken in the last thirty days. If Redis loses its data, a scope that is in
    /// use reappears within the hour.
    pub async fn scopes(&self) -> Result<Vec<String>, LeaseError> {
        Ok(self.core.wire.list_scopes().await?)
    }

    /// The leases of a scope that may be held now, sorted by name: also those that have ended by Redis's clock so shortly
    /// ago that the clock may have stepped. Reads only this scope, page by page.
    pub async fn list(&self, scope: &str) -> Result<Vec<Lease>, LeaseError> {
        check_scope(scope)?;
        self.core.wire.list(scope, None).await
    }

    /// The lease on one name. `None` if the name is free.
    pub async fn show(&self, scope: &str, name: &str) -> Result<Option<Lease>, LeaseError> {
        check_scope(scope)?;
        check_name(name)?;
        Ok(self.core.wire.list(scope, Some(name)).await?.pop())
    }

    /// Takes a lease away from its holder, for an operator who knows that the holder is gone. `token` identifies the
    /// lease: if the name is free or has another holder by now, nothing changes and the answer is `false`. A live
    /// holder notices at its next renewal. Until then only its fencing token keeps it from writing.
    pub async fn force_release(&self, scope: &str, name: &str, token: i64) -> Result<bool, LeaseError> {
        let Some(lease) = self.show(scope, name).await?.filter(|lease| lease.token == token) else {
            return Ok(false);
        };
        let names = [lease.name];
        Ok(self.core.wire.release(scope, &lease.owner, Duration::ZERO, &names).await? == [true])
    }
}
