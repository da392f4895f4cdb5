//! The entries of the order log. Each holds the full state of something after a change, with a version, so entries may
//! arrive twice and in any order: the highest version wins.
//!
//! Entries outlive the process that wrote them, also as lines of a file. Any field added later needs a default.

use serde::{Deserialize, Serialize};

use super::{
    Failure, Millis, Number, Order, OrderId, OrderStatus, Sale, SaleId, SaleState, Sku, Terms, UserId, Window,
};

/// One line of an export, or one element of a log message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Entry {
    /// The gate accepted the order. If no later entry follows, it was confirmed or still waits for its row.
    Accepted(Order),
    /// The order has a row.
    Order(Box<OrderEntry>),
    /// A sale's row with its items.
    Sale(Box<SaleEntry>),
    /// An operator's act.
    Act(Box<ActEntry>),
    /// A payment event.
    Payment(Box<PaymentEntry>),
}

impl Entry {
    /// The sale that the entry belongs to.
    pub fn sale(&self) -> &SaleId {
        match self {
            Self::Accepted(order) => &order.sale,
            Self::Order(entry) => &entry.order.sale,
            Self::Sale(entry) => &entry.sale_id,
            Self::Act(entry) => &entry.sale_id,
            Self::Payment(entry) => &entry.sale_id,
        }
    }

    /// The order whose state the entry holds. `None` for sales, acts and payments.
    pub fn order(&self) -> Option<&Order> {
        match self {
            Self::Accepted(order) => Some(order),
            Self::Order(entry) => Some(&entry.order),
            Self::Sale(_) | Self::Act(_) | Self::Payment(_) => None,
        }
    }
}

/// An order's row with its history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderEntry {
    #[serde(flatten)]
    /// The order as the gate admitted it.
    pub order: Order,
    /// Its state after the change.
    pub status: OrderStatus,
    /// Why it failed. Set only for `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// 1 when the row is first written, plus 1 per change.
    pub version: i32,
    /// When the row was first written.
    pub recorded_at: Millis,
    /// When the row last changed.
    pub updated_at: Millis,
    /// The payment deadline. `None` if the order has none, or no longer waits for its payment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pay_by: Option<Millis>,
    /// The changes since the row was first written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Step>,
}

/// One change of an order's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The order's version after the change.
    pub version: i32,
    /// The state before.
    pub from: OrderStatus,
    /// The state after.
    pub to: OrderStatus,
    /// Who requested the change, as in [`ActRequest::by`](super::ActRequest::by).
    pub by: String,
    /// Why, if a reason was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it happened.
    pub at: Millis,
}

/// A sale's row with its items. State, terms and the stock of each item have separate versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaleEntry {
    /// The sale.
    pub sale_id: SaleId,
    /// Its name for buyers.
    pub name: String,
    /// Its state.
    pub state: SaleState,
    /// The gate's number at the last change of state.
    #[serde(flatten)]
    pub number: Number,
    /// When buyers may order.
    #[serde(flatten)]
    pub window: Window,
    /// The most units per user.
    pub limit_per_user: u32,
    /// The other terms.
    #[serde(flatten)]
    pub terms: Terms,
    /// The version of window, limits and terms.
    #[serde(rename = "rules_version")]
    pub terms_version: i64,
    /// When the sale was created.
    pub created_at: Millis,
    /// Its items.
    pub items: Vec<ItemEntry>,
}

/// One item of a sale's row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemEntry {
    /// The item.
    pub sku: Sku,
    /// All of its units, including those sold.
    pub stock: i64,
    /// The version of its stock.
    pub version: i64,
    /// The most units of this item per user. `None`: only the sale's limit applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_per_user: Option<u32>,
}

impl SaleEntry {
    /// The sale as it would be created, without state and versions.
    pub fn to_sale(&self) -> Sale {
        Sale {
            id: self.sale_id.clone(),
            name: self.name.clone(),
            window: self.window,
            limit_per_user: self.limit_per_user,
            terms: self.terms.clone(),
            items: self
                .items
                .iter()
                .map(|item| super::Item {
                    sku: item.sku.clone(),
                    stock: item.stock,
                    limit_per_user: item.limit_per_user,
                })
                .collect(),
        }
    }
}

