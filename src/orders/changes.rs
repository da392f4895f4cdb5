//! Changes to one order on request: pay, cancel, refund.

use std::collections::BTreeSet;
use std::time::Duration;

use super::logged;
use crate::domain::{Act, ActRequest, Invalid, Order, OrderId, OrderStatus, SaleId, Ticket, UserId};
use crate::gate::{Gate, GateError};
use crate::intake::{StatusUnknown, ensure_complete, ensure_current_in, ensure_none_is_held};
use crate::lease::{COMMIT_MARGIN, Guard, LeaseError, LeaseOptions, Leases, Taken};
use crate::queue::OrderLog;
use crate::settlement::{SettlementError, give_back};
use crate::store::{Change, Changed, Claim, OrderEvent, OrderRow, Return, Store, StoreError};

/// How long a change may wait for the user's lease, and how long that lease lasts.
const LEASE: Duration = Duration::from_secs(5);

fn lease_options() -> LeaseOptions {
    LeaseOptions::lasting(LEASE).max_hold(LEASE * 3)
}

/// Attempts of a change that keeps losing to concurrent ones.
pub(super) const TRIES: u32 = 5;

/// Why a change to an order did not happen, or may not have happened.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// Gate and database can both be believed, and neither has this order in this sale.
    #[error("there is no order {0} in this sale")]
    NotFound(OrderId),
    /// Nothing has changed: the order could not be read, or neither has it and one of them may have lost it.
    #[error(transparent)]
    Unknown(#[from] StatusUnknown),
    /// Nothing has changed: the order's state does not allow the act.
    #[error("an order that is {from} cannot be {}", .act.leads_to())]
    NotAllowed {
        /// The order's present state.
        from: OrderStatus,
        /// The act that was requested.
        act: Act,
    },
    /// Nothing has changed: the request breaks a rule of the domain.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Nothing has changed: another process acts for the user.
    #[error("another process acts for this user; try again")]
    Busy,
    /// Redis failed, before the change or after it: repeat it.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// Redis failed before the change.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The change may be committed: repeat it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An order to act on. With an `owner`, another user's order is not found.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) sale: &'a SaleId,
    pub(super) id: OrderId,
    pub(super) owner: Option<&'a UserId>,
}

/// An order where it is.
#[derive(Debug, Clone)]
pub enum Shown {
    /// In the gate only: it waits for a worker.
    InFlight(Order),
    /// Its row, and what has happened since, oldest first.
    Recorded(Box<OrderRow>, Vec<OrderEvent>),
}

/// Reads orders and changes them on request. Cheap to clone.
#[derive(Clone)]
pub struct Orders {
    gate: Gate,
    store: Store,
    leases: Leases,
    log: Option<OrderLog>,
}

impl Orders {
    /// Does not connect yet. Only the log writer tells the order log of changes, after they were answered.
    pub fn new(gate: Gate, store: Store, leases: Leases) -> Self {
        Self { gate, store, leases, log: None }
    }

    /// The same on another handle of the database.
    #[must_use]
    pub fn on(&self, store: Store) -> Self {
        Self { store, ..self.clone() }
    }

    /// The order log gets each change before it is answered.
    #[must_use]
    pub fn logged_to(self, log: OrderLog) -> Self {
        Self { log: Some(log), ..self }
    }

    /// The order where it is now. [`OrderError::NotFound`] only if it cannot have been lost.
    pub async fn show(&self, sale: &SaleId, id: OrderId) -> Result<Shown, OrderError> {
        let read = async {
            // The gate first: an order leaves it only after its row is committed.
            let ticket = self.gate.ticket(sale, id).await;
            if let Some(row) = self.row(sale, id).await? {
                let events = self.history(id).await?;
                // After both: what was read is then no older than what the gate has witnessed.
                ensure_current_in(&self.gate, &self.store, sale).await?;
                return Ok(Shown::Recorded(Box::new(row), events));
            }
            match ticket {
                Ok(Some(ticket)) => Ok(Shown::InFlight(ticket.order)),
                ticket => Err(self.missing(Target { sale, id, owner: None }, ticket).await),
            }
        };
        read.await.map_err(unread)
    }

    /// What has happened to the order since its row was written, oldest first.
    pub async fn history(&self, id: OrderId) -> Result<Vec<OrderEvent>, StoreError> {
        self.store.history(id).await
    }

