//! Reading one sale again and again, at the least cost to Redis: fronts that refuse buyers do it hundreds of times a
//! second.
//!
//! A reading counts only if the books of this Redis were compared since it started: until then it may have forgotten who
//! holds what. A transaction asks for that, for Redis's clock and for the number of orders in flight. For some time after
//! it, two plain commands on the same connection are enough: a Redis that restarts ends its connections, and a master
//! that was replaced refuses the first of the two. What counts is the number of commands: Redis needs longer to receive one
//! of these than to run it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::belief::refused_by_replicas;
use super::clock::ClockReading;
use super::core::Gate;
use super::describe::GateSale;
use super::error::GateError;
use crate::domain::{Millis, Number, SaleId};
use crate::link::Pinned;

/// How long a check and its reading of the clock are used.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// How long a connection is checked again. A host name may lead to another Redis by then, although nobody has demoted
/// this one.
const PIN_FOR: Duration = Duration::from_secs(10);

/// Reads one sale.
pub struct SaleReader {
    gate: Gate,
    sale: SaleId,
    last: Option<Last>,
}

/// One reading: the sale as it was between the call and its return, in a Redis that was compared since it started.
#[derive(Debug, Clone)]
pub struct SaleReading {
    /// The sale; the same allocation as in the last reading if nothing has changed that takes a number. Only its orders in
    /// flight, and the time at which it was read, may be those of an earlier reading.
    pub sale: Arc<GateSale>,
    /// Redis's clock.
    pub clock: ClockReading,
}

struct Last {
    reading: SaleReading,
    /// When Redis was asked whether its books were compared.
    checked: Instant,
    /// On which connection.
    connection: Pinned,
}

/// The state of a sale and its number.
type Fields = (Option<String>, Option<i64>, Option<i64>);

impl Gate {
    /// A reader of this sale.
    pub fn reader(&self, sale: &SaleId) -> SaleReader {
        SaleReader { gate: self.clone(), sale: sale.clone(), last: None }
    }

    async fn pinned(&self) -> Result<Pinned, GateError> {
        let mut shared = self.readers.lock().await;
        if let Some(connection) = shared.as_ref().filter(|connection| connection.age() < PIN_FOR) {
            return Ok(connection.clone());
        }
        let connection = self.link.pin().await?;
        Ok(shared.insert(connection).clone())
    }

    async fn ask<T: redis::FromRedisValue>(
        &self,
        connection: &Pinned,
        commands: &redis::Pipeline,
    ) -> Result<T, GateError> {
        let reply = connection.query(commands).await;
        if reply.is_err() {
            self.readers.lock().await.take_if(|shared| shared.is(connection));
        }
        Ok(reply?)
    }
}

impl SaleReader {
    /// Reads the sale. `None` if the gate does not know it or cannot be trusted with it now, or if it changed during the
    /// call. Costs the same however many items the sale has, unless it has changed since the last reading. Fails on a
    /// replica. May be repeated; after `None` or an error the next reading begins afresh.
    pub async fn read(&mut self) -> Result<Option<SaleReading>, GateError> {
        // Forgotten if anything below fails, or if the caller gives up.
        let last = self.last.take();
        self.last = self.read_after(last).await?;
        Ok(self.last.as_ref().map(|last| last.reading.clone()))
    }

    async fn read_after(&self, last: Option<Last>) -> Result<Option<Last>, GateError> {
        if let Some(last) = last {
            if last.checked.elapsed() < CHECK_EVERY {
                if self.look(&last).await? {
                    return Ok(Some(last));
                }
            } else if let Some(checked) = self.check(last.reading.sale).await? {
                return Ok(Some(checked));
            }
        }
        match self.gate.describe(&self.sale).await? {
            Some(sale) => self.check(Arc::new(sale)).await,
            None => Ok(None),
        }
    }

    /// Whether the sale is the same.
    async fn look(&self, last: &Last) -> Result<bool, GateError> {
        let keys = self.gate.keys(&self.sale);
        let mut commands = redis::pipe();
        // First, since this is no transaction: a replica that is promoted between the two would have answered from what it
        // knew before.
        commands.add_command(refused_by_replicas(&keys)).ignore();
        commands.cmd("HMGET").arg(keys.sale()).arg(&["state", "epoch", "seq"]);
        let (fields,): (Fields,) = self.gate.ask(&last.connection, &commands).await?;
        Ok(is_same(&fields, &last.reading.sale))
    }

    /// `None` if the sale has changed, or if Redis was not compared since it started.
    async fn check(&self, known: Arc<GateSale>) -> Result<Option<Last>, GateError> {
        let connection = self.gate.pinned().await?;
        let keys = self.gate.keys(&self.sale);
        let mut commands = redis::pipe();
        commands.atomic();
        commands.cmd("HMGET").arg(keys.sale()).arg(&["state", "epoch", "seq"]);
        commands.cmd("HLEN").arg(keys.outbox());
        commands.cmd("TIME");
        commands.add_command(self.gate.link.ask_for_script(&self.gate.scripts.admit).await?);
        commands.add_command(refused_by_replicas(&keys)).ignore();
        let checked = Instant::now();
        type Reply = (Fields, u64, (i64, i64), Vec<bool>);
        let (fields, waiting, (seconds, micros), compared): Reply =
            self.gate.ask(&connection, &commands).await?;
        if !is_same(&fields, &known) || compared != [true] {
            return Ok(None);
        }
        self.gate.observe_waiting(&self.sale, waiting);
        let clock = ClockReading::received_now(Millis(seconds * 1000 + micros / 1000), checked);
        let reading = SaleReading { sale: known, clock };
        Ok(Some(Last { reading, checked, connection }))
    }
}

/// Freezing a sale takes no number.
fn is_same((state, epoch, seq): &Fields, known: &GateSale) -> bool {
    let number = Number { epoch: epoch.unwrap_or_default(), seq: seq.unwrap_or_default() };
    number == known.number && state.as_deref().is_some_and(|state| state != "frozen")
}
