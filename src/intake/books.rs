//! What became of an order: the gate is asked first, then the database. In this order, because an
//! entry leaves the gate only after its row is committed: an order is always in one of them.

use crate::domain::{Durability, Failure, Millis, Order, OrderId, OrderStatus, SaleId, UserId};
use crate::gate::GateError;
use crate::store::{OrderRow, StoreError};

use super::Intake;

/// An order as its buyer may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderView {
    pub order: Order,
    pub status: OrderStatus,
    /// While it is in flight: which servers hold it.
    pub durability: Option<Durability>,
    pub failure: Option<Failure>,
    pub history: Vec<(OrderStatus, Millis)>,
}

impl OrderView {
    pub(super) fn in_flight(order: Order, durability: Durability) -> Self {
        let history = vec![(OrderStatus::Accepted, order.accepted_at)];
        Self { order, status: OrderStatus::Accepted, durability: Some(durability), failure: None, history }
    }

    fn recorded(row: OrderRow) -> Self {
        let history = vec![(OrderStatus::Accepted, row.order.accepted_at), (row.status, row.recorded_at)];
        Self { order: row.order, status: row.status, durability: None, failure: row.failure, history }
    }
}

/// Not every book could be read, so the answer is not known. Never to be told as "not found".
#[derive(Debug, Clone, thiserror::Error)]
pub enum Unknown {
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Intake {
    /// `None` only if both books were read and neither has the order for this user in this sale:
    /// another user's order is not there either.
    pub async fn view(
        &self,
        sale: &SaleId,
        user: &UserId,
        id: OrderId,
    ) -> Result<Option<OrderView>, Unknown> {
        let ticket = match self.gate.ticket(sale, id).await {
            Ok(ticket) => Ok(ticket),
            Err(error @ GateError::Broken(_)) => return Err(error.into()),
            // With Redis away a committed row still answers.
            Err(error) => Err(error),
        };
        if let Ok(Some(ticket)) = &ticket {
            let own = ticket.order.user == *user;
            return Ok(own.then(|| OrderView::in_flight(ticket.order.clone(), ticket.durability)));
        }
        match self.store.order(id).await? {
            Some(row) => {
                let own = row.order.user == *user && row.order.sale == *sale;
                Ok(own.then(|| OrderView::recorded(row)))
            }
            None => ticket.map(|_| None).map_err(Unknown::from),
        }
    }

    /// The user's orders in a sale, from gate and database together, oldest first.
    pub async fn orders_of(&self, sale: &SaleId, user: &UserId) -> Result<Vec<OrderView>, Unknown> {
        let held = self.gate.orders_of(sale, user).await?;
        let tickets = self.gate.tickets(sale, &held).await?;
        let rows = self.store.orders_of(sale, user).await?;
        let mut views: Vec<OrderView> = rows.into_iter().map(OrderView::recorded).collect();
        for ticket in tickets.into_iter().flatten() {
            if !views.iter().any(|view| view.order.id == ticket.order.id) {
                views.push(OrderView::in_flight(ticket.order, ticket.durability));
            }
        }
        views.sort_by_key(|view| view.order.id);
        Ok(views)
    }
}