    /// Applies an operator's or a payment's act under the user's lease and fencing token. On return the change is
    /// committed, and no later reading shows an earlier state. With [`Orders::logged_to`], the order log has it as well,
    /// unless the broker is away or does not confirm it in time: then a database that loses its last commits may undo it.
    /// If it frees units, the gate has them, or maintenance returns them later. Repeats are idempotent: an order on which
    /// the act was already done is returned unchanged.
    pub async fn act(
        &self,
        sale: &SaleId,
        id: OrderId,
        act: Act,
        request: &ActRequest,
    ) -> Result<OrderRow, OrderError> {
        self.apply(Target { sale, id, owner: None }, act, request).await
    }

    /// Cancels an order for its buyer, with the contract of [`Orders::act`]. Another user's order is
    /// [`OrderError::NotFound`].
    pub async fn cancel_own(
        &self,
        sale: &SaleId,
        id: OrderId,
        owner: &UserId,
        request: &ActRequest,
    ) -> Result<OrderRow, OrderError> {
        self.apply(Target { sale, id, owner: Some(owner) }, Act::Cancel, request).await
    }

    async fn apply(
        &self,
        target: Target<'_>,
        act: Act,
        request: &ActRequest,
    ) -> Result<OrderRow, OrderError> {
        request.check()?;
        for _ in 0..TRIES {
            let order = self.find(target).await?;
            if target.owner.is_some_and(|owner| *owner != order.user) {
                return Err(OrderError::NotFound(target.id));
            }
            if let Some(row) = self.try_act(&order, act, request).await? {
                return Ok(row);
            }
        }
        Err(OrderError::Busy)
    }

    /// `None` if a concurrent change came first and the caller must retry.
    async fn try_act(
        &self,
        order: &Order,
        act: Act,
        request: &ActRequest,
    ) -> Result<Option<OrderRow>, OrderError> {
        let guard = self.lease(&order.sale, &order.user).await?;
        let (id, fence) = (order.id, guard.token());
        let may_commit = || guard.is_valid_for(COMMIT_MARGIN);
        let change = Change { id, act, asked: request.clone(), fence };
        let line = self.store.line().await?;
        let changed = self.store.change(std::slice::from_ref(&change), &may_commit).await?.pop();
        let changed = changed.unwrap_or(Changed::NoRow);
        if !matches!(changed, Changed::Now(_)) {
            // A commit would have been compared; what was only read has not been.
            ensure_current_in(&self.gate, &self.store, &order.sale).await?;
        }
        let (row, now) = match changed {
            Changed::Now(row) => (row, true),
            Changed::Already(row) => (row, false),
            Changed::Refused(row) => return Err(OrderError::NotAllowed { from: row.status, act }),
            Changed::Stale => return Ok(None),
            Changed::NoRow if act == Act::Cancel => {
                let claim = Claim { order: order.clone(), fence };
                let row = self.store.cancel_unrecorded(&claim, request, &may_commit).await?;
                let Some(row) = row else { return Ok(None) };
                (row, true)
            }
            Changed::NoRow => return Err(OrderError::NotAllowed { from: OrderStatus::Accepted, act }),
        };
        // Only after COMMIT, so that the next holder of the user's lease sees the new state.
        let _ = guard.release().await;
        if now {
            metrics::counter!("doorbuster_orders_changed_total", "act" => act.as_str()).increment(1);
            tracing::info!(order_id = %id, sale = %order.sale, act = act.as_str(), by = request.by, "order changed");
        }
        let (given_back, logged) = tokio::join!(self.give_back(&row, line), self.log_change(&row));
        if let Err(error) = &given_back {
            tracing::warn!(order_id = %id, %error, "the units of an ended order are not back in the gate yet");
        }
        // An entry that is given back is gone; any other still says `accepted`.
        if given_back.is_err() || row.status == OrderStatus::Paid {
            self.read_from_row(&order.sale, &[id]).await?;
        }
        logged?;
        Ok(Some(row))
    }

