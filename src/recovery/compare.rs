//! Order by order: what differs between gate, outbox and database, and why.
//!
//! Safe during a sale: the gate is read first and the rows after it, and what then seems to differ is
//! looked at once more, by itself, and counts only where the order is old enough that nobody is still at
//! work on it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use crate::audit::{Audit, AuditError, audit};
use crate::domain::{CLOCK_SKEW, Entry, Millis, Order, OrderId, OrderStatus, SaleId, Sku, UserId};
use crate::gate::{Gate, Holding};
use crate::queue::{LogFrom, OrderLog};
use crate::store::{OrderRow, Store};

/// What is wrong with an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// The gate holds it and the order log has it, but neither outbox nor database: its message is gone.
    Lost,
    /// The gate holds it, and nobody else knows of it.
    Leaked,
    /// The gate holds it and the order log has its row, but the database has not: it is older than the log.
    DatabaseBehind,
    /// It has waited for its row for long, in the outbox.
    Waiting,
    /// Its row is there, and its outbox entry still is.
    Unsettled,
    /// Its row has ended, and the gate still holds its units.
    Unreturned,
    /// Its row is live, and the gate does not hold it: its units may be sold again.
    UnknownToGate,
    /// Its user has more live units than he was allowed.
    Duplicate,
    /// Beyond the stock of its item: the last of those that live.
    Oversold,
}

impl DifferenceKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Leaked => "leaked",
            Self::DatabaseBehind => "database_behind",
            Self::Waiting => "waiting",
            Self::Unsettled => "unsettled",
            Self::Unreturned => "unreturned",
            Self::UnknownToGate => "unknown_to_gate",
            Self::Duplicate => "duplicate",
            Self::Oversold => "oversold",
        }
    }

    /// The step that repairs it, as `audit --repair` shows it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Lost | Self::Waiting => "publish it again",
            Self::Leaked => "record it as expired, then return its units",
            Self::Unsettled => "settle it in the gate",
            Self::Unreturned => "return its units to the gate",
            Self::UnknownToGate => "add it to the gate",
            Self::DatabaseBehind => "bring the database up to date first: `doorbuster replay run log`",
            Self::Duplicate | Self::Oversold => "your decision: `doorbuster order cancel`, or refund it",
        }
    }

    /// Can it be mended without a decision about whose order it is?
    pub fn is_repairable(self) -> bool {
        !matches!(self, Self::Duplicate | Self::Oversold | Self::DatabaseBehind)
    }
}

/// An order that differs.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Difference {
    pub order_id: OrderId,
    pub user_id: UserId,
    pub sku: Sku,
    pub quantity: u32,
    pub why: DifferenceKind,
    /// As far as it is known.
    #[serde(skip)]
    pub order: Order,
}

/// The books of a sale, and every order that differs.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Comparison {
    #[serde(flatten)]
    pub books: Audit,
    pub differences: Vec<Difference>,
}

impl Comparison {
    /// An order that waits for long is in nobody's way. Sums of a sale that went on the whole time say
    /// nothing; its orders do.
    pub fn balances(&self) -> bool {
        let sums = self.books.balances() || (self.books.moved && !self.books.needs_rebuild());
        sums && self.differences.iter().all(|difference| difference.why == DifferenceKind::Waiting)
    }
}

/// Times that the sums are looked at while the sale goes on, and the pause in between.
const LOOKS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

/// Rows in one query.
const PAGE: u64 = 1_000;

/// Compares a sale order by order. Reads only. What is younger than `older_than` is left out: somebody
/// is still at work on it.
pub async fn compare(
    gate: &Gate,
    store: &Store,
    log: Option<&OrderLog>,
    sale: &SaleId,
    older_than: Duration,
) -> Result<Comparison, AuditError> {
    let mut books = audit(gate, store, sale).await?;
    for _ in 1..LOOKS {
        if books.balances() || !books.moved {
            break;
        }
        tokio::time::sleep(PAUSE).await;
        books = audit(gate, store, sale).await?;
    }
    if books.needs_rebuild() {
        return Ok(Comparison { books, differences: Vec::new() });
    }
    let flight: HashMap<OrderId, (Order, bool)> = gate
        .in_flight(sale)
        .await?
        .into_iter()
        .map(|ticket| (ticket.order.id, (ticket.order, ticket.parked)))
        .collect();
    let holdings: HashMap<OrderId, Holding> =
        gate.holdings(sale).await?.into_iter().map(|holding| (holding.id, holding)).collect();
    let loaded = gate.describe(sale).await?.is_some();
    let mut look = Look { gate, store, sale, suspects: BTreeSet::new(), found: Vec::new() };
    let mut seen = HashSet::new();
    let mut live: BTreeMap<Sku, Vec<OrderRow>> = BTreeMap::new();
    let over: HashSet<&UserId> = books.users_over_limit.iter().collect();
    let mut after = None;
    loop {
        let page = store.orders_after(sale, after, PAGE).await?;
        after = page.last().map(|row| row.order.id).or(after);
        let last = (page.len() as u64) < PAGE;
        for row in page {
            let id = row.order.id;
            seen.insert(id);
            let held = holdings.get(&id).is_some_and(|holding| holding.quantity > 0);
            let is_live = row.status.is_live();
            if loaded && (flight.contains_key(&id) || held != is_live) {
                look.suspects.insert(id);
            }
            if is_live && over.contains(&row.order.user) {
                look.tell(&row.order, DifferenceKind::Duplicate);
            }
            if is_live && books.items.iter().any(|item| item.sku == row.order.sku && item.oversold() > 0) {
                live.entry(row.order.sku.clone()).or_default().push(row);
            }
        }
        if last {
            break;
        }
    }
    let no_row = holdings.values().filter(|holding| holding.quantity > 0).map(|holding| holding.id);
    look.suspects.extend(no_row.chain(flight.keys().copied()).filter(|id| !seen.contains(id)));
    for item in &books.items {
        let mut beyond = item.oversold();
        for row in live.remove(&item.sku).unwrap_or_default().into_iter().rev() {
            if beyond <= 0 {
                break;
            }
            beyond -= i64::from(row.order.quantity);
            look.tell(&row.order, DifferenceKind::Oversold);
        }
    }
    let now = gate.clock().await?;
    let young = |id: &OrderId| id.generated_at().is_none_or(|at| at.plus(older_than) > now);
    let suspects: Vec<OrderId> = look.suspects.iter().copied().filter(|id| !young(id)).collect();
    for id in suspects {
        look.judge(id, holdings.get(&id), flight.get(&id).map(|(order, _)| order)).await?;
    }
    let mut differences = look.found;
    if let Some(log) = log {
        tell_lost_from_leaked(log, sale, &mut differences).await?;
    }
    differences.sort_by_key(|differs| (differs.why, differs.order_id));
    Ok(Comparison { books, differences })
}

