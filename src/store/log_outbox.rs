//! The outbox of the order log. A change writes a reference to its row in its own transaction; the log writer later
//! logs the row as it stands by then, which is as new or newer.

use sea_orm::{ActiveValue::Set, DatabaseTransaction};
use uuid::Uuid;

use super::entities::log_outbox;
use super::error::StoreError;
use super::many::insert_new;
use crate::domain::{Millis, OrderId};

pub(in crate::store) const ORDER: &str = "order";
pub(in crate::store) const SALE: &str = "sale";
pub(in crate::store) const ACT: &str = "act";
pub(in crate::store) const PAYMENT: &str = "payment";

/// Separates the provider from the event in a reference; no provider's name contains it.
pub(in crate::store) const SEPARATOR: char = '/';

/// A row that has changed.
pub(in crate::store) enum Touched<'a> {
    Order(OrderId),
    Sale,
    Act(&'a str),
    Payment { provider: &'a str, event_id: &'a str },
}

/// Puts changed rows of one sale into the outbox. Call it in the transaction of the change.
pub(in crate::store) async fn log(
    transaction: &DatabaseTransaction,
    sale: &str,
    touched: impl IntoIterator<Item = Touched<'_>>,
) -> Result<(), StoreError> {
    let now = Millis::now().0;
    let rows: Vec<_> = touched
        .into_iter()
        .map(|touched| {
            let (kind, reference) = match touched {
                Touched::Order(id) => (ORDER, id.to_string()),
                Touched::Sale => (SALE, sale.to_owned()),
                Touched::Act(key) => (ACT, key.to_owned()),
                Touched::Payment { provider, event_id } => {
                    (PAYMENT, format!("{provider}{SEPARATOR}{event_id}"))
                }
            };
            log_outbox::ActiveModel {
                id: Set(Uuid::now_v7()),
                kind: Set(kind.to_owned()),
                sale_id: Set(sale.to_owned()),
                reference: Set(reference),
                at_ms: Set(now),
            }
        })
        .collect();
    insert_new(transaction, rows).await
}
