//! What the gate is loaded with: the rows, and the gathered orders without a row.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::error::RebuildError;
use super::freeze::{Rebuild, Rebuilding};
use super::gather::{Gathered, Waiting};
use crate::audit::Progress;
use crate::domain::{Millis, Number, Order, OrderId, Sku, UserId};
use crate::fault::fault;
use crate::gate::{RebuiltHolding, RebuiltItem, RebuiltSale};
use crate::recovery::retry::Retry;
use crate::store::{OrderPages, OrderRow, Restock, SaleRow};

/// Ended orders kept per user in a sale with rebuy; the same number as in `settle.lua`.
const ENDED_KEPT: usize = 8;

/// No transaction that ends an order takes this long.
const ENDING: Duration = Duration::from_secs(60);

/// Orders whose return is recorded in one transaction.
const RETURNS_AT_ONCE: usize = 500;

/// Orders without a row that are staged together.
const AT_ONCE: usize = 1_000;

/// What was loaded.
#[derive(Debug, Clone, Copy)]
pub struct Loaded {
    /// Users who hold an order, live or ended.
    pub users: usize,
    /// Orders without a row.
    pub in_flight: usize,
    /// The gate's number after the load.
    pub(super) number: Number,
}

/// Progress of a load: the gate is given the holders page by page, so that their number does not matter.
struct Loading<'a> {
    rebuild: &'a Rebuild,
    rebuilding: &'a Rebuilding,
    /// Users with orders without a row that no page has had yet.
    waiting: BTreeMap<&'a UserId, &'a BTreeMap<OrderId, Waiting>>,
    /// Orders whose units were on their way back before the rows were read.
    owed: HashSet<OrderId>,
    /// When that was read, by the database's clock.
    owed_at: Millis,
    /// Orders whose units the load returns: they have ended in their rows without having failed, and are owed.
    returned: Vec<OrderId>,
    /// Orders that have ended like that since, or shortly before: they may be owed.
    ended_lately: Vec<OrderId>,
    rebuy: bool,
    taken: BTreeMap<Sku, i64>,
    users: usize,
    in_flight: usize,
}

/// A part of what is loaded: whole users, and their orders without a row.
#[derive(Default)]
struct Part<'a> {
    users: BTreeMap<UserId, Vec<RebuiltHolding>>,
    in_flight: Vec<(&'a Order, bool)>,
}

impl<'a> Loading<'a> {
    /// All orders of some users that have a row, and those of the same users that have none.
    fn of_rows(&mut self, rows: Vec<OrderRow>) -> Part<'a> {
        let recorded: HashSet<OrderId> = rows.iter().map(|row| row.order.id).collect();
        let mut part = Part::default();
        for row in rows {
            if let Some(waiting) = self.waiting.remove(&row.order.user) {
                self.add_waiting(waiting, &recorded, &mut part);
            }
            self.add_row(row, &mut part);
        }
        self.sorted(part)
    }

    /// Some users without a row; empty at the end.
    fn of_waiting(&mut self) -> Part<'a> {
        let mut part = Part::default();
        while let Some((_, waiting)) = self.waiting.pop_first() {
            self.add_waiting(waiting, &HashSet::new(), &mut part);
            if part.in_flight.len() >= AT_ONCE {
                break;
            }
        }
        self.sorted(part)
    }

    fn add_row(&mut self, row: OrderRow, part: &mut Part<'a>) {
        let live = row.status.is_live();
        if live {
            *self.taken.entry(row.order.sku.clone()).or_default() += i64::from(row.order.quantity);
        } else if row.failure.is_some() {
            // The user is free, and the unit may never have existed.
            return;
        } else if self.owed.contains(&row.order.id) {
            self.returned.push(row.order.id);
        } else if row.updated_at >= self.owed_at.minus(ENDING) {
            self.ended_lately.push(row.order.id);
        }
        let held = RebuiltHolding { ended: !live, order: row.order };
        part.users.entry(held.order.user.clone()).or_default().push(held);
    }

    fn add_waiting(
        &mut self,
        waiting: &'a BTreeMap<OrderId, Waiting>,
        recorded: &HashSet<OrderId>,
        part: &mut Part<'a>,
    ) {
        for Waiting { order, parked } in waiting.values().filter(|held| !recorded.contains(&held.order.id)) {
            *self.taken.entry(order.sku.clone()).or_default() += i64::from(order.quantity);
            let held = RebuiltHolding { ended: false, order: order.clone() };
            part.users.entry(order.user.clone()).or_default().push(held);
            part.in_flight.push((order, *parked));
        }
    }

    fn sorted(&self, mut part: Part<'a>) -> Part<'a> {
        for held in part.users.values_mut() {
            held.sort_by_key(|held| held.order.number);
            if self.rebuy {
                drop_oldest_ended(held);
            }
        }
        part
    }

    async fn stage(&mut self, part: Part<'a>) -> Result<(), RebuildError> {
        let Rebuilding { sale, epoch, guard, .. } = self.rebuilding;
        if !guard.is_valid_for(Duration::ZERO) {
            return Err(RebuildError::UnderWay(sale.clone()));
        }
        let gate = &self.rebuild.gate;
        let users: Vec<_> = part.users.into_iter().collect();
        let mut retry = Retry::default();
        while let Err(error) = gate.refill_outbox(sale, *epoch, &part.in_flight).await {
            wait_out(&mut retry, error.into()).await?;
        }
        while let Err(error) = gate.stage_users(sale, *epoch, &users).await {
            wait_out(&mut retry, error.into()).await?;
        }
        self.in_flight += part.in_flight.len();
        self.users += users.len();
        Ok(())
    }
}

