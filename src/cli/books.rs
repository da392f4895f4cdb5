//! One line about the books of a sale, as `audit`, `rebuild` and `replay` print it.

use crate::audit::{Audit, ItemBooks};

pub(super) fn summary(books: &Audit) -> String {
    let units = |of: fn(&ItemBooks) -> i64| books.items.iter().map(of).sum::<i64>();
    let verdict = match (books.balances(), books.is_at_rest()) {
        _ if books.database_behind => "CANNOT BE JUDGED: the database has lost commits",
        _ if books.gate_lost => "IS NOT IN REDIS: rebuild it",
        _ if books.frozen => "IS FROZEN: rebuild it",
        (true, true) => "balances",
        (true, false) => "balances, with orders in flight",
        (false, true) => "DOES NOT BALANCE",
        _ if books.rows_are_wrong() => "DOES NOT BALANCE",
        (false, false) => "cannot be judged while orders are in flight",
    };
    format!(
        "{} {verdict}: stock {} = left {} + in flight {} + returning {} + live {} + missing {}",
        books.sale_id,
        units(|item| item.stock),
        units(|item| item.left),
        units(|item| item.in_flight),
        units(|item| item.returning),
        units(|item| item.live),
        units(ItemBooks::missing),
    )
}
