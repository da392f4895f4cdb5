//! Everything that can happen, one atomic step each. A script, a transaction or a message is one step; between two
//! steps of a process, every other process may run, and the process may die.

use crate::state::Kind;

/// One step. Orders, users and workers are numbered from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the fields are numbers of what they are called")]
pub enum Action {
    /// `lua/gate/admit.lua`: a buyer clicks with a key. Windows, rates, items and quantities are left out.
    Click { user: u8, key: u8 },
    /// `src/intake/relay.rs`: a front publishes an order to the queue and the order log, under one confirm.
    Publish { order: u8 },
    /// `lua/gate/mark.lua`: the confirm arrives, and the entry is marked.
    Confirm { order: u8 },
    /// The confirm is lost, or the mark is.
    LoseConfirm { order: u8 },
    /// `src/maintenance/sweep.rs`: an entry is looked at: settled if it has a row, else published again if it may be lost.
    Sweep { order: u8 },
    /// RabbitMQ delivers a message to a worker. Any message may come first.
    Deliver { worker: u8, order: u8 },
    /// `lua/lease/take.lua`, by a worker.
    TakeLease { worker: u8 },
    /// `Guard::is_valid_for`, just before COMMIT.
    CheckLease { worker: u8 },
    /// `src/store/orders/record.rs`: the worker's transaction, with all unique keys and counters.
    Commit { worker: u8 },
    /// `src/worker/attempt.rs`: acknowledge, then release the lease.
    Acknowledge { worker: u8 },
    /// `lua/gate/settle.lua`, by a worker.
    Settle { worker: u8 },
    /// `src/orders/changes.rs`, `src/orders/expiry.rs`, `src/settlement`: a change begins, under its user's lease.
    Begin { kind: Kind, order: u8 },
    /// The change finds its lease valid.
    CheckAct,
    /// `src/store/orders/changes.rs`: its transaction.
    CommitAct,
    /// What follows COMMIT: the payment goes into the order log and is answered; the unit goes back to the gate.
    FinishAct,
    /// The gate cannot be reached for what follows COMMIT.
    LoseReturn,
    /// `src/store/orders/returns.rs`: the row no longer owes the unit, and has the number of the return.
    RecordReturn,
    /// `src/maintenance/log_writer.rs`: a changed row is appended to the order log as it stands.
    WriteLog { order: u8 },
    /// `src/maintenance/place_check.rs`: gate and fronts exchange the places that they know.
    ComparePlaces,
    /// `src/maintenance/restart_check.rs`: the numbers in the rows are read.
    Compare,
    /// The numbers in the order log are read; a gate that is behind is frozen (`lua/gate/freeze.lua`).
    FinishCompare,
    /// `src/recovery/rebuild/freeze.rs`: the sale is frozen in a new epoch (`lua/gate/rebuild_begin.lua`).
    BeginRebuild,
    /// `src/recovery/rebuild`: the next step of a rebuild.
    Rebuild,
    /// `src/recovery/replay`: the log is read to its end.
    BeginReplay,
    /// `src/store/recovery/restore_orders.rs`: one order is written as it ended.
    Restore { order: u8 },
    /// `src/store/places/line.rs`: everything is restored, and a new line begins.
    BeginLine,
    /// `src/control/changes.rs`: an operator raises the stock in the database.
    Restock,
    /// `lua/gate/restock.lua`.
    ApplyRestock,
    /// The operator's act is answered.
    AnswerRestock,
    /// The buyer hears that the order is accepted.
    Answer { order: u8 },
    /// A tick of the clock: half of the time for which a reading may refuse.
    Tick,
    /// `src/intake/refusal_cache.rs`: a front asks the gate for a reading.
    BeginReading,
    /// `lua/gate/describe.lua`: the gate answers.
    Read,
    /// A buyer is refused by the reading.
    Refuse { user: u8 },
    /// `src/intake/status.rs`: a buyer asks for an order, and the gate is read.
    ReadGate { order: u8 },
    /// The row is read, and the buyer gets an answer.
    ReadRow,
    /// A lease ends although its holder still acts.
    EndLease { user: u8 },
    /// The lease of a dead holder ends.
    FreeLease { user: u8 },
    /// A worker dies; what it has not acknowledged is delivered again.
    CrashWorker { worker: u8 },
    /// All fronts die, with what they know.
    CrashFront,
    /// A rebuild or a replay dies.
    CrashRecovery,
    /// A message is delivered once more.
    Duplicate { order: u8 },
    /// Somebody purges the queue.
    Purge,
    /// Redis writes a file, or a replica is at this point.
    SaveGate,
    /// Redis goes back to it, as after a restart.
    LoseGate,
    /// Redis is emptied.
    EmptyGate,
    /// The database is backed up, or a replica is at this point.
    SaveDb,
    /// The database goes back to it.
    LoseDb,
}

impl Action {
    /// Whether the system does it by itself, sooner or later. The rest is up to people and to chance.
    pub fn is_due(self) -> bool {
        !matches!(
            self,
            Self::Click { .. }
                | Self::LoseConfirm { .. }
                | Self::Begin { kind: Kind::Expire | Kind::Cancel, .. }
                | Self::LoseReturn
                | Self::Restock
                | Self::BeginReading
                | Self::Read
                | Self::Tick
                | Self::Refuse { .. }
                | Self::ReadGate { .. }
                | Self::EndLease { .. }
                | Self::CrashWorker { .. }
                | Self::CrashFront
                | Self::CrashRecovery
                | Self::Duplicate { .. }
                | Self::Purge
                | Self::SaveGate
                | Self::LoseGate
                | Self::EmptyGate
                | Self::SaveDb
                | Self::LoseDb
        )
    }
}
