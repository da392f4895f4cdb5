//! The entries of the order log: how something stands after a change, whole, with a version. So entries
//! may come twice and in any order: what has the higher version counts.
//!
//! They outlive the process that wrote them, as lines of a file too; what is added later must have a
//! default.

use serde::{Deserialize, Serialize};

use super::{
    Failure, Millis, Number, Order, OrderId, OrderStatus, Sale, SaleId, SaleState, Sku, Terms, UserId, Window,
};

/// One line of an export, one part of a message in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Entry {
    /// The gate has accepted it. Where nothing else is told of it, it was confirmed, or still waits.
    Accepted(Order),
    /// It has a row.
    Order(Box<OrderEntry>),
    Sale(Box<SaleEntry>),
    Act(Box<ActEntry>),
    Payment(Box<PaymentEntry>),
}

impl Entry {
    pub fn sale(&self) -> &SaleId {
        match self {
            Self::Accepted(order) => &order.sale,
            Self::Order(entry) => &entry.order.sale,
            Self::Sale(entry) => &entry.sale_id,
            Self::Act(entry) => &entry.sale_id,
            Self::Payment(entry) => &entry.sale_id,
        }
    }

    /// The order that it is about, if it is about one's state.
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
    pub order: Order,
    pub status: OrderStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// 1 for the row as it was written first, one more with each change.
    pub version: i32,
    pub recorded_at: Millis,
    pub updated_at: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pay_by: Option<Millis>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Step>,
}

/// One change of an order's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The order's version after it.
    pub version: i32,
    pub from: OrderStatus,
    pub to: OrderStatus,
    pub by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub at: Millis,
}

/// A sale's row with its items. State, terms and each item's stock have a version of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaleEntry {
    pub sale_id: SaleId,
    pub name: String,
    pub state: SaleState,
    /// Of the gate, at the last change of state.
    #[serde(flatten)]
    pub number: Number,
    #[serde(flatten)]
    pub window: Window,
    pub limit_per_user: u32,
    #[serde(flatten)]
    pub terms: Terms,
    #[serde(rename = "rules_version")]
    pub terms_version: i64,
    pub created_at: Millis,
    pub items: Vec<ItemEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemEntry {
    pub sku: Sku,
    pub stock: i64,
    pub version: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_per_user: Option<u32>,
}

impl SaleEntry {
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

/// What somebody did to a sale.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActEntry {
    pub sale_id: SaleId,
    pub key: String,
    pub act: String,
    /// JSON.
    pub args: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sku: Option<Sku>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_version: Option<i64>,
    pub by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `pending`, `done` or `refused`: the last two are its end.
    pub state: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    pub at: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Millis>,
}

/// What a payment provider has told, and what became of it. The later `updated_at` counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaymentEntry {
    pub provider: String,
    pub event_id: String,
    pub event: String,
    pub sale_id: SaleId,
    pub order_id: OrderId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<UserId>,
    pub state: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_order_id: Option<OrderId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    pub received_at: Millis,
    pub due_at: Millis,
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
