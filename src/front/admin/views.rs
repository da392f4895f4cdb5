//! The JSON for operators: a sale, an order, an audit, and the lists of them.

use schemars::JsonSchema;
use serde::Serialize;

use crate::audit::{Audit, ItemBooks};
use crate::control::{Check, SaleStatus};
use crate::domain::{
    Failure, Millis, Order, OrderId, OrderStatus, Sale, SaleId, SaleState, Sku, Terms, UserId,
};
use crate::store::{OperatorAct, OrderEvent, OrderRow, Payment, SaleAct};

/// A sale as operators see it: the row, and the gate's view if the gate has the sale.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AdminSale")]
pub(in crate::front) struct AdminSaleJson<'a> {
    sale_id: &'a SaleId,
    name: &'a str,
    state: SaleState,
    opens_at: Millis,
    closes_at: Option<Millis>,
    limit_per_user: u32,
    rules: &'a Terms,
    items: Vec<AdminItemJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gate: Option<AdminGateJson>,
    needs_rebuild: bool,
}

/// An item: its stock, what is sold of it, and what the gate can still sell.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AdminItem")]
struct AdminItemJson<'a> {
    sku: &'a Sku,
    stock: i64,
    sold: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_per_user: Option<u32>,
}

/// The gate's number, and the orders that wait for their rows.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AdminGate")]
struct AdminGateJson {
    epoch: i64,
    seq: i64,
    in_flight: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_accepted_at: Option<Millis>,
}

impl<'a> AdminSaleJson<'a> {
    /// A sale that was just created.
    pub(super) fn draft(sale: &'a Sale) -> Self {
        Self {
            sale_id: &sale.id,
            name: &sale.name,
            state: SaleState::Draft,
            opens_at: sale.window.opens_at,
            closes_at: sale.window.closes_at,
            limit_per_user: sale.limit_per_user,
            rules: &sale.terms,
            items: sale
                .items
                .iter()
                .map(|item| AdminItemJson {
                    sku: &item.sku,
                    stock: item.stock,
                    sold: 0,
                    left: None,
                    limit_per_user: item.limit_per_user,
                })
                .collect(),
            gate: None,
            needs_rebuild: false,
        }
    }

    pub(super) fn of(status: &'a SaleStatus) -> Self {
        let (row, gate) = (&status.row, status.gate.as_ref());
        let left = |sku: &Sku| {
            gate.and_then(|gate| gate.items.iter().find(|held| held.sku == *sku)).map(|held| held.left)
        };
        let limit = |sku: &Sku| row.sale.items.iter().find(|item| item.sku == *sku)?.limit_per_user;
        Self {
            sale_id: &row.sale.id,
            name: &row.sale.name,
            state: status.state(),
            opens_at: row.sale.window.opens_at,
            closes_at: row.sale.window.closes_at,
            limit_per_user: row.sale.limit_per_user,
            rules: &row.sale.terms,
            items: row
                .items
                .iter()
                .map(|item| AdminItemJson {
                    sku: &item.sku,
                    stock: item.stock,
                    sold: item.sold,
                    left: left(&item.sku),
                    limit_per_user: limit(&item.sku),
                })
                .collect(),
            gate: gate.map(|gate| AdminGateJson {
                epoch: gate.number.epoch,
                seq: gate.number.seq,
                in_flight: gate.waiting,
                oldest_accepted_at: gate.oldest,
            }),
            needs_rebuild: status.needs_rebuild(),
        }
    }
}

/// An order as operators see it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AdminOrder")]
pub(in crate::front) struct AdminOrderJson<'a> {
    order_id: OrderId,
    user_id: &'a UserId,
    sku: &'a Sku,
    quantity: u32,
    status: OrderStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
    accepted_at: Millis,
    /// `None` while the order has no row.
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded_at: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pay_by: Option<Millis>,
}

