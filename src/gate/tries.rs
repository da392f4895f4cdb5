//! How often workers began to persist a message and came to no end: they were killed, or the message crashes them. Only
//! messages that were delivered before are counted, so a worker that nobody kills writes nothing here.

use super::core::Gate;
use super::error::GateError;
use super::keys;
use crate::domain::OrderId;

/// How long the counts are kept after the last one was written.
const KEPT_S: i64 = 24 * 60 * 60;

impl Gate {
    /// The tries of these messages that came to no end. A message is known by the id of its first order.
    pub async fn tries(&self, messages: &[OrderId]) -> Result<Vec<u32>, GateError> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let mut command = redis::cmd("HMGET");
        command.arg(keys::tries(&self.settings.prefix));
        for message in messages {
            command.arg(message.to_string());
        }
        let tries: Vec<Option<u32>> = self.link.query(&command).await?;
        Ok(tries.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// Counts a try of each message, until [`Gate::end_tries`]. If Redis loses the counts, a message that crashes its
    /// worker does so once more before it is suspected again.
    pub async fn begin_tries(&self, messages: &[OrderId]) -> Result<(), GateError> {
        if messages.is_empty() {
            return Ok(());
        }
        let key = keys::tries(&self.settings.prefix);
        let mut commands = redis::pipe();
        commands.atomic();
        for message in messages {
            commands.hincr(&key, message.to_string(), 1).ignore();
        }
        commands.expire(&key, KEPT_S).ignore();
        Ok(self.link.query_at_once(&commands).await?)
    }

    /// Ends the tries of these messages, each with the number of earlier tries that still count. May be repeated.
    pub async fn end_tries(&self, messages: &[(OrderId, u32)]) -> Result<(), GateError> {
        if messages.is_empty() {
            return Ok(());
        }
        let key = keys::tries(&self.settings.prefix);
        let mut commands = redis::pipe();
        commands.atomic();
        for (message, tries) in messages {
            match tries {
                0 => commands.hdel(&key, message.to_string()).ignore(),
                tries => commands.hset(&key, message.to_string(), *tries).ignore(),
            };
        }
        Ok(self.link.query_at_once(&commands).await?)
    }
}
