//! The verdict: what the buyers were told, the gate and the database, compared.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::afterwards::{Fate, Outcome};
use super::crowd::Told;
use super::http::Admin;
use super::plan::Clicks;
use super::{Act, DrillError, Plan};
use crate::audit::Audit;
use crate::domain::{OrderId, OrderStatus, SaleId, UserId};

#[derive(Deserialize)]
pub(super) struct Row {
    order_id: OrderId,
    user_id: UserId,
    pub(super) quantity: i64,
    pub(super) status: OrderStatus,
}

/// How long copies of messages may take to be recognised.
const COPIES: Duration = Duration::from_millis(500);

#[derive(Deserialize)]
struct Page {
    orders: Vec<Row>,
    page_size: usize,
}

/// Gate and database after the last order has ended, or after the patience has.
pub(super) struct Books {
    audit: Audit,
    rows: HashMap<OrderId, Row>,
    read_at: Instant,
}

impl Books {
    /// Where buyers pay, an order has not ended before it is paid or has expired.
    pub(super) async fn at_rest(admin: &Admin, sale: &SaleId, plan: &Plan) -> Result<Self, DrillError> {
        let unpaid =
            plan.follow_up.as_ref().map(|follow_up| Duration::from_secs(follow_up.pay_within_s.into()));
        let until = Instant::now() + plan.settle_within + unpaid.unwrap_or_default();
        let ended = |audit: &Audit| audit.is_at_rest() && (unpaid.is_none() || audit.unpaid_orders == 0);
        loop {
            // A server that is just coming back is not the end of the drill.
            match read_audit(admin, sale).await {
                Ok(audit) if ended(&audit) || Instant::now() >= until => {
                    let read_at = Instant::now();
                    // Late copies of messages are still under way: what they do is judged too.
                    tokio::time::sleep(COPIES).await;
                    let audit = read_audit(admin, sale).await.unwrap_or(audit);
                    return Ok(Self { audit, rows: read_rows(admin, sale).await?, read_at });
                }
                Err(error) if Instant::now() >= until => return Err(error),
                Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }
}

impl Books {
    pub(super) fn read_at(&self) -> Instant {
        self.read_at
    }

    pub(super) fn rows(&self) -> &HashMap<OrderId, Row> {
        &self.rows
    }

    pub(super) fn stock(&self) -> i64 {
        self.audit.items.iter().map(|item| item.stock).sum()
    }

    pub(super) fn oversold(&self) -> i64 {
        self.audit.items.iter().map(|item| item.oversold()).sum()
    }

    pub(super) fn leaked(&self) -> i64 {
        self.audit.items.iter().map(|item| item.missing()).sum()
    }

    pub(super) fn unfinished(&self) -> u64 {
        self.audit.in_flight + self.audit.unsettled + self.audit.unreturned
    }

    /// What buyers were told of their payments and cancellations, and the books do not have; and what
    /// the books have, and nobody asked for.
    pub(super) fn contradicts(&self, plan: &Plan, outcomes: &[Outcome]) -> Vec<String> {
        let mut found = Vec::new();
        if !self.audit.balances() {
            found.push(format!("the audit does not balance: {}", serde_json::json!(self.audit)));
        }
        let status = |id: &OrderId| self.rows.get(id).map(|row| row.status);
        let mut wanted: HashMap<OrderId, &Outcome> = HashMap::new();
        for outcome in outcomes {
            wanted.insert(outcome.order, outcome);
            wanted.extend(outcome.new_order.map(|new_order| (new_order, outcome)));
            let is = status(&outcome.order);
            let right = match outcome.told.as_str() {
                "applied" => is == Some(OrderStatus::Paid),
                "retaken" => {
                    let new = outcome.new_order.and_then(|id| status(&id));
                    is.is_some_and(|is| !is.is_live()) && new == Some(OrderStatus::Paid)
                }
                // Late is what came for an order that had ended, or that was retaken and had ended, too.
                "late" => is.is_some_and(|is| !is.is_live()),
                "cancelled" => is == Some(OrderStatus::Cancelled),
                "invalid_transition" => outcome.fate == Fate::Cancels && is == Some(OrderStatus::Expired),
                "nothing" => is == Some(OrderStatus::Expired),
                _ => false,
            };
            if !right {
                found.push(format!(
                    "{:?}: told {:?} of {}, which is {}",
                    outcome.fate,
                    outcome.told,
                    outcome.order,
                    is.map_or("nowhere", OrderStatus::as_str)
                ));
            }
        }
        for (id, row) in &self.rows {
            let paid =
                wanted.get(id).is_some_and(|outcome| matches!(outcome.fate, Fate::Pays | Fate::PaysLate));
            let odd = match row.status {
                OrderStatus::Paid => !paid,
                OrderStatus::Confirmed => plan.follow_up.is_some(),
                _ => false,
            };
            if odd {
                found.push(format!("{id} is {}, and nobody asked for that", row.status));
            }
        }
        found
    }
}

async fn read_audit(admin: &Admin, sale: &SaleId) -> Result<Audit, DrillError> {
    let path = format!("/v1/admin/sales/{sale}/audit");
    let answer = admin.get(&path).await?;
    serde_json::from_value(answer).map_err(|error| DrillError::Call { call: path, why: error.to_string() })
}

async fn read_rows(admin: &Admin, sale: &SaleId) -> Result<HashMap<OrderId, Row>, DrillError> {
    let mut rows = HashMap::new();
    let mut path = format!("/v1/admin/sales/{sale}/orders");
    loop {
        let answer = admin.get(&path).await?;
        let page: Page = serde_json::from_value(answer)
            .map_err(|error| DrillError::Call { call: path.clone(), why: error.to_string() })?;
        let last = page.orders.last().map(|row| row.order_id);
        let full = page.orders.len() >= page.page_size;
        rows.extend(page.orders.into_iter().map(|row| (row.order_id, row)));
        match last {
            Some(last) if full => path = format!("/v1/admin/sales/{sale}/orders?after={last}"),
            _ => return Ok(rows),
        }
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    pub units: i64,
    /// Units of live orders in the database.
    pub sold: i64,
    /// Units sold beyond the stock.
    pub oversold: i64,
    /// Users with more live orders than they may have.
    pub duplicate: u64,
    /// Orders that buyers were told are taken.
    pub promised: u64,
    /// Those of them that have no row.
    pub lost: u64,
    /// Orders that the database refused after the buyer was told they are taken; each has a row
    /// that says why.
    pub failed: u64,
    /// Units that are in no book.
    pub leaked: i64,
    /// Units that enough buyers wanted and nobody got.
    pub unsold: i64,
    /// Orders that had not ended when the patience had.
    pub unfinished: u64,
    /// Live orders whose buyer never got an answer. Not a fault: the same click would tell.
    pub unheard: u64,
    /// What buyers did with their orders and were told, and the states in which these ended: where they
    /// did anything.
    pub fates: BTreeMap<String, u64>,
    pub ended: BTreeMap<String, u64>,
    /// What contradicts the contract, in words.
    pub contradictions: Vec<String>,
}

impl Verdict {
    pub(super) fn reach(
        told: &[Told],
        outcomes: &[Outcome],
        acts: &[Act],
        books: &Books,
        plan: &Plan,
    ) -> Self {
        let live = || books.rows.values().filter(|row| row.status.is_live());
        let promised: BTreeSet<OrderId> =
            told.iter().filter(|told| told.has_order()).filter_map(|told| told.order).collect();
        let mut of_user: BTreeMap<&UserId, u64> = BTreeMap::new();
        for row in live() {
            *of_user.entry(&row.user_id).or_default() += 1;
        }
        let heard: HashSet<OrderId> = told.iter().filter_map(|told| told.order).collect();
        let sold: i64 = live().map(|row| row.quantity).sum();
        let (mut fates, mut ended) = (BTreeMap::new(), BTreeMap::new());
        for outcome in outcomes {
            *fates.entry(outcome.told.clone()).or_default() += 1;
        }
        if plan.follow_up.is_some() {
            for row in books.rows.values() {
                *ended.entry(row.status.as_str().to_owned()).or_default() += 1;
            }
        }
        let mut contradictions = contradictions(told, books, plan);
        if plan.follow_up.is_some() {
            contradictions.extend(books.contradicts(plan, outcomes));
        }
        let stock = plan.units + acts.iter().map(|act| act.units).sum::<i64>();
        if stock != books.stock() {
            contradictions.push(format!("{stock} units should be in stock, and it is {}", books.stock()));
        }
        // Units that come back are there for buyers who have gone.
        let wanted = if plan.follow_up.is_some() { 0 } else { stock.min(i64::from(plan.buyers)) };
        Self {
            units: books.stock(),
            sold,
            unsold: (wanted - sold).max(0),
            oversold: books.oversold(),
            duplicate: of_user.values().filter(|orders| **orders > 1).count() as u64,
            promised: promised.len() as u64,
            lost: promised.iter().filter(|id| !books.rows.contains_key(id)).count() as u64,
            failed: promised
                .iter()
                .filter(|id| books.rows.get(id).is_some_and(|row| row.status == OrderStatus::Failed))
                .count() as u64,
            leaked: books.leaked(),
            unfinished: books.unfinished(),
            unheard: live().filter(|row| !heard.contains(&row.order_id)).count() as u64,
            fates,
            ended,
            contradictions,
        }
    }

    pub fn balances(&self) -> bool {
        self.oversold == 0
            && self.duplicate == 0
            && self.lost == 0
            && self.failed == 0
            && self.leaked == 0
            && self.unfinished == 0
            && self.contradictions.is_empty()
    }

    /// Was everything sold that was wanted, and does every answer make sense?
    pub fn is_complete(&self) -> bool {
        self.unsold == 0
    }
}

/// What the answers alone, or the answers and the books, say that cannot both be true.
fn contradictions(told: &[Told], books: &Books, plan: &Plan) -> Vec<String> {
    let mut found = Vec::new();
    if told.len() != plan.clicks().len() {
        found.push(format!("{} clicks were sent, {} are accounted for", plan.clicks().len(), told.len()));
    }
    if !books.audit.balances() {
        found.push(format!("the audit does not balance: {}", serde_json::json!(books.audit)));
    }
    let mut orders_of: BTreeMap<&UserId, BTreeSet<OrderId>> = BTreeMap::new();
    for told in told {
        match told.order {
            Some(order) if told.has_order() || told.code == "already_ordered" => {
                orders_of.entry(&told.user).or_default().insert(order);
            }
            None if told.has_order() => {
                found.push(format!("{} was told of an order without an id", told.user))
            }
            _ => {}
        }
    }
    found.extend(
        orders_of
            .iter()
            .filter(|(_, orders)| orders.len() > 1)
            .map(|(user, orders)| format!("{user} was told of {} different orders", orders.len())),
    );
    for (id, row) in &books.rows {
        if orders_of.get(&row.user_id).is_some_and(|orders| row.status.is_live() && !orders.contains(id)) {
            found.push(format!("{} was told of another order than the one in the database", row.user_id));
        }
    }
    // A refusal is final: whoever has an order was told so at one time or another.
    let refused = |code: &str| matches!(code, "sold_out" | "sale_closed");
    let turned_away: HashSet<&UserId> =
        told.iter().filter(|told| refused(&told.code)).map(|told| &told.user).collect();
    for row in books.rows.values().filter(|row| row.status.is_live()) {
        if turned_away.contains(&row.user_id) && !orders_of.contains_key(&row.user_id) {
            found.push(format!("{} was turned away, and has an order", row.user_id));
        }
    }
    // Told that nothing was taken, and then of an order that only that very try can have made.
    let mut clicks: HashMap<(&UserId, u32), u32> = HashMap::new();
    for told in told {
        *clicks.entry((&told.user, told.key)).or_default() += 1;
    }
    found.extend(
        told.iter()
            .filter(|told| told.code == "repeat" && !told.unknown && clicks[&(&told.user, told.key)] == 1)
            .map(|told| format!("{} was told that nothing was taken, and it was", told.user)),
    );
    let clicked: HashSet<&UserId> = told.iter().map(|told| &told.user).collect();
    found.extend(
        books
            .rows
            .values()
            .filter(|row| !clicked.contains(&row.user_id))
            .map(|row| format!("{} never clicked, and has an order", row.user_id)),
    );
    let sold_out_early =
        told.iter().any(|told| told.code == "sold_out") && books.audit.items.iter().any(|item| item.left > 0);
    // Where units come back or are added, both are true, one after the other.
    if sold_out_early && plan.follow_up.is_none() && plan.steering.is_none() {
        found.push("buyers were told sold_out while units were left".into());
    }
    if plan.clicks == Clicks::TenTimes {
        found.extend(check_ten_times(told));
    }
    found
}

/// One key ten times: ten times the same order. Ten keys: one order, and nine pointers to it.
fn check_ten_times(told: &[Told]) -> Vec<String> {
    let mut found = Vec::new();
    let one_key = told.iter().filter(|told| told.user.as_str().ends_with("0"));
    let (mut fresh, mut repeats) = (0, 0);
    for told in one_key {
        match told.code.as_str() {
            "accepted" => fresh += 1,
            "repeat" => repeats += 1,
            code => found.push(format!("one key: answered {code}")),
        }
    }
    if (fresh, repeats) != (1, 9) {
        found.push(format!("one key: {fresh} accepted and {repeats} repeats, instead of 1 and 9"));
    }
    let ten_keys: Vec<&Told> = told.iter().filter(|told| told.user.as_str().ends_with("1")).collect();
    let count = |code: &str| ten_keys.iter().filter(|told| told.code == code).count();
    if (count("accepted"), count("already_ordered")) != (1, 9) {
        found.push(format!(
            "ten keys: {} accepted and {} already_ordered, instead of 1 and 9",
            count("accepted"),
            count("already_ordered")
        ));
    }
    if ten_keys.iter().any(|told| told.order.is_none()) {
        found.push("ten keys: an answer without the order's id".into());
    }
    found
}
