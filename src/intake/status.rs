//! The status of an order: read from the gate first, then from the database. In this order, because an entry leaves
//! the gate only after its row is committed, so an order is always found in one of them. If the gate has lost writes,
//! its entry may be older than the row, and then the row counts.

use std::time::Duration;

use tokio::time::Instant;

use super::completeness::{ensure_complete, ensure_none_is_held};
use super::core::Intake;
use super::order_view::{OrderView, StatusUnknown};
use super::row_reader::FoundRow;
use crate::domain::{OrderId, OrderStatus, SaleId, Ticket, UserId};
use crate::gate::{GateError, InFlight, until_refusals_expire};
use crate::store::{OrderRow, StoreError};

/// Delays the report of an order that was just found until no front refuses its user as someone without one.
async fn after_refusals_expire(view: Option<OrderView>) -> Option<OrderView> {
    if view.is_some() {
        until_refusals_expire(Instant::now()).await;
    }
    view
}

impl Intake {
    /// An order of this user in this sale. `None` only if gate and database both answered and neither has it; another
    /// user's order counts as missing. After `Some`, no front refuses the user as someone without an order.
    pub async fn view(
        &self,
        sale: &SaleId,
        user: &UserId,
        id: OrderId,
    ) -> Result<Option<OrderView>, StatusUnknown> {
        Ok(after_refusals_expire(self.look_up(sale, user, id).await?).await)
    }

    /// The order once it is no longer `accepted`, or as it is after `wait`. Otherwise like [`Intake::view`].
    pub async fn view_within(
        &self,
        sale: &SaleId,
        user: &UserId,
        id: OrderId,
        wait: Duration,
    ) -> Result<Option<OrderView>, StatusUnknown> {
        let until = Instant::now() + wait;
        loop {
            let view = self.look_up(sale, user, id).await?;
            let pending = view.as_ref().is_some_and(|view| view.status == OrderStatus::Accepted);
            if !pending || Instant::now() >= until {
                return Ok(after_refusals_expire(view).await);
            }
            let _ = tokio::time::timeout_at(until, self.poll.wait_until_settled(sale, id)).await;
        }
    }

    /// The same as [`Intake::view`] without the delay. Do not report it before [`after_refusals_expire`].
    async fn look_up(
        &self,
        sale: &SaleId,
        user: &UserId,
        id: OrderId,
    ) -> Result<Option<OrderView>, StatusUnknown> {
        let (ticket, is_believed) = match self.in_flight_now(sale, id).await {
            // An order that has ended in its row is read from the row.
            Ok(InFlight { ticket, is_believed, .. }) => {
                (Ok(ticket.filter(|ticket| !ticket.ended)), is_believed)
            }
            Err(error @ GateError::Broken(_)) => return Err(error.into()),
            // While Redis is away, a committed row still answers.
            Err(error) => (Err(error), false),
        };
        let waiting = |Ticket { order, durability, .. }| {
            let own = order.user == *user;
            own.then(|| OrderView::in_flight(order, durability))
        };
        if let (Ok(Some(ticket)), true) = (&ticket, is_believed) {
            return Ok(waiting(ticket.clone()));
        }
        if let Some(view) = self.row(sale, user, id).await? {
            // Also where the gate has no entry: a rebuild may put it back before this is answered.
            if ticket.is_ok() && !is_believed {
                self.read_from_row(sale, &[id]).await?;
            }
            return Ok(Some(view));
        }
        // The gate has lost writes, but not this order, which has no row yet.
        if let Some(ticket) = ticket? {
            return Ok(waiting(ticket));
        }
        let held = self.gate.orders_of(sale, user).await?;
        ensure_none_is_held(&held, |held| held != id)?;
        ensure_complete(&self.gate, &self.store, sale).await?;
        Ok(None)
    }

    /// Asks the gate, which also witnesses how new a row must be that is read afterwards.
    pub(super) async fn in_flight_now(&self, sale: &SaleId, id: OrderId) -> Result<InFlight, GateError> {
        let now = self.gate.in_flight_now(sale, id).await?;
        self.store.observe_place(sale, now.place);
        Ok(now)
    }

    /// Has every later reading of these orders go to their rows, before one of them is reported from there: the entry of
    /// an order that is not settled yet says `accepted`.
    async fn read_from_row(&self, sale: &SaleId, ids: &[OrderId]) -> Result<(), GateError> {
        if ids.is_empty() { Ok(()) } else { self.gate.mark_ended(sale, ids).await }
    }

    /// An order from its row, if it belongs to this user and sale.
    pub(super) async fn row(
        &self,
        sale: &SaleId,
        user: &UserId,
        id: OrderId,
    ) -> Result<Option<OrderView>, StoreError> {
        let found = self.reader.order(id).await?;
        self.store.ensure_current().await?;
        let own = found.filter(|found| found.row.order.user == *user && found.row.order.sale == *sale);
        Ok(own.map(|FoundRow { row, events, payments }| OrderView {
            payments,
            ..OrderView::recorded(row, &events)
        }))
    }

    /// Rows with their histories. Most orders have not changed since their row was written, so no events are read for
    /// them.
    async fn recorded(&self, rows: Vec<OrderRow>) -> Result<Vec<OrderView>, StoreError> {
        let ids: Vec<OrderId> = rows.iter().filter(|row| row.has_history()).map(|row| row.order.id).collect();
        let mut events = self.store.histories(&ids).await?;
        let view = |row: OrderRow| {
            let events = events.remove(&row.order.id).unwrap_or_default();
            OrderView::recorded(row, &events)
        };
        Ok(rows.into_iter().map(view).collect())
    }

    /// One page of the user's orders in a sale, from gate and database together, oldest first, starting after `after`; and
    /// whether there are more. If there are any, then on return no front refuses the user as someone without an order.
    pub async fn orders_of(
        &self,
        sale: &SaleId,
        user: &UserId,
        after: Option<OrderId>,
        limit: usize,
    ) -> Result<(Vec<OrderView>, bool), StatusUnknown> {
        let mut held = self.gate.orders_of(sale, user).await?;
        held.retain(|id| after.is_none_or(|after| *id > after));
        let tickets = self.gate.tickets(sale, &held).await?;
        // One more than wanted says whether there are more.
        let rows = self.store.orders_of(sale, user, after, limit as u64 + 1).await?;
        let mut views = self.recorded(rows).await?;
        ensure_complete(&self.gate, &self.store, sale).await?;
        let waiting = tickets.into_iter().flatten().filter(|ticket| !ticket.ended);
        let (recorded, in_flight): (Vec<Ticket>, Vec<Ticket>) =
            waiting.partition(|ticket| views.iter().any(|view| view.order.id == ticket.order.id));
        let recorded: Vec<OrderId> = recorded.iter().map(|ticket| ticket.order.id).collect();
        self.read_from_row(sale, &recorded).await?;
        views.extend(
            in_flight.into_iter().map(|ticket| OrderView::in_flight(ticket.order, ticket.durability)),
        );
        views.sort_by_key(|view| view.order.id);
        let is_cut = views.len() > limit;
        views.truncate(limit);
        if let Some(last) = views.last().filter(|_| is_cut) {
            held.retain(|id| *id <= last.order.id);
        }
        ensure_none_is_held(&held, |held| views.iter().any(|view| view.order.id == held))?;
        if !views.is_empty() {
            until_refusals_expire(Instant::now()).await;
        }
        Ok((views, is_cut))
    }
}
