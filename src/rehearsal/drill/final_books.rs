//! The final state of gate and database, read over the admin API once every order has ended.

use std::collections::HashMap;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use super::admin::Admin;
use super::error::DrillError;
use super::plan::Plan;
use crate::audit::Audit;
use crate::domain::{OrderId, OrderStatus, SaleId, UserId};

/// How long to wait until workers have recognised late copies of messages.
const COPIES_WITHIN: Duration = Duration::from_millis(500);

/// How long after the end the books may be unreadable: without them there is no verdict, and a stack that is busy with
/// a late recovery answers 503.
const READABLE_WITHIN: Duration = Duration::from_secs(60);

/// An order's row in the database.
#[derive(Deserialize)]
pub(super) struct Row {
    pub(super) order_id: OrderId,
    pub(super) user_id: UserId,
    pub(super) quantity: i64,
    pub(super) status: OrderStatus,
}

#[derive(Deserialize)]
struct Page {
    orders: Vec<Row>,
    page_size: usize,
}

/// The audit and all rows of the drill's sale.
pub(super) struct FinalBooks {
    pub(super) audit: Audit,
    pub(super) rows: HashMap<OrderId, Row>,
    read_at: Instant,
}

impl FinalBooks {
    /// Waits until every order has ended, for at most `plan.settle_within`, and reads the books. If buyers pay, an
    /// order ends when it is paid, cancelled or expired, so the time to pay is added.
    pub(super) async fn at_rest(admin: &Admin, sale: &SaleId, plan: &Plan) -> Result<Self, DrillError> {
        let follow_up = plan.follow_up.as_ref();
        let unpaid = follow_up.map(|follow_up| Duration::from_secs(follow_up.pay_within_s.into()));
        let until = Instant::now() + plan.settle_within + unpaid.unwrap_or_default();
        let ended = |audit: &Audit| audit.is_at_rest() && (unpaid.is_none() || audit.unpaid_orders == 0);
        let mut rest = None;
        loop {
            let is_last = Instant::now() >= until;
            let read = match read_audit(admin, sale).await {
                Ok(audit) if ended(&audit) || is_last => {
                    let read_at = *rest.get_or_insert_with(Instant::now);
                    Self::read(admin, sale, read_at).await
                }
                Ok(_) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
                Err(error) => Err(error),
            };
            match read {
                // A server that is just coming back must not end the drill.
                Err(_) if Instant::now() < until + READABLE_WITHIN => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                read => return read,
            }
        }
    }

    async fn read(admin: &Admin, sale: &SaleId, read_at: Instant) -> Result<Self, DrillError> {
        // Late copies of messages are still on their way, and the verdict must include their effect.
        tokio::time::sleep(COPIES_WITHIN).await;
        Ok(Self { audit: read_audit(admin, sale).await?, rows: read_rows(admin, sale).await?, read_at })
    }

    /// The time when the books came to rest, or when waiting for that ended.
    pub(super) fn read_at(&self) -> Instant {
        self.read_at
    }

    pub(super) fn status(&self, id: OrderId) -> Option<OrderStatus> {
        self.rows.get(&id).map(|row| row.status)
    }

    pub(super) fn live_rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.values().filter(|row| row.status.is_live())
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