impl Rebuild {
    /// Reads the rows, stages their holders in the gate, and loads the gate in one step, which succeeds only if the
    /// epoch is still the same.
    pub async fn load(
        &self,
        rebuilding: &Rebuilding,
        gathered: &Gathered,
        progress: Progress<'_>,
    ) -> Result<Loaded, RebuildError> {
        let (sale, epoch) = (&rebuilding.sale, rebuilding.epoch);
        let mut loading = Loading {
            rebuild: self,
            rebuilding,
            waiting: gathered.waiting.iter().collect(),
            owed_at: self.store.read_clock().await?,
            // Read before the rows: every order in it has ended in its row.
            owed: self.owed(rebuilding).await?,
            returned: Vec::new(),
            ended_lately: Vec::new(),
            rebuy: self.row(sale).await?.sale.terms.rebuy,
            taken: BTreeMap::new(),
            users: 0,
            in_flight: 0,
        };
        self.gate.clear_staged(sale, epoch).await?;
        let mut pages = self.store.order_pages(sale);
        let mut page = pages.next().await?;
        fault!("rebuild.read", return Err(crate::gate::GateError::Unavailable("injected".into()).into()));
        let mut read = 0;
        while let Some(rows) = page {
            read += rows.len() as u64;
            let part = loading.of_rows(rows);
            // The database reads the next page while the gate takes this one.
            let (next, ()) = tokio::try_join!(next_page(&mut pages), loading.stage(part))?;
            page = next;
            progress("orders loaded", read);
        }
        while !loading.waiting.is_empty() {
            let part = loading.of_waiting();
            loading.stage(part).await?;
        }
        let row = self.row(sale).await?;
        let items = self.items(&row, &loading.taken).await?;
        let Loading { users, in_flight, mut returned, ended_lately, .. } = loading;
        if !ended_lately.is_empty() {
            // Their units are among those left, too. A frozen gate takes none back, so what is owed has only grown.
            let owed = self.owed(rebuilding).await?;
            returned.extend(ended_lately.into_iter().filter(|id| owed.contains(id)));
        }
        let rebuilt =
            RebuiltSale { sale: &row.sale, terms_version: row.terms_version, staged: users, items: &items };
        let number = self.gate.load_rebuilt(epoch, &rebuilt).await?;
        fault!("rebuild.loaded", return Err(crate::gate::GateError::Unavailable("injected".into()).into()));
        for ids in returned.chunks(RETURNS_AT_ONCE) {
            self.store.finish_returns(sale, number, ids).await?;
        }
        Ok(Loaded { users, in_flight, number })
    }

    /// The orders whose units are on their way back to the gate.
    async fn owed(&self, rebuilding: &Rebuilding) -> Result<HashSet<OrderId>, RebuildError> {
        Ok(self.store.returning_orders(&rebuilding.sale).await?.into_iter().collect())
    }

    async fn items(
        &self,
        row: &SaleRow,
        taken: &BTreeMap<Sku, i64>,
    ) -> Result<Vec<RebuiltItem>, RebuildError> {
        let pending = self.store.pending_restocks(&row.sale.id).await?;
        let items = row.items.iter().map(|item| {
            // A pending decrease of stock has not reached the row yet, so that change still has to reach the gate.
            let lowers = |restock: &Restock| {
                restock.sku == item.sku && restock.units < 0 && restock.version == item.version
            };
            let version = item.version - i64::from(pending.iter().any(lowers));
            let left = item.stock - taken.get(&item.sku).copied().unwrap_or(0);
            RebuiltItem { sku: item.sku.clone(), left, stock: item.stock, version }
        });
        Ok(items.collect())
    }
}

/// Waits before a step is repeated, if it may succeed once a server answers again: the load of a large sale takes
/// minutes, and one late answer must not cost all of it.
async fn wait_out(retry: &mut Retry, error: RebuildError) -> Result<(), RebuildError> {
    if !error.is_transient() || !retry.may_retry() {
        return Err(error);
    }
    tracing::warn!(%error, "the rebuild waits for a server");
    retry.wait().await;
    Ok(())
}

async fn next_page(pages: &mut OrderPages<'_>) -> Result<Option<Vec<OrderRow>>, RebuildError> {
    let mut retry = Retry::default();
    loop {
        match pages.next().await {
            Ok(page) => return Ok(page),
            Err(error) => wait_out(&mut retry, error.into()).await?,
        }
    }
}

/// Keeps the newest ended orders of a user. `held` is sorted by number.
fn drop_oldest_ended(held: &mut Vec<RebuiltHolding>) {
    let ended = held.iter().filter(|held| held.ended).count();
    let mut too_many = ended.saturating_sub(ENDED_KEPT);
    held.retain(|held| {
        let dropped = held.ended && too_many > 0;
        too_many -= usize::from(dropped);
        !dropped
    });
}
