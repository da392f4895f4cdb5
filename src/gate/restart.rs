//! May this Redis be believed? A Redis that was started anew may have come back without its last
//! writes, and would sell once more what they sold.
//!
//! The script cache is the one thing in Redis that does not survive a restart, nor a failover to a
//! replica that never ran scripts itself, and every admission meets it for nothing: where Redis does
//! not know this installation's admission script, nobody has looked yet. So the books are compared
//! first and the script is loaded after.

use std::sync::OnceLock;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::wire::{Reader, word};
use super::{Gate, GateError};
use crate::domain::{Number, SaleId};

/// Compares each sale with what is known of it elsewhere, and freezes what is behind.
type Compare = dyn Fn() -> BoxFuture<'static, Result<(), NotCompared>> + Send + Sync;

/// The comparison could not be made, for this reason: nothing is sold until it can.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotCompared(String);

/// How long a failed look is not repeated: else every attempt would wait for the same silence.
const PAUSE: Duration = Duration::from_secs(1);

/// Times that a Redis may be replaced while it is being compared.
const TRIES: u32 = 3;

#[derive(Default)]
pub(super) struct RestartCheck {
    compare: OnceLock<Box<Compare>>,
    failed: Mutex<Option<(Instant, String)>>,
}

impl Gate {
    /// From now on `compare` runs before a restarted Redis admits anybody. Until it returns `Ok`
    /// nothing is sold. Only the first call counts.
    pub fn compare_restarts_with<E: std::fmt::Display + 'static>(
        &self,
        compare: impl Fn() -> BoxFuture<'static, Result<(), E>> + Send + Sync + 'static,
    ) {
        let _ = self.restart.compare.set(Box::new(move || {
            let compared = compare();
            Box::pin(async move { compared.await.map_err(|error| NotCompared(error.to_string())) })
        }));
    }

    /// On `Ok` Redis knows the admission script, and the books were compared before. ActRequest for by each
    /// admission that meets a Redis without the script; and best before the first comes, since it takes
    /// as long as the order log is to be read.
    pub async fn ensure_compared(&self) -> Result<(), GateError> {
        let mut failed = self.restart.failed.lock().await;
        if self.link.knows_script(&self.scripts.admit).await? {
            return Ok(());
        }
        if let Some((at, why)) = &*failed
            && at.elapsed() < PAUSE
        {
            return Err(GateError::Unavailable(why.clone()));
        }
        for _ in 0..TRIES {
            let compared = self.ping().await?;
            if let Some(compare) = self.restart.compare.get()
                && let Err(why) = compare().await
            {
                let why = format!("redis was started anew, and its books cannot be compared yet: {why}");
                *failed = Some((Instant::now(), why.clone()));
                return Err(GateError::Unavailable(why));
            }
            self.link.load(&self.scripts.admit).await?;
            // What was compared must be what was loaded into.
            if self.ping().await? == compared {
                *failed = None;
                tracing::info!(
                    "redis knew nothing of the admission script: compared its books and loaded it"
                );
                return Ok(());
            }
        }
        Err(GateError::Unavailable("redis was started anew again and again".into()))
    }

    /// Freezes the sale if its gate is behind `known`; `true` where it is frozen for that.
    pub async fn freeze_if_behind(&self, sale: &SaleId, known: Number) -> Result<bool, GateError> {
        let args = [known.epoch.to_string(), known.seq.to_string()];
        let reply: redis::Value =
            self.link.run(&self.scripts.freeze, &[self.keys(sale).sale()], &args).await?;
        if word(&reply).as_deref() == Some("not_loaded") {
            return Ok(false);
        }
        Ok(Reader::of(&reply)?.text()? == "frozen")
    }
}