struct Look<'a> {
    gate: &'a Gate,
    store: &'a Store,
    sale: &'a SaleId,
    suspects: BTreeSet<OrderId>,
    found: Vec<Difference>,
}

impl Look<'_> {
    fn tell(&mut self, order: &Order, why: DifferenceKind) {
        self.found.push(Difference {
            order_id: order.id,
            user_id: order.user.clone(),
            sku: order.sku.clone(),
            quantity: order.quantity,
            why,
            order: order.clone(),
        });
    }

    /// Looks at one order again: gate, outbox, then its row.
    async fn judge(
        &mut self,
        id: OrderId,
        holding: Option<&Holding>,
        ticket: Option<&Order>,
    ) -> Result<(), AuditError> {
        let row_before = self.store.order(id).await?;
        let user = holding
            .map(|holding| &holding.user)
            .or(ticket.map(|order| &order.user))
            .or(row_before.as_ref().map(|row| &row.order.user));
        let Some(user) = user else { return Ok(()) };
        let held = self.gate.holdings_of(self.sale, user).await?.into_iter().find(|held| held.id == id);
        let ticket = self.gate.ticket(self.sale, id).await?;
        let row = self.store.order(id).await?;
        let holds = held.as_ref().is_some_and(|held| held.quantity > 0);
        match (&row, &ticket) {
            (Some(row), Some(_)) => self.tell(&row.order, DifferenceKind::Unsettled),
            (Some(row), None) if row.status.is_live() && !holds => {
                self.tell(&row.order, DifferenceKind::UnknownToGate)
            }
            (Some(row), None) if !row.status.is_live() && holds => {
                // What is on its way is no difference.
                let on_its_way = row.status != OrderStatus::Failed
                    && self.store.returning_orders(self.sale).await?.contains(&id);
                if !on_its_way {
                    self.tell(&row.order, DifferenceKind::Unreturned);
                }
            }
            (None, Some(ticket)) if !ticket.parked => self.tell(&ticket.order, DifferenceKind::Waiting),
            (None, None) if holds => {
                let order = held.as_ref().map(|held| of_holding(self.sale, held));
                if let Some(order) = order {
                    self.tell(&order, DifferenceKind::Leaked);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// As much as the gate remembers; its number is not among it.
fn of_holding(sale: &SaleId, held: &Holding) -> Order {
    Order {
        id: held.id,
        sale: sale.clone(),
        user: held.user.clone(),
        sku: held.sku.clone(),
        quantity: u32::try_from(held.quantity).unwrap_or(0),
        key: held.key,
        fingerprint: held.fingerprint,
        number: Default::default(),
        limit: u32::try_from(held.quantity).unwrap_or(1),
        accepted_at: held.id.generated_at().unwrap_or(Millis(0)),
    }
}

/// What the order log has can be published again, as it was.
async fn tell_lost_from_leaked(
    log: &OrderLog,
    sale: &SaleId,
    differences: &mut [Difference],
) -> Result<(), AuditError> {
    let leaked = || differences.iter().filter(|difference| difference.why == DifferenceKind::Leaked);
    let Some(oldest) = leaked().filter_map(|difference| difference.order_id.generated_at()).min() else {
        return Ok(());
    };
    let wanted: HashSet<OrderId> = leaked().map(|difference| difference.order_id).collect();
    let mut known: HashMap<OrderId, Order> = HashMap::new();
    let mut recorded: HashSet<OrderId> = HashSet::new();
    let mut reader = log.read(LogFrom::Time(oldest.minus(CLOCK_SKEW))).await.map_err(AuditError::Queue)?;
    while let Some(message) = reader.next().await.map_err(AuditError::Queue)? {
        for entry in message.entries.into_iter().flatten() {
            match entry {
                Entry::Accepted(order) if order.sale == *sale && wanted.contains(&order.id) => {
                    known.insert(order.id, order);
                }
                Entry::Order(entry) if wanted.contains(&entry.order.id) => {
                    recorded.insert(entry.order.id);
                }
                _ => {}
            }
        }
    }
    reader.close().await;
    for difference in differences {
        if difference.why == DifferenceKind::Leaked && recorded.contains(&difference.order_id) {
            difference.why = DifferenceKind::DatabaseBehind;
        } else if difference.why == DifferenceKind::Leaked
            && let Some(order) = known.remove(&difference.order_id)
        {
            (difference.why, difference.order) = (DifferenceKind::Lost, order);
        }
    }
    Ok(())
}
