//! A sale as the fields of its hash in Redis, written and read.

use std::collections::BTreeMap;

use super::error::GateError;
use super::wire::broken;
use crate::domain::{Sale, SaleState, Sku, Terms};

/// One item of a sale in the gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateItem {
    /// The item.
    pub sku: Sku,
    /// Units left. Below 0 if the database knew of orders that the gate did not; then none are sold.
    pub left: i64,
    /// Units loaded, restocks included.
    pub stock: i64,
    /// The version of its last restock.
    pub version: i64,
}

/// The terms of a sale as fields of its hash, names and values in turn. An unset term is the empty text.
pub(super) fn terms(sale: &Sale) -> Vec<String> {
    fn text(value: Option<impl ToString>) -> String {
        value.map(|value| value.to_string()).unwrap_or_default()
    }
    let terms = &sale.terms;
    let of_items = sale.items.iter().map(|item| (format!("limit:{}", item.sku), text(item.limit_per_user)));
    let limited = sale.items.iter().any(|item| item.limit_per_user.is_some());
    [
        ("name", sale.name.clone()),
        ("opens_at", sale.window.opens_at.0.to_string()),
        ("closes_at", text(sale.window.closes_at.map(|at| at.0))),
        ("limit", sale.limit_per_user.to_string()),
        ("pay_within_s", text(terms.pay_within_s)),
        ("rebuy", u8::from(terms.rebuy).to_string()),
        ("late_payment", terms.late_payment.as_str().to_owned()),
        ("user_rate", text(terms.user_rate)),
        ("sale_rate", text(terms.sale_rate)),
        ("message", text(terms.message.as_ref())),
        ("retry_after", text(terms.retry_after_s)),
        // Tells the admission script whether to read the limits of items.
        ("item_limits", u8::from(limited).to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
    .chain(of_items)
    .flat_map(|(name, value)| [name, value])
    .collect()
}

/// A sale that an earlier version loaded lacks these fields. It keeps the defaults with which it was sold.
pub(super) fn read_terms(fields: &BTreeMap<String, String>) -> Result<Terms, GateError> {
    let set = |name: &str| fields.get(name).filter(|text| !text.is_empty());
    fn read<T: std::str::FromStr>(text: Option<&String>) -> Result<Option<T>, GateError> {
        text.map(|text| text.parse().map_err(|_| broken("a term of the sale", text))).transpose()
    }
    Ok(Terms {
        pay_within_s: read(set("pay_within_s"))?,
        rebuy: set("rebuy").is_none_or(|text| text != "0"),
        late_payment: read(set("late_payment"))?.unwrap_or_default(),
        user_rate: read(set("user_rate"))?,
        sale_rate: read(set("sale_rate"))?,
        message: set("message").cloned(),
        retry_after_s: read(set("retry_after"))?,
    })
}

pub(super) fn field<T: std::str::FromStr>(
    fields: &BTreeMap<String, String>,
    name: &str,
) -> Result<T, GateError> {
    let text = fields.get(name).map(String::as_str).unwrap_or_default();
    text.parse().map_err(|_| broken("a field of the sale", (name, text)))
}

pub(super) fn read_items(
    left: &[(String, String)],
    stock: &BTreeMap<String, String>,
    fields: &BTreeMap<String, String>,
) -> Result<Vec<GateItem>, GateError> {
    let mut items = Vec::with_capacity(left.len());
    for (sku, left) in left {
        let number = |text: &str| text.parse().map_err(|_| broken("units of an item", text));
        items.push(GateItem {
            sku: sku.parse().map_err(|_| broken("a sku", sku))?,
            left: number(left)?,
            stock: number(stock.get(sku).map(String::as_str).unwrap_or_default())?,
            version: field(fields, &format!("version:{sku}")).unwrap_or(1),
        });
    }
    items.sort_by(|a, b| a.sku.cmp(&b.sku));
    Ok(items)
}

/// The gate's word for a state. A draft in the gate is a sale that is loaded and not opened yet: `loading`.
pub(super) fn write_state(state: SaleState) -> &'static str {
    match state {
        SaleState::Draft => "loading",
        other => other.as_str(),
    }
}

pub(super) fn read_state(text: &str) -> Result<SaleState, GateError> {
    match text {
        "loading" => Ok(SaleState::Draft),
        other => other.parse().map_err(|_| broken("a sale's state", other)),
    }
}
