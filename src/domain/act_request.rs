//! Who asks for something to be done, and why.

use super::{IdempotencyKey, Invalid, check_text};

/// Goes into the history of an order or a sale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActRequest {
    /// Such as `buyer`, `operator ada`, `payment acme`, `deadline`.
    pub by: String,
    pub reason: Option<String>,
    /// What is asked for again with the same key is done once.
    pub key: Option<IdempotencyKey>,
}

impl ActRequest {
    pub fn by(who: impl Into<String>) -> Self {
        Self { by: who.into(), reason: None, key: None }
    }

    pub fn because(mut self, reason: Option<String>) -> Self {
        self.reason = reason;
        self
    }

    pub fn check(&self) -> Result<(), Invalid> {
        check_text("a name", &self.by, 100)?;
        match &self.reason {
            Some(reason) => check_text("a reason", reason, 200),
            None => Ok(()),
        }
    }
}
