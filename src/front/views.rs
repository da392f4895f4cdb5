//! The JSON of the contract.

use serde::Serialize;

use crate::audit::{Audit, ItemBooks};
use crate::control::SaleStatus;
use crate::domain::{
    Durability, Failure, Millis, Order, OrderId, OrderStatus, Sale, SaleId, SaleState, Sku, Terms, UserId,
};
use crate::gate::GateSale;
use crate::intake::OrderView;
use crate::store::{OrderRow, Payment, PaymentKind, PaymentState, SaleRow};

#[derive(Serialize)]
pub(super) struct OrderJson<'a> {
    order_id: OrderId,
    sale_id: &'a SaleId,
    sku: &'a Sku,
    quantity: u32,
    status: OrderStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    durability: Option<Durability>,
    accepted_at: Millis,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    history: Vec<HistoryJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pay_by: Option<Millis>,
    /// Of an order that was paid, or has ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    payments: Vec<PaymentJson>,
}

#[derive(Serialize)]
struct PaymentJson {
    state: PaymentState,
    received_at: Millis,
    /// The order that took a unit again.
    #[serde(skip_serializing_if = "Option::is_none")]
    new_order_id: Option<OrderId>,
}

#[derive(Serialize)]
struct HistoryJson {
    status: OrderStatus,
    at: Millis,
}

impl<'a> OrderJson<'a> {
    pub(super) fn accepted(order: &'a Order, durability: Durability) -> Self {
        Self {
            order_id: order.id,
            sale_id: &order.sale,
            sku: &order.sku,
            quantity: order.quantity,
            status: OrderStatus::Accepted,
            durability: Some(durability),
            accepted_at: order.accepted_at,
            history: Vec::new(),
            failure: None,
            pay_by: None,
            payments: Vec::new(),
        }
    }

    pub(super) fn of(view: &'a OrderView) -> Self {
        Self {
            order_id: view.order.id,
            sale_id: &view.order.sale,
            sku: &view.order.sku,
            quantity: view.order.quantity,
            status: view.status,
            durability: view.durability,
            accepted_at: view.order.accepted_at,
            history: view
                .history
                .iter()
                .map(|(status, at)| HistoryJson { status: *status, at: *at })
                .collect(),
            failure: view.failure,
            pay_by: view.pay_by,
            payments: Vec::new(),
        }
    }

    pub(super) fn with(mut self, payments: &[Payment]) -> Self {
        let paid = payments.iter().filter(|payment| payment.kind == PaymentKind::Paid);
        let told = paid.map(|payment| PaymentJson {
            state: payment.state,
            received_at: payment.received_at,
            new_order_id: payment.new_order,
        });
        self.payments = told.collect();
        self
    }
}

/// What a buyer sees of a sale: enough to decide, too little to count the stock.
#[derive(Serialize)]
pub(super) struct SaleJson<'a> {
    sale_id: &'a SaleId,
    name: &'a str,
    state: SaleState,
    opens_at: Millis,
    closes_at: Option<Millis>,
    server_time: Millis,
    limit_per_user: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pay_within_s: Option<u32>,
    /// While it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    items: Vec<AvailabilityJson<'a>>,
}

#[derive(Serialize)]
struct AvailabilityJson<'a> {
    sku: &'a Sku,
    availability: &'static str,
}

fn availability(left: i64, stock: i64) -> &'static str {
    match left {
        i64::MIN..=0 => "gone",
        // The last tenth.
        left if left * 10 <= stock => "few",
        _ => "plenty",
    }
}

impl<'a> SaleJson<'a> {
    pub(super) fn loaded(id: &'a SaleId, sale: &'a GateSale, now: Millis) -> Self {
        let over = sale.window.closes_at.is_some_and(|closes_at| now >= closes_at);
        Self {
            sale_id: id,
            name: &sale.name,
            state: match sale.state {
                _ if over => SaleState::Closed,
                // Why it is not selling is the operator's business.
                SaleState::Frozen => SaleState::Paused,
                state => state,
            },
            opens_at: sale.window.opens_at,
            closes_at: sale.window.closes_at,
            server_time: now,
            limit_per_user: sale.limit_per_user,
            pay_within_s: sale.terms.pay_within_s,
            message: sale.terms.message.as_deref().filter(|_| sale.state == SaleState::Paused),
            items: sale
                .items
                .iter()
                .map(|item| AvailabilityJson {
                    sku: &item.sku,
                    availability: availability(item.left, item.stock),
                })
                .collect(),
        }
    }

    pub(super) fn draft(id: &'a SaleId, row: &'a SaleRow, now: Millis) -> Self {
        Self {
            sale_id: id,
            name: &row.sale.name,
            state: row.state,
            opens_at: row.sale.window.opens_at,
            closes_at: row.sale.window.closes_at,
            server_time: now,
            limit_per_user: row.sale.limit_per_user,
            pay_within_s: row.sale.terms.pay_within_s,
            message: None,
            items: row
                .items
                .iter()
                .map(|item| AvailabilityJson {
                    sku: &item.sku,
                    availability: availability(item.stock, item.stock),
                })
                .collect(),
        }
    }
}

/// What an operator sees of a sale.
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
        }
    }

    pub(super) fn of(status: &'a SaleStatus) -> Self {
        Self::new(&status.row, status.state(), status.gate.as_ref())
    }

    fn new(row: &'a SaleRow, state: SaleState, gate: Option<&GateSale>) -> Self {
        let left = |sku: &Sku| {
            gate.and_then(|gate| gate.items.iter().find(|held| held.sku == *sku)).map(|held| held.left)
        };
        let limit = |sku: &Sku| row.sale.items.iter().find(|item| item.sku == *sku)?.limit_per_user;
        Self {
            sale_id: &row.sale.id,
            name: &row.sale.name,
            state,
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
        }
    }
}

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
    /// None while it has no row.
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
