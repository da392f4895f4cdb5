//! One message to be published, and the answers that its caller can get.

use lapin::types::FieldTable;
use tokio::sync::oneshot;

/// Why a message is not known to be published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// Nothing was sent: the broker is known to be unavailable or blocked, or too much is waiting already.
    #[error("the broker is unavailable")]
    Away,
    /// It was sent and no confirm came in time: the broker may have it.
    #[error("the broker did not confirm in time")]
    Unconfirmed,
    /// The broker refused it: the broker does not have it.
    #[error("the broker refused the message: {0}")]
    Refused(String),
}

pub(super) type Answer = oneshot::Sender<Result<(), PublishError>>;

pub(super) struct Job {
    pub(super) exchange: Exchange,
    pub(super) id: String,
    pub(super) payload: Vec<u8>,
    pub(super) headers: FieldTable,
    pub(super) answer: Answer,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Exchange {
    Orders,
    Dead,
    Log,
}

impl Job {
    /// Answers that nothing was sent.
    pub(super) fn refuse(self) {
        let _ = self.answer.send(Err(PublishError::Away));
    }
}
