//! Promises about units.

use std::collections::BTreeMap;

use crate::rehearsal::judge::facts::{Facts, is_live};
use crate::rehearsal::judge::rule::{Found, Look};

pub(super) fn no_unit_twice(facts: &Facts<'_>) -> Look {
    let mut sold: BTreeMap<&str, i64> = BTreeMap::new();
    for row in facts.live_rows() {
        *sold.entry(&row.sku).or_default() += row.quantity;
    }
    let stock =
        |sku: &str| facts.case.books.items.iter().find(|item| item.sku == sku).map_or(0, |item| item.stock);
    sold.into_iter()
        .filter(|(sku, units)| *units > stock(sku))
        .map(|(sku, units)| {
            Found::new(format!("{units} units of {sku} are sold, and there are {}", stock(sku)))
        })
        .collect()
}

pub(super) fn limit(facts: &Facts<'_>) -> Look {
    let mut held: BTreeMap<&str, i64> = BTreeMap::new();
    for row in facts.live_rows() {
        *held.entry(&row.user).or_default() += row.quantity;
    }
    let limit = facts.case.sale.limit;
    held.into_iter()
        .filter(|(_, units)| *units > limit)
        .map(|(user, units)| {
            Found::of_user(user, format!("{user} holds {units} units, and may have {limit}"))
        })
        .collect()
}

pub(super) fn conservation(facts: &Facts<'_>) -> Look {
    let (books, gate) = (&facts.case.books, &facts.case.books.gate);
    let mut found = Vec::new();
    for row in facts.live_rows().filter(|row| !gate.held.contains_key(&row.id)) {
        found.push(Found::of_order(row.id, format!("the gate does not know that {} holds its unit", row.id)));
    }
    for (order, units) in &gate.held {
        if !facts.rows.get(order).is_some_and(|row| is_live(&row.status)) {
            found.push(Found::of_order(
                *order,
                format!("the gate keeps {units} units for {order}, which is not live"),
            ));
        }
    }
    for item in &books.items {
        let live =
            |sku: &str| facts.live_rows().filter(|row| row.sku == sku).map(|row| row.quantity).sum::<i64>();
        let (sold, left) = (live(&item.sku), gate.left.get(&item.sku).copied().unwrap_or(0));
        let loaded = gate.stock.get(&item.sku).copied().unwrap_or(0);
        if loaded != item.stock || left + sold != item.stock || item.sold != sold {
            found.push(Found::new(format!(
                "{}: of {} units in the database and {loaded} in the gate, {left} are left and {sold} sold; the \
                 database counts {} sold",
                item.sku, item.stock, item.sold
            )));
        }
    }
    found.into_iter().collect()
}

pub(super) fn stock_follows_acts(facts: &Facts<'_>) -> Look {
    let mut found = Vec::new();
    for item in &facts.case.books.items {
        let (sku, stock, may_be) = (&item.sku, item.stock, facts.stocks(&item.sku));
        if !may_be.contains(&stock) {
            found.push(Found::new(format!(
                "{sku}: the stock is {stock} units, and the acts lead to {may_be:?}"
            )));
        }
    }
    found.into_iter().collect()
}
