//! The JSON for operators: a sale, an order, an audit.

use serde::Serialize;

use crate::audit::{Audit, ItemBooks};
use crate::control::SaleStatus;
use crate::domain::{
    Failure, Millis, Order, OrderId, OrderStatus, Sale, SaleId, SaleState, Sku, Terms, UserId,
};
use crate::store::OrderRow;

/// A sale as operators see it: the row, and the gate's view if the gate has the sale.
#[derive(Serialize)]
pub(super) struct AdminSaleJson<'a> {
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

#[derive(Serialize)]
struct AdminItemJson<'a> {
    sku: &'a Sku,
    stock: i64,
    sold: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_per_user: Option<u32>,
}

#[derive(Serialize)]
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
#[derive(Serialize)]
pub(super) struct AdminOrderJson<'a> {
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
#[derive(Serialize)]
pub(super) struct AuditJson<'a> {
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
