//! Mistakes that can be planted in the protocol. Each must be found, or the model proves nothing.

/// A planted mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mistake {
    /// The protocol as it is.
    None,
    /// Neither the gate nor the database looks at the stock.
    NoStock,
    /// Neither looks at what the user has.
    NoLimit,
    /// The admission script takes a unit and writes no outbox entry.
    AdmitWithoutOutbox,
    /// The outbox entry is deleted when the broker confirms, as in a textbook outbox.
    DeleteAtConfirm,
    /// The sweep publishes a copy without the order's id, so that the worker makes a second order of it.
    RepublishWithoutId,
    /// A worker settles before COMMIT.
    SettleBeforeCommit,
    /// A worker acknowledges before COMMIT.
    AckBeforeCommit,
    /// A worker releases the lease before COMMIT.
    ReleaseBeforeCommit,
    /// The database does not compare fencing tokens.
    NoFence,
    /// The unit goes back to the gate before the end is committed.
    ReturnBeforeCommit,
    /// The gate takes a unit back without looking whether it holds the order.
    ReturnTwice,
    /// A restarted Redis sells before its books were compared.
    NoComparison,
    /// A gate that is behind what its callers know does not freeze.
    NoFreeze,
    /// A rebuild reads the rows before the outbox and the log, and does not compare the books, which would notice it.
    RowsFirst,
    /// A rebuild does not read the order log.
    NoLog,
    /// Nobody compares the place of the database.
    NoWitness,
    /// A replay writes live orders before ended ones.
    LiveFirst,
    /// A payment is answered before it is in the order log.
    PaymentBeforeLog,
    /// A change is answered before old readings have expired.
    AnswerAtOnce,
    /// A reading refuses however old it is.
    OldReadings,
    /// A reader looks into the database first.
    RowThenGate,
    /// A restarted Redis is believed by readers although it is behind.
    BelieveOldEntries,
    /// A buyer who cancels is answered although the entry in the outbox still says `accepted`.
    AnswerUnmarked,
    /// A reader marks the entry of an order only if they had seen it before they read the row.
    MarkWhatWasSeen,
    /// The gate takes a unit back although the database has gone back since its order ended.
    OldReturns,
    /// Nobody compares the numbers in the rows with the gate's, once it sells.
    NoLook,
}
