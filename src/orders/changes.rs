//! Changes of one order that somebody asks for: paying, cancelling, refunding.

use std::time::Duration;

use crate::domain::{Act, ActRequest, Invalid, Order, OrderId, OrderStatus, SaleId, UserId};
use crate::gate::{Gate, GateError};
use crate::lease::{COMMIT_MARGIN, Guard, LeaseError, LeaseOptions, Leases};
use crate::settlement::SettlementError;
use crate::settlement::give_back;
use crate::store::{Change, Changed, Claim, OrderEvent, OrderRow, Return, Store, StoreError};

/// How long a change may wait for whoever else acts for the user, and hold him then.
const WAIT: Duration = Duration::from_secs(5);

/// Times that a change is begun anew because another was quicker.
const TRIES: u32 = 5;

#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    #[error("there is no order {0} in this sale")]
    NotFound(OrderId),
    /// Nothing was changed.
    #[error("an order that is {from} cannot be {}", .act.leads_to())]
    NotAllowed { from: OrderStatus, act: Act },
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Nothing was changed; somebody else acts for the user.
    #[error("somebody else acts for this user; try again")]
    Busy,
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The change may be committed: making it again tells.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An order to act upon. With an `owner`, another user's order is not found.
struct Target<'a> {
    sale: &'a SaleId,
    id: OrderId,
    owner: Option<&'a UserId>,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Orders {
    gate: Gate,
    store: Store,
    leases: Leases,
}

impl Orders {
    pub fn new(gate: Gate, store: Store, leases: Leases) -> Self {
        Self { gate, store, leases }
    }

    /// The order as it is in the queue, while it has no row.
    pub async fn in_flight(&self, sale: &SaleId, id: OrderId) -> Result<Option<Order>, OrderError> {
        Ok(self.gate.ticket(sale, id).await?.map(|ticket| ticket.order))
    }

    /// The order's row with its history. Orders that are still in flight have none.
    pub async fn show(&self, sale: &SaleId, id: OrderId) -> Result<(OrderRow, Vec<OrderEvent>), OrderError> {
        let row = self.store.order(id).await?.filter(|row| row.order.sale == *sale);
        let row = row.ok_or(OrderError::NotFound(id))?;
        let events = self.store.history(id).await?;
        Ok((row, events))
    }

    /// Applies an operator's or a payment's act under the user's lease and fencing token. On return the
    /// change is committed. If it frees units, the gate has them, or maintenance returns them later.
    /// Repeats are idempotent: an order that already had the act is returned as it is.
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
            let order = self.find(target.sale, target.id).await?;
            if target.owner.is_some_and(|owner| *owner != order.user) {
                return Err(OrderError::NotFound(target.id));
            }
            if let Some(row) = self.try_act(&order, act, request).await? {
                return Ok(row);
            }
        }
        Err(OrderError::Busy)
    }

    /// `None` where another was quicker and it has to be begun anew.
    async fn try_act(
        &self,
        order: &Order,
        act: Act,
        asked: &ActRequest,
    ) -> Result<Option<OrderRow>, OrderError> {
        let guard = self.lease(&order.sale, &order.user).await?;
        let (id, fence) = (order.id, guard.token());
        let may_commit = || guard.is_valid_for(COMMIT_MARGIN);
        let change = Change { id, act, asked: asked.clone(), fence };
        let changed = self.store.change(std::slice::from_ref(&change), &may_commit).await?.pop();
        let (row, now) = match changed.unwrap_or(Changed::NoRow) {
            Changed::Now(row) => (row, true),
            Changed::Already(row) => (row, false),
            Changed::Refused(row) => return Err(OrderError::NotAllowed { from: row.status, act }),
            Changed::Stale => return Ok(None),
            Changed::NoRow if act == Act::Cancel => {
                let claim = Claim { order: order.clone(), fence };
                let row = self.store.cancel_unrecorded(&claim, asked, &may_commit).await?;
                let Some(row) = row else { return Ok(None) };
                (row, true)
            }
            Changed::NoRow => return Err(OrderError::NotAllowed { from: OrderStatus::Accepted, act }),
        };
        // After COMMIT, and not before: the next who acts for the user must meet the new state.
        let _ = guard.release().await;
        if now {
            metrics::counter!("orders_changed_total", "act" => act.as_str()).increment(1);
            tracing::info!(order_id = %id, sale = %order.sale, act = act.as_str(), by = asked.by, "order changed");
        }
        if let Err(error) = self.give_back(&row).await {
            tracing::warn!(order_id = %id, %error, "its units wait for their gate");
        }
        Ok(Some(row))
    }

    /// The units of an order that has ended go back to the gate. A failed order has none: its unit may
    /// never have existed.
    pub(super) async fn give_back(&self, row: &OrderRow) -> Result<(), SettlementError> {
        let ends = [OrderStatus::Cancelled, OrderStatus::Expired, OrderStatus::Refunded];
        if !ends.contains(&row.status) {
            return Ok(());
        }
        let owed = Return { id: row.order.id, sale: row.order.sale.clone(), user: row.order.user.clone() };
        give_back(&self.gate, &self.store, &[owed]).await
    }

    /// For whoever acts for a user; waits for whoever else does.
    pub(super) async fn lease(&self, sale: &SaleId, user: &UserId) -> Result<Guard, OrderError> {
        let options = LeaseOptions::lasting(WAIT).max_hold(WAIT * 3);
        let guard = self.leases.acquire(sale.as_str(), [user.as_str()], options, WAIT).await?;
        guard.ok_or(OrderError::Busy)
    }

    /// From the gate while it is in flight, else from its row.
    pub(super) async fn find(&self, sale: &SaleId, id: OrderId) -> Result<Order, OrderError> {
        let ticket = self.gate.ticket(sale, id).await;
        if let Ok(Some(ticket)) = ticket {
            return Ok(ticket.order);
        }
        match self.store.order(id).await?.filter(|row| row.order.sale == *sale) {
            Some(row) => Ok(row.order),
            // Not found only if both were asked.
            None => ticket.map_err(OrderError::from).and(Err(OrderError::NotFound(id))),
        }
    }
}