    /// Has every later reading of these orders go to their rows. Call it before a change is answered: the entry of an order
    /// that is not settled yet says `accepted`.
    ///
    /// On `Ok` the gate has also witnessed the change: if the database loses it, a process that starts later notices, though
    /// this one may be gone by then.
    pub(super) async fn read_from_row(&self, sale: &SaleId, ids: &[OrderId]) -> Result<(), GateError> {
        let (marked, witnessed) = tokio::join!(self.gate.mark_changed(sale, ids), self.witness(sale));
        marked.and(witnessed)
    }

    /// Tells the gate how far the database has come with a sale.
    pub(super) async fn witness(&self, sale: &SaleId) -> Result<(), GateError> {
        match self.gate.witness(sale, self.store.highest_place(sale)).await {
            // Of a sale that Redis has lost, the log is the witness.
            Ok(_) | Err(GateError::NotLoaded) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the units of an ended order to the gate. A failed order returns none, because its unit may never
    /// have existed. `line` is that of the database before the row was read or changed.
    pub(super) async fn give_back(&self, row: &OrderRow, line: i64) -> Result<(), SettlementError> {
        let returning = [OrderStatus::Cancelled, OrderStatus::Expired, OrderStatus::Refunded];
        if !returning.contains(&row.status) {
            return Ok(());
        }
        let Order { id, sale, user, .. } = row.order.clone();
        let owed = Return { id, sale, user, line };
        give_back(&self.gate, &self.store, &[owed]).await
    }

    async fn log_change(&self, row: &OrderRow) -> Result<(), StoreError> {
        match &self.log {
            Some(log) => logged::log_change(&self.store, log, row).await,
            None => Ok(()),
        }
    }

    /// Takes the lease to act for a user, and waits while another process holds it.
    pub(super) async fn lease(&self, sale: &SaleId, user: &UserId) -> Result<Guard, OrderError> {
        let guard = self.leases.acquire(sale.as_str(), [user.as_str()], lease_options(), LEASE).await?;
        guard.ok_or(OrderError::Busy)
    }

    /// Takes the leases of those users that are free. Says for each whether it was taken.
    pub(super) async fn leases_that_are_free(
        &self,
        sale: &SaleId,
        users: &BTreeSet<&UserId>,
    ) -> Result<Taken, LeaseError> {
        let names = users.iter().map(|user| user.as_str());
        self.leases.take(sale.as_str(), names, lease_options()).await
    }

    /// The order from the gate while it is in flight, else from its row.
    pub(super) async fn find(&self, target: Target<'_>) -> Result<Order, OrderError> {
        let ticket = self.gate.ticket(target.sale, target.id).await;
        if let Ok(Some(ticket)) = ticket {
            return Ok(ticket.order);
        }
        match self.row(target.sale, target.id).await {
            Ok(Some(row)) => Ok(row.order),
            Ok(None) => Err(unread(self.missing(target, ticket).await)),
            Err(error) => Err(unread(error.into())),
        }
    }

    /// The order's row, from a database that is not known to be behind.
    async fn row(&self, sale: &SaleId, id: OrderId) -> Result<Option<OrderRow>, StoreError> {
        let row = self.store.order(id).await?;
        self.store.ensure_current().await?;
        Ok(row.filter(|row| row.order.sale == *sale))
    }

    /// Why the order is in neither store. `ticket` is the answer of the gate.
    async fn missing(&self, target: Target<'_>, ticket: Result<Option<Ticket>, GateError>) -> OrderError {
        let Target { sale, id, owner } = target;
        let not_found = async {
            ticket?;
            if let Some(owner) = owner {
                let held = self.gate.orders_of(sale, owner).await?;
                ensure_none_is_held(&held, |held| held != id)?;
            }
            ensure_complete(&self.gate, &self.store, sale).await?;
            Ok(OrderError::NotFound(id))
        };
        not_found.await.unwrap_or_else(|error: OrderError| error)
    }
}

/// The error of a reading. Nothing has changed, so a server that did not answer leaves only the order's status unknown.
fn unread(error: OrderError) -> OrderError {
    match error {
        OrderError::Gate(error) if !matches!(error, GateError::Broken(_)) => {
            OrderError::Unknown(error.into())
        }
        // An operator hears how to bring it up to date.
        OrderError::Store(error) if !matches!(error, StoreError::Broken(_) | StoreError::Behind(_)) => {
            OrderError::Unknown(error.into())
        }
        error => error,
    }
}