/// An act on a sale: what an operator did, or tried to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActEntry {
    /// The sale.
    pub sale_id: SaleId,
    /// The idempotency key of the request.
    pub key: String,
    /// The name of the act, such as `pause` or `restock`.
    pub act: String,
    /// Its arguments as JSON.
    pub args: String,
    /// The item, for an act on one item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sku: Option<Sku>,
    /// Units added to the stock; negative if it was reduced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<i64>,
    /// The version of the item's stock after the act.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_version: Option<i64>,
    /// Who requested the act.
    pub by: String,
    /// Why, if a reason was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `pending`, `done` or `refused`. The last two are final.
    pub state: String,
    /// The result as text, once the act has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// When it was requested.
    pub at: Millis,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Millis>,
}

/// A payment event from a provider, and its processing. The latest `updated_at` counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaymentEntry {
    /// The provider's name in the configuration.
    pub provider: String,
    /// The provider's id of the event; unique per provider.
    pub event_id: String,
    /// The kind of event.
    pub event: String,
    /// The sale of the order.
    pub sale_id: SaleId,
    /// The order that was paid for.
    pub order_id: OrderId,
    /// Who paid, if the provider says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<UserId>,
    /// How far the event has been processed.
    pub state: String,
    /// The new order, for a late payment that took a unit again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_order_id: Option<OrderId>,
    /// Why it waits or how it ended, for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// When the event arrived.
    pub received_at: Millis,
    /// When it is next tried.
    pub due_at: Millis,
    /// When its processing last changed.
    pub updated_at: Millis,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Fingerprint, KeyDigest};

    #[test]
    fn an_entry_is_read_as_it_was_written_and_what_is_unknown_in_it_is_passed_over() {
        let sku = Sku::parse("shoe").expect("valid");
        let order = Order {
            id: OrderId::generate(),
            sale: SaleId::parse("drop").expect("valid"),
            user: UserId::parse("ada").expect("valid"),
            quantity: 2,
            key: KeyDigest::of_key(None),
            fingerprint: Fingerprint::of_body(&sku, 2),
            sku: sku.clone(),
            number: Number { epoch: 1, seq: 7 },
            limit: 3,
            accepted_at: Millis(1_700_000_000_000),
        };
        let step = Step {
            version: 2,
            from: OrderStatus::Confirmed,
            to: OrderStatus::Paid,
            by: "payment acme".into(),
            reason: None,
            at: Millis(5),
        };
        let row = OrderEntry {
            order: order.clone(),
            status: OrderStatus::Paid,
            failure: None,
            version: 2,
            recorded_at: Millis(4),
            updated_at: Millis(5),
            pay_by: None,
            history: vec![step],
        };
        let sale = SaleEntry {
            sale_id: order.sale.clone(),
            name: "Drop".into(),
            state: SaleState::Open,
            number: Number { epoch: 1, seq: 1 },
            window: Window { opens_at: Millis(1), closes_at: None },
            limit_per_user: 3,
            terms: Terms { message: Some("soon".into()), ..Terms::default() },
            terms_version: 4,
            created_at: Millis(0),
            items: vec![ItemEntry { sku, stock: 5, version: 2, limit_per_user: Some(1) }],
        };
        for entry in [Entry::Accepted(order), Entry::Order(Box::new(row)), Entry::Sale(Box::new(sale))] {
            let mut written = serde_json::to_value(&entry).expect("JSON");
            assert_eq!(serde_json::from_value::<Entry>(written.clone()).expect("readable"), entry);
            if !matches!(entry, Entry::Sale(_)) {
                written["of a later version"] = true.into();
                assert_eq!(serde_json::from_value::<Entry>(written).expect("readable"), entry);
            }
        }
    }
}
