//! Can this Redis be trusted? A restarted Redis may have lost its last writes, and would sell the same units again.
//!
//! Its script cache is the only thing that survives neither a restart nor a failover to a replica that never ran a
//! script, and every admission needs it anyway. So a Redis that does not know this installation's admission script
//! has not been checked yet: the books are compared first, and only then is the script loaded. The other scripts that
//! take a number wait for that comparison, so what is compared is the number that this Redis came back with.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::FromRedisValue;
use tokio::time::Instant;

use super::core::{Compared, Gate, NotCompared};
use super::error::GateError;
use super::required_settings::{run_id, server_info};
use super::wire::{Reader, word};
use crate::domain::{Millis, Number, SaleId};
use crate::link::{Fault, InstallationId, NO_SCRIPT_RETRIES, Script};

/// How long to wait before a failed comparison is repeated. Otherwise every attempt would wait for the same timeout.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How often Redis may be replaced during the comparison, and its clock set during a call.
const TRIES: u32 = 3;

impl Gate {
    /// Registers the comparison that runs before a restarted Redis admits anybody. It must freeze every sale that
    /// is behind what other stores know. Nothing is sold until it returns `Ok`. Only the first call counts.
    ///
    /// `compare` gets this gate as its argument; if it kept one, neither would ever be dropped. What it returns is
    /// dropped once every process can see that Redis was compared: a lease that keeps them from comparing, too.
    pub fn compare_restarts_with<G: Send + 'static, E: Display + 'static>(
        &self,
        compare: impl Fn(Gate) -> BoxFuture<'static, Result<G, E>> + Send + Sync + 'static,
    ) {
        let _ = self.restart.compare.set(Box::new(move |gate| {
            let compared = compare(gate);
            Box::pin(async move {
                match compared.await {
                    Ok(held) => Ok(Box::new(held) as Compared),
                    Err(error) => Err(NotCompared(error.to_string())),
                }
            })
        }));
    }

    /// The id of the installation that Redis carries; `None` if it has none. Checks nothing.
    pub async fn installation(&self) -> Result<Option<InstallationId>, GateError> {
        Ok(self.link.installation_found().await?)
    }

    /// Fails if Redis belongs to another installation. An empty one without an id gets this installation's.
    pub async fn check_installation(&self) -> Result<(), GateError> {
        Ok(self.link.recognise().await?)
    }

    /// Gives Redis this id, even if it holds sales. Fails if it has another one.
    pub async fn join_installation(&self, id: InstallationId) -> Result<(), GateError> {
        Ok(self.link.join_installation(id).await?)
    }

    /// A handle for reading, without the registered comparison.
    pub fn for_reading(&self) -> Self {
        Self { restart: Arc::default(), ..self.clone() }
    }

    /// Whether Redis knows this installation's admission script, that is, whether its books were compared since it
    /// started.
    pub async fn is_compared(&self) -> Result<bool, GateError> {
        Ok(self.link.knows_script(&self.scripts.admit).await?)
    }

    /// Compares the books if Redis has restarted. On `Ok` they were compared and Redis knows the admission script. An
    /// admission calls this when Redis lacks the script; call it earlier where possible, because it takes as long as
    /// reading the order log. May be repeated.
    pub async fn ensure_compared(&self) -> Result<(), GateError> {
        let mut failed = self.restart.failed.lock().await;
        if self.is_compared().await? {
            return Ok(());
        }
        if let Some((at, why)) = &*failed
            && at.elapsed() < RETRY_AFTER
        {
            return Err(GateError::Unavailable(why.clone()));
        }
        for _ in 0..TRIES {
            let compared = self.ping().await?;
            let _held = match self.restart.compare.get() {
                None => None,
                Some(compare) => Some(compare(self.clone()).await.map_err(|why| {
                    let why = format!("redis has restarted, and its books cannot be compared yet: {why}");
                    *failed = Some((Instant::now(), why.clone()));
                    GateError::Unavailable(why)
                })?),
            };
            // The server that was compared must be the one that gets the script: with it, every process takes a server for
            // compared. So both go over one connection.
            let connection = self.link.pin().await?;
            if run_id(&connection.ask::<String>(&server_info()).await?)? == compared {
                self.link.load_on(&connection, &self.scripts.admit).await?;
                *failed = None;
                tracing::info!("redis lacked the admission script: compared its books and loaded it");
                return Ok(());
            }
            // The old connection may lead to a former master, which is still there.
            self.link.replace_connection();
        }
        let why = "redis has restarted during each comparison of its books";
        *failed = Some((Instant::now(), why.into()));
        Err(GateError::Unavailable(why.into()))
    }

    /// Runs a script that takes a number of its sale, once the books of this Redis were compared. A number taken earlier
    /// would hide those that Redis has lost.
    pub(super) async fn run_numbered<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[String],
        args: &[String],
    ) -> Result<T, GateError> {
        let mut retries = 0;
        loop {
            match self.link.run_known(script, keys, args).await {
                Err(Fault::NoScript) if retries < NO_SCRIPT_RETRIES => {
                    retries += 1;
                    self.ensure_compared().await?;
                    // Redis may have restarted in between, so it is asked again on the same connection.
                    let connection = self.link.pin().await?;
                    let ask = self.link.ask_for_script(&self.scripts.admit).await?;
                    if connection.ask::<Vec<bool>>(&ask).await? == [true] {
                        self.link.load_on(&connection, script).await?;
                    } else {
                        self.link.replace_connection();
                    }
                }
                done => return Ok(done?),
            }
        }
    }

    /// The same for a script that must do nothing after `until`: a call that is held up on its way may arrive long after
    /// its caller has given up. The script gets the time by Redis's clock as its last argument.
    pub(super) async fn run_numbered_until(
        &self,
        script: &Script,
        keys: &[String],
        mut args: Vec<String>,
        until: Instant,
    ) -> Result<redis::Value, GateError> {
        let others = args.len();
        for _ in 0..TRIES {
            if self.clock.earliest(until).is_none() {
                self.clock().await?;
            }
            args.truncate(others);
            args.push(self.clock.earliest(until).unwrap_or(Millis(0)).0.to_string());
            let reply = self.run_numbered(script, keys, &args).await;
            if matches!(reply, Err(GateError::Late(_))) {
                // Until then it may still run, even if its connection is gone.
                tokio::time::sleep_until(until).await;
            }
            let reply: redis::Value = reply?;
            if word(&reply).as_deref() != Some("late") {
                return Ok(reply);
            }
            if Instant::now() >= until {
                break;
            }
            // Redis's clock was set.
            self.clock().await?;
        }
        Err(GateError::Unavailable("the call reached redis too late, and changed nothing".into()))
    }

    /// Freezes the sale if its gate is behind `known`. Returns whether it is frozen for that reason; `false` also
    /// if the sale is not loaded. May be repeated.
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
