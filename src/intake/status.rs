//! What became of an order: the gate is asked first, then the database. In this order, because an
//! entry leaves the gate only after its row is committed: an order is always in one of them.

use tokio::time::Instant;

use crate::domain::{Durability, Failure, Millis, Order, OrderId, OrderStatus, SaleId, UserId};
use crate::gate::{GateError, until_refusals_expire};
use crate::store::{OrderEvent, OrderRow, StoreError};

use super::Intake;

/// An order as its buyer may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderView {
    pub order: Order,
    pub status: OrderStatus,
    /// While it is in flight: which servers hold it.
    pub durability: Option<Durability>,
    pub failure: Option<Failure>,
    /// By when it must be paid, while that is to be done.
    pub pay_by: Option<Millis>,
    pub history: Vec<(OrderStatus, Millis)>,
}

impl OrderView {
    pub(super) fn in_flight(order: Order, durability: Durability) -> Self {
        let history = vec![(OrderStatus::Accepted, order.accepted_at)];
        Self {
            order,
            status: OrderStatus::Accepted,
            durability: Some(durability),
            failure: None,
            pay_by: None,
            history,
        }
    }

    /// `events` are those of the order, in their order.
    pub fn recorded(row: OrderRow, events: &[OrderEvent]) -> Self {
        let mut history = vec![(OrderStatus::Accepted, row.order.accepted_at)];
        match events.first() {
            None => history.push((row.status, row.recorded_at)),
            // It ended before a worker wrote its row.
            Some(first) if first.from == OrderStatus::Accepted => {}
            Some(first) => history.push((first.from, row.recorded_at)),
        }
        history.extend(events.iter().map(|event| (event.to, event.at)));
        let pay_by = row.pay_by.filter(|_| row.status == OrderStatus::Confirmed);
        Self { order: row.order, status: row.status, durability: None, failure: row.failure, pay_by, history }
    }
}

/// Not every book could be read, so the answer is not known. Never to be told as "not found".
#[derive(Debug, Clone, thiserror::Error)]
pub enum StatusUnknown {
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What has just been looked up, when it may be told: no front refuses him any more as one who has nothing.
pub(super) async fn told(view: Option<OrderView>) -> Option<OrderView> {
    if view.is_some() {
        until_refusals_expire(Instant::now()).await;
    }
    view
}

impl Intake {
    /// `None` only if both books were read and neither has the order for this user in this sale:
    /// another user's order is not there either. On `Some` no front refuses him as one who has nothing.
    pub async fn view(
        &self,
        sale: &SaleId,
        user: &UserId,
        id: OrderId,
    ) -> Result<Option<OrderView>, StatusUnknown> {
        Ok(told(self.look_up(sale, user, id).await?).await)
    }

    /// The same, and not to be told yet: see [`told`].
    pub(super) async fn look_up(
        &self,
        sale: &SaleId,
        user: &UserId,
        id: OrderId,
    ) -> Result<Option<OrderView>, StatusUnknown> {
        let ticket = match self.gate.ticket(sale, id).await {
            Ok(ticket) => Ok(ticket),
            Err(error @ GateError::Broken(_)) => return Err(error.into()),
            // With Redis away a committed row still answers.
            Err(error) => Err(error),
        };
        // One that has ended in its row is told by the row.
        if let Ok(Some(ticket)) = &ticket
            && !ticket.ended
        {
            let own = ticket.order.user == *user;
            return Ok(own.then(|| OrderView::in_flight(ticket.order.clone(), ticket.durability)));
        }
        match self.row(sale, user, id).await? {
            Some(view) => Ok(Some(view)),
            None => ticket.map(|_| None).map_err(StatusUnknown::from),
        }
    }

    /// An order as its row says it, if it is this user's.
    pub(super) async fn row(
        &self,
        sale: &SaleId,
        user: &UserId,
        id: OrderId,
    ) -> Result<Option<OrderView>, StoreError> {
        let found = self.reader.order(id).await?;
        let own = found.filter(|(row, _)| row.order.user == *user && row.order.sale == *sale);
        Ok(own.map(|(row, events)| OrderView::recorded(row, &events)))
    }

    /// With their histories. Nothing has happened to most orders since their row was written: theirs
    /// are not asked for.
    async fn recorded(&self, rows: Vec<OrderRow>) -> Result<Vec<OrderView>, StoreError> {
        let ids: Vec<OrderId> = rows.iter().filter(|row| row.has_history()).map(|row| row.order.id).collect();
        let mut events = self.store.histories(&ids).await?;
        let view = |row: OrderRow| {
            let events = events.remove(&row.order.id).unwrap_or_default();
            OrderView::recorded(row, &events)
        };
        Ok(rows.into_iter().map(view).collect())
    }

    /// The user's orders in a sale, from gate and database together, oldest first. Where there are any, no
    /// front refuses him on return as one who has nothing.
    pub async fn orders_of(&self, sale: &SaleId, user: &UserId) -> Result<Vec<OrderView>, StatusUnknown> {
        let held = self.gate.orders_of(sale, user).await?;
        let tickets = self.gate.tickets(sale, &held).await?;
        let rows = self.store.orders_of(sale, user).await?;
        let mut views = self.recorded(rows).await?;
        for ticket in tickets.into_iter().flatten().filter(|ticket| !ticket.ended) {
            if !views.iter().any(|view| view.order.id == ticket.order.id) {
                views.push(OrderView::in_flight(ticket.order, ticket.durability));
            }
        }
        views.sort_by_key(|view| view.order.id);
        if !views.is_empty() {
            until_refusals_expire(Instant::now()).await;
        }
        Ok(views)
    }
}
