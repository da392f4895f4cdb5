//! The target stack of a drill, and the tokens that it accepts.

use std::net::SocketAddr;
use std::time::Duration;

use aws_lc_rs::hmac;
use tokio::time::Instant;

use super::error::DrillError;
use super::followers::Followers;
use super::http::Connection;
use crate::domain::UserId;
use crate::front::{Role, Signer};
use crate::rehearsal::judge::History;

/// The target stack of a drill.
pub struct Target {
    /// The listener for buyers.
    pub buyers: SocketAddr,
    /// The operations listener.
    pub operations: SocketAddr,
    /// Signs tokens for buyers and the operator with the stack's secret.
    pub tokens: Signer,
    /// Signs the callbacks of the payment provider `drill`; empty if the stack does not know it.
    pub payment_secret: String,
    /// Records every call of a buyer and of the payment provider.
    pub history: History,
    /// Buyers who follow their orders by events, if calls are recorded.
    pub followers: Followers,
}

/// How long a token is valid, in seconds: longer than the longest drill.
const TOKENS_LAST: u32 = 6 * 3600;

impl Target {
    /// The nth buyer, with the value of their `authorization` header.
    pub(super) fn buyer(&self, nth: u32) -> Option<(UserId, String)> {
        let user = UserId::parse(format!("buyer-{nth:08}")).ok()?;
        let bearer = self.bearer(&user);
        Some((user, bearer))
    }

    /// The value of a buyer's `authorization` header.
    pub(super) fn bearer(&self, user: &UserId) -> String {
        format!("Bearer {}", self.tokens.mint(user, None, TOKENS_LAST))
    }

    /// An administrator's token.
    pub(super) fn admin_token(&self) -> Result<String, DrillError> {
        let operator = UserId::parse("drill")
            .map_err(|error| DrillError::Call { call: "making a token".into(), why: error.to_string() })?;
        Ok(self.tokens.mint(&operator, Some(Role::Admin), TOKENS_LAST))
    }
}

/// The secret of the payment provider `drill`. It is derived from a stack's secret without revealing it.
pub fn payment_secret(secret: &str) -> String {
    use base64::Engine as _;
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, b"the drill's payment provider");
    format!("whsec_{}", base64::engine::general_purpose::STANDARD.encode(tag))
}

/// Returns when a front reports ready; fails with [`DrillError::NotReady`] after `within`.
pub async fn until_ready(target: &Target, within: Duration) -> Result<(), DrillError> {
    let until = Instant::now() + within;
    loop {
        let answer = match Connection::new(target.operations).get("/readyz").await {
            Ok((_, body)) => String::from_utf8_lossy(&body).into_owned(),
            Err(error) => error.to_string(),
        };
        let ready =
            serde_json::from_str::<serde_json::Value>(&answer).is_ok_and(|body| body["status"] == "ready");
        if ready {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(DrillError::NotReady(answer));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
