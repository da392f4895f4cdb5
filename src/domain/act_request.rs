//! Who requests an act, why, and with which key.

use super::{IdempotencyKey, Invalid, check_text};

/// A request to do something to an order or a sale, as their history records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActRequest {
    /// Who requests it, such as `buyer`, `operator ada`, `payment acme`, `deadline`.
    pub by: String,
    /// Why, in the requester's words.
    pub reason: Option<String>,
    /// Requests with the same key take effect once.
    pub key: Option<IdempotencyKey>,
}

impl ActRequest {
    /// A request with neither reason nor key.
    pub fn by(who: impl Into<String>) -> Self {
        Self { by: who.into(), reason: None, key: None }
    }

    /// The same of the operator with this name.
    pub fn by_operator(name: &str) -> Self {
        Self::by(format!("operator {name}"))
    }

    /// The same request with a reason.
    pub fn because(mut self, reason: Option<String>) -> Self {
        self.reason = reason;
        self
    }

    /// The requester has 1 to 100 characters and the reason 1 to 200, none of them a control character.
    pub fn check(&self) -> Result<(), Invalid> {
        check_text("a name", &self.by, 100)?;
        match &self.reason {
            Some(reason) => check_text("a reason", reason, 200),
            None => Ok(()),
        }
    }
}
