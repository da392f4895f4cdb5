//! The JSON for buyers: an order, and a sale.

use schemars::JsonSchema;
use serde::Serialize;

use crate::domain::{Durability, Failure, Millis, Order, OrderId, OrderStatus, SaleId, SaleState, Sku};
use crate::gate::GateSale;
use crate::intake::OrderView;
use crate::store::{ItemRow, PaymentKind, PaymentState, SaleRow};

/// An order as its buyer sees it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Order")]
pub(in crate::front) struct OrderJson<'a> {
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
    /// Set only on an order that is paid or has ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    payments: Vec<PaymentJson>,
}

/// A payment for an order.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OrderPayment")]
struct PaymentJson {
    state: PaymentState,
    received_at: Millis,
    /// The new order, if a late payment retook a unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    new_order_id: Option<OrderId>,
}

/// A state that an order has reached, and when.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Step")]
struct HistoryJson {
    status: OrderStatus,
    at: Millis,
}

impl<'a> OrderJson<'a> {
    /// A new order, still in flight.
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
            payments: payments_of(view),
        }
    }

    /// The path of the order, for the `Location` header.
    pub(super) fn location(&self) -> String {
        format!("/v1/sales/{}/orders/{}", self.sale_id, self.order_id)
    }
}

/// The payments for an order, without refunds.
fn payments_of(view: &OrderView) -> Vec<PaymentJson> {
    let paid = view.payments.iter().filter(|payment| payment.kind == PaymentKind::Paid);
    let shown = paid.map(|payment| PaymentJson {
        state: payment.state,
        received_at: payment.received_at,
        new_order_id: payment.new_order,
    });
    shown.collect()
}

/// A sale as buyers see it: enough to decide, not enough to count the stock.
#[derive(Clone, Serialize, JsonSchema)]
#[schemars(rename = "Sale")]
pub(in crate::front) struct SaleJson<'a> {
    sale_id: &'a SaleId,
    name: &'a str,
    state: SaleState,
    opens_at: Millis,
    closes_at: Option<Millis>,
    server_time: Millis,
    limit_per_user: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pay_within_s: Option<u32>,
    /// The operator's message while the sale is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    items: Vec<AvailabilityJson<'a>>,
}

/// An item, and about how much of it is left.
#[derive(Clone, Serialize, JsonSchema)]
#[schemars(rename = "ItemAvailability")]
struct AvailabilityJson<'a> {
    sku: &'a Sku,
    availability: Availability,
}

/// About how much is left.
#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Availability {
    /// More than a tenth of the stock.
    Plenty,
    /// A tenth of the stock or less.
    Few,
    /// Nothing.
    Gone,
}

fn availability(left: i64, stock: i64) -> Availability {
    match left {
        i64::MIN..=0 => Availability::Gone,
        left if left * 10 <= stock => Availability::Few,
        _ => Availability::Plenty,
    }
}

impl<'a> SaleJson<'a> {
    /// A sale as the gate has it.
    pub(super) fn loaded(id: &'a SaleId, sale: &'a GateSale, now: Millis) -> Self {
        let over = sale.window.closes_at.is_some_and(|closes_at| now >= closes_at);
        Self {
            sale_id: id,
            name: &sale.name,
            state: match sale.state {
                _ if over => SaleState::Closed,
                // Only operators see that the gate froze the sale.
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

    /// The same at no time.
    pub(super) fn without_time(&self) -> Self {
        Self { server_time: Millis(0), ..self.clone() }
    }

    /// A sale that the gate does not have: not opened yet, or archived.
    pub(super) fn from_row(id: &'a SaleId, row: &'a SaleRow, now: Millis) -> Self {
        // Nothing of an archived sale is on sale any more.
        let left = |item: &ItemRow| if row.state == SaleState::Archived { 0 } else { item.stock - item.sold };
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
                    availability: availability(left(item), item.stock),
                })
                .collect(),
        }
    }
}