impl<'a> AdminOrderJson<'a> {
    pub(super) fn of(row: &'a OrderRow) -> Self {
        Self {
            order_id: row.order.id,
            user_id: &row.order.user,
            sku: &row.order.sku,
            quantity: row.order.quantity,
            status: row.status,
            failure: row.failure,
            accepted_at: row.order.accepted_at,
            recorded_at: Some(row.recorded_at),
            pay_by: row.pay_by,
        }
    }

    /// An accepted order without a row.
    pub(super) fn in_flight(order: &'a Order) -> Self {
        Self {
            order_id: order.id,
            user_id: &order.user,
            sku: &order.sku,
            quantity: order.quantity,
            status: OrderStatus::Accepted,
            failure: None,
            accepted_at: order.accepted_at,
            recorded_at: None,
            pay_by: None,
        }
    }
}

/// An audit with its verdict.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AuditReport")]
pub(in crate::front) struct AuditJson<'a> {
    #[serde(flatten)]
    audit: &'a Audit,
    balances: bool,
    at_rest: bool,
    oversold: i64,
    missing: i64,
}

impl<'a> AuditJson<'a> {
    pub(super) fn of(audit: &'a Audit) -> Self {
        Self {
            balances: audit.balances(),
            at_rest: audit.is_at_rest(),
            oversold: audit.items.iter().map(ItemBooks::oversold).sum(),
            missing: audit.items.iter().map(ItemBooks::missing).sum(),
            audit,
        }
    }
}

/// All sales.
#[derive(Serialize, JsonSchema)]
pub(in crate::front) struct SaleList<'a> {
    pub(super) sales: Vec<AdminSaleJson<'a>>,
}

/// A sale after an act, with the act.
#[derive(Serialize, JsonSchema)]
pub(in crate::front) struct SaleAfterAct<'a> {
    #[serde(flatten)]
    pub(super) sale: AdminSaleJson<'a>,
    pub(super) act: SaleAct,
}

/// Whether a sale is ready for its buyers, and what was checked.
#[derive(Serialize, JsonSchema)]
pub(in crate::front) struct CheckList {
    pub(super) ready: bool,
    pub(super) checks: Vec<Check>,
}

/// The acts on a sale, the latest first, up to a thousand.
#[derive(Serialize, JsonSchema)]
pub(in crate::front) struct SaleActList {
    pub(super) acts: Vec<SaleAct>,
}

/// The acts of all operators, the latest first, up to a thousand.
#[derive(Serialize, JsonSchema)]
pub(in crate::front) struct OperatorActList {
    pub(super) acts: Vec<OperatorAct>,
}

/// One page of a sale's orders that have a row, by id.
#[derive(Serialize, JsonSchema)]
pub(in crate::front) struct OrderPage<'a> {
    pub(super) orders: Vec<AdminOrderJson<'a>>,
    /// A page with fewer orders is the last one.
    pub(super) page_size: u64,
}

/// An order with its history.
#[derive(Serialize, JsonSchema)]
pub(in crate::front) struct OrderWithHistory<'a> {
    order: AdminOrderJson<'a>,
    events: Vec<OrderEventJson<'a>>,
}

/// One step of an order from one state to another.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OrderEvent")]
struct OrderEventJson<'a> {
    from: OrderStatus,
    to: OrderStatus,
    /// Who requested it: `buyer`, `operator NAME`, `deadline`, `provider NAME` or a process.
    by: &'a str,
    reason: Option<&'a str>,
    at: Millis,
}

impl<'a> OrderWithHistory<'a> {
    pub(super) fn of(order: AdminOrderJson<'a>, events: &'a [OrderEvent]) -> Self {
        let event = |event: &'a OrderEvent| OrderEventJson {
            from: event.from,
            to: event.to,
            by: &event.actor,
            reason: event.reason.as_deref(),
            at: event.at,
        };
        Self { order, events: events.iter().map(event).collect() }
    }
}

/// The events of payment providers in one state, the newest first, up to a thousand.
#[derive(Serialize, JsonSchema)]
pub(in crate::front) struct PaymentList {
    pub(super) payments: Vec<Payment>,
}
