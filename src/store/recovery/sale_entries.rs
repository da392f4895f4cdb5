//! A sale for an export: its acts and its payments, as entries of the order log.

use sea_orm::{
    ColumnTrait as _, EntityTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _, Select,
};
use uuid::Uuid;

use super::entries::{act_entry, payment_entry};
use crate::domain::{Entry, SaleId};
use crate::store::entities::{payment_event, sale_act};
use crate::store::error::StoreError;
use crate::store::handle::Store;

/// Payments, of any sale, that one query reads.
const PAGE: u64 = 2_000;

impl Store {
    /// A sale with its acts, as entries; empty if there is no such sale.
    pub async fn sale_entries(&self, sale: &SaleId) -> Result<Vec<Entry>, StoreError> {
        self.within(async {
            let Some(entry) = self.sale_entry(sale.as_str()).await? else { return Ok(Vec::new()) };
            let mut entries = vec![Entry::Sale(Box::new(entry))];
            let acts = sale_act::Entity::find()
                .filter(sale_act::Column::SaleId.eq(sale.as_str()))
                .order_by_asc(sale_act::Column::AtMs)
                .all(&self.db)
                .await?;
            for act in acts {
                entries.push(Entry::Act(Box::new(act_entry(act)?)));
            }
            Ok(entries)
        })
        .await
    }

    /// The payment events of a sale, page by page. Each event that is there when the reading begins is in exactly one
    /// page, as it is when that page is read.
    pub fn payment_pages<'a>(&'a self, sale: &'a SaleId) -> PaymentPages<'a> {
        PaymentPages { store: self, sale, after: None, is_done: false }
    }
}

/// Goes through the payment events of a sale: see [`Store::payment_pages`]. It follows the index by order, which is that
/// of all sales, so that no page needs a sort.
pub struct PaymentPages<'a> {
    store: &'a Store,
    sale: &'a SaleId,
    after: Option<Uuid>,
    is_done: bool,
}

impl PaymentPages<'_> {
    /// The next page, perhaps empty, read within the time limit of one query; `None` at the end. After an error the
    /// same page can be read again.
    pub async fn next(&mut self) -> Result<Option<Vec<Entry>>, StoreError> {
        if self.is_done {
            return Ok(None);
        }
        let (store, after) = (self.store, self.after);
        let (entries, boundary) = store
            .within(async {
                let boundary: Option<Uuid> = events_after(after)
                    .select_only()
                    .column(payment_event::Column::OrderId)
                    .order_by_asc(payment_event::Column::OrderId)
                    .offset(PAGE - 1)
                    .limit(1)
                    .into_tuple()
                    .one(&store.db)
                    .await?;
                let mut page =
                    events_after(after).filter(payment_event::Column::SaleId.eq(self.sale.as_str()));
                if let Some(boundary) = boundary {
                    page = page.filter(payment_event::Column::OrderId.lte(boundary));
                }
                let events = page.order_by_asc(payment_event::Column::OrderId).all(&store.db).await?;
                let entries =
                    events.into_iter().map(|event| Ok(Entry::Payment(Box::new(payment_entry(event)?))));
                Ok((entries.collect::<Result<_, StoreError>>()?, boundary))
            })
            .await?;
        (self.after, self.is_done) = (boundary, boundary.is_none());
        Ok(Some(entries))
    }
}

fn events_after(after: Option<Uuid>) -> Select<payment_event::Entity> {
    let events = payment_event::Entity::find();
    match after {
        Some(after) => events.filter(payment_event::Column::OrderId.gt(after)),
        None => events,
    }
}
