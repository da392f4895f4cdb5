//! Which installation the servers belong to. Redis, the broker and the database each carry the same id, so that a
//! process with production's Redis and another database notices before it changes anything.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use uuid::Uuid;

/// The servers, as errors name them.
pub const REDIS: &str = "redis";
/// See [`REDIS`].
pub const BROKER: &str = "the broker";
/// See [`REDIS`].
pub const DATABASE: &str = "the database";

/// The id of an installation, made once by `doorbuster migrate` or `doorbuster dev`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstallationId(Uuid);

impl InstallationId {
    /// An id that no other installation has.
    pub fn generate() -> Self {
        Self(Uuid::new_v4())
    }

    /// The same without dashes; it parses, too.
    pub fn simple(self) -> String {
        self.0.simple().to_string()
    }
}

impl fmt::Display for InstallationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for InstallationId {
    type Err = NoInstallationId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_| NoInstallationId(text.to_owned()))
    }
}

/// A text that is not the id of an installation.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0:?} is not the id of an installation, such as 8b1f3c52-7f0e-4c57-9c54-1f4d5b0a9e11")]
pub struct NoInstallationId(String);

/// A server of another installation. Nothing was changed there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{server} belongs to installation {theirs}, but {other} to installation {ours}: correct redis.url, queue.url or \
     database.url, or choose another prefix; nothing was changed there"
)]
pub struct OtherInstallation {
    /// The server that was met last.
    pub server: &'static str,
    /// What it carries.
    pub theirs: InstallationId,
    /// The server that was met first.
    pub other: &'static str,
    /// What that one carries.
    pub ours: InstallationId,
}

/// Why no server can be used while no id is known.
pub const UNKNOWN_INSTALLATION: &str = "the id of this installation is not known: neither redis nor the database has \
                                        shown one; start them, and run `doorbuster migrate` if it never ran";

/// The id that the servers of this process carry: the id of the server that was met first. Cheap to clone; all clones
/// share it.
#[derive(Debug, Clone, Default)]
pub struct Installation(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    checked: AtomicBool,
    met: watch::Sender<Option<(&'static str, InstallationId)>>,
}

impl Installation {
    /// From now on servers are checked, and none is used before an id is known.
    pub fn check(&self) {
        self.0.checked.store(true, Ordering::SeqCst);
    }

    /// Whether servers are checked.
    pub fn is_checked(&self) -> bool {
        self.0.checked.load(Ordering::SeqCst)
    }

    /// The id, once a server has shown one.
    pub fn id(&self) -> Option<InstallationId> {
        self.0.met.borrow().map(|(_, id)| id)
    }

    /// The same, after waiting for it.
    pub async fn id_within(&self, limit: Duration) -> Option<InstallationId> {
        let mut met = self.0.met.subscribe();
        let _ = tokio::time::timeout(limit, met.wait_for(Option::is_some)).await;
        self.id()
    }

    /// Compares the id that `server` carries with the id of the servers before it.
    pub fn meet(&self, server: &'static str, theirs: InstallationId) -> Result<(), OtherInstallation> {
        let mut first = None;
        self.0.met.send_if_modified(|met| {
            first = *met;
            met.is_none().then(|| *met = Some((server, theirs))).is_some()
        });
        match first {
            Some((other, ours)) if ours != theirs => Err(OtherInstallation { server, theirs, other, ours }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_server_names_the_installation() {
        let installation = Installation::default();
        let (ours, theirs) = (InstallationId::generate(), InstallationId::generate());
        assert_eq!(installation.id_within(Duration::from_millis(1)).await, None);
        assert_eq!(installation.meet("redis", ours), Ok(()));
        assert_eq!(installation.clone().meet("the database", ours), Ok(()));
        let error = installation.meet("the broker", theirs).unwrap_err();
        assert!(error.to_string().contains(&ours.to_string()), "{error}");
        assert!(error.to_string().contains(&theirs.to_string()), "{error}");
        assert_eq!(installation.id_within(Duration::ZERO).await, Some(ours));
        assert_eq!(ours.to_string().parse::<InstallationId>().unwrap(), ours);
    }
}
