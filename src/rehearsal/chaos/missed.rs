//! Why a fault could not be inflicted.

use crate::rehearsal::servers::ServerError;

/// A fault had no effect. The nemesis records that and continues.
#[derive(Debug, thiserror::Error)]
pub(super) enum Missed {
    #[error("it is down")]
    Down,
    #[error("{0} did not answer")]
    TimedOut(&'static str),
    #[error("redis refused {0}")]
    Refused(String),
    /// The documented recovery failed.
    #[error("the operator could not do `{command}`: {printed}")]
    Operator { command: String, printed: String },
    #[error("an order has waited for its row for {0:?}, since a fault before")]
    NotRecovered(std::time::Duration),
    #[error("the order log has lacked a change of the database for {0:?}")]
    NotLogged(std::time::Duration),
    #[error("{0} is not installed: run scripts/install-servers test")]
    NotInstalled(&'static str),
    #[error("the queue was empty")]
    QueueEmpty,
    #[error(transparent)]
    Signal(#[from] rustix::io::Errno),
    #[error(transparent)]
    System(#[from] std::io::Error),
    #[error(transparent)]
    Redis(#[from] redis::RedisError),
    #[error(transparent)]
    Broker(#[from] lapin::Error),
    #[error(transparent)]
    BrokerControl(#[from] ServerError),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

impl Missed {
    /// Whether the fault may have an effect a moment later: its victim is on its way back from an earlier one.
    pub(super) fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Down | Self::TimedOut(_) | Self::QueueEmpty | Self::Broker(_) | Self::Database(_)
        )
    }
}
