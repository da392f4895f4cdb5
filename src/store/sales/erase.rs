//! Replacing the name of a person who asks to be forgotten.

use sea_orm::sea_query::{Expr, ExprTrait as _, Func, SimpleExpr};
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _,
    QueryOrder as _, QuerySelect as _,
};
use uuid::Uuid;

use crate::domain::{Millis, SaleId, SaleState, UserId};
use crate::store::entities::{
    erasure, gate_return, live_setting, operator_act, order, order_event, payment_event, sale_act, user_units,
};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::log_outbox::{Touched, log};
use crate::store::many::is_one_of;

/// Orders put into the log outbox in one statement.
const CHUNK: usize = 1_000;

/// The outcome of erasing a person's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Erased {
    /// The name that replaces theirs; a new one for each call.
    pub pseudonym: UserId,
    /// Orders in which the name was replaced.
    pub orders: u64,
    /// Sales that still hold the name, because they are not archived. It is erased from them once they are.
    pub left: Vec<SaleId>,
}

/// A name that is erased from a sale as soon as the sale is archived.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Erasure {
    /// The sale.
    pub sale: SaleId,
    /// The name.
    pub user: UserId,
    /// When it was asked for.
    pub asked_at: Millis,
}

impl Store {
    /// Replaces a user by a pseudonym in every archived sale, one sale after the other. For the others that know them,
    /// and for those of `in_gate`, it records that the name is to go. Clears the reasons of all acts that name the user as
    /// a word. May be repeated, with a different pseudonym for the sales that were left.
    pub async fn erase_user(&self, user: &UserId, in_gate: &[SaleId]) -> Result<Erased, StoreError> {
        let mut erased = Erased { pseudonym: pseudonym()?, orders: 0, left: Vec::new() };
        // People write names into reasons. No sale needs the reasons of its acts to run.
        self.within(self.erase_in_reasons_of_acts(user)).await?;
        // Sale by sale, because the indexes begin with the sale.
        for row in self.sales().await? {
            let sale = row.sale.id;
            if row.state == SaleState::Archived {
                erased.orders += self.within(self.rename(&sale, user, &erased.pseudonym)).await?;
            } else if in_gate.contains(&sale) || self.knows(&sale, user).await? {
                self.ask_erasure(&sale, user).await?;
                erased.left.push(sale);
            }
        }
        Ok(erased)
    }

    /// The names that wait for their sale to be archived, oldest first.
    pub async fn erasures(&self) -> Result<Vec<Erasure>, StoreError> {
        let rows = self
            .within(async {
                let all = erasure::Entity::find().order_by_asc(erasure::Column::AskedAtMs);
                Ok(all.all(&self.db).await?)
            })
            .await?;
        rows.into_iter()
            .map(|row| {
                let broken = |error: crate::domain::Invalid| StoreError::Broken(error.to_string());
                Ok(Erasure {
                    sale: SaleId::parse(row.sale_id).map_err(broken)?,
                    user: UserId::parse(row.user_id).map_err(broken)?,
                    asked_at: Millis(row.asked_at_ms),
                })
            })
            .collect()
    }

    /// Erases a name from an archived sale, under a new pseudonym, and forgets that it was asked for. Returns how many
    /// orders had it. May be repeated.
    pub async fn finish_erasure(&self, erasure: &Erasure) -> Result<u64, StoreError> {
        // Of acts since it was asked for.
        self.within(self.erase_in_reasons_of_acts(&erasure.user)).await?;
        self.within(self.rename(&erasure.sale, &erasure.user, &pseudonym()?)).await
    }

    async fn ask_erasure(&self, sale: &SaleId, user: &UserId) -> Result<(), StoreError> {
        let row = erasure::ActiveModel {
            sale_id: Set(sale.to_string()),
            user_id: Set(user.to_string()),
            asked_at_ms: Set(Millis::now().0),
        };
        self.within(async {
            erasure::Entity::insert(row)
                .on_conflict(self.skip_existing(erasure::Column::SaleId))
                .exec_without_returning(&self.db)
                .await?;
            Ok(())
        })
        .await
    }

    async fn knows(&self, sale: &SaleId, user: &UserId) -> Result<bool, StoreError> {
        let key = (sale.to_string(), user.to_string());
        self.within(async {
            let units = user_units::Entity::find_by_id(key).one(&self.db).await?.is_some();
            let orders = order::Entity::find()
                .filter(order::Column::SaleId.eq(sale.as_str()))
                .filter(order::Column::UserId.eq(user.as_str()))
                .one(&self.db);
            Ok(units || orders.await?.is_some())
        })
        .await
    }

    /// Acts on sales, and others. Both tables have a row per act of an operator.
    async fn erase_in_reasons_of_acts(&self, user: &UserId) -> Result<(), StoreError> {
        // Finds more than whole words; the rest is sorted out below.
        let may_name = |column: SimpleExpr| {
            Expr::expr(Func::lower(column)).like(format!("%{}%", user.as_str().to_lowercase()))
        };
        let of_sales: Vec<(String, String, String)> = sale_act::Entity::find()
            .select_only()
            .columns([sale_act::Column::SaleId, sale_act::Column::Key, sale_act::Column::Reason])
            .filter(may_name(Expr::col(sale_act::Column::Reason)))
            .into_tuple()
            .all(&self.db)
            .await?;
        for (sale, key, _) in of_sales.into_iter().filter(|(_, _, reason)| names(reason, user)) {
            sale_act::Entity::update_many()
                .col_expr(sale_act::Column::Reason, Expr::val(Option::<String>::None))
                .filter(sale_act::Column::SaleId.eq(sale))
                .filter(sale_act::Column::Key.eq(key))
                .exec(&self.db)
                .await?;
        }
        let others: Vec<(Uuid, String)> = operator_act::Entity::find()
            .select_only()
            .columns([operator_act::Column::Id, operator_act::Column::Reason])
            .filter(may_name(Expr::col(operator_act::Column::Reason)))
            .into_tuple()
            .all(&self.db)
            .await?;
        let ids = others.into_iter().filter(|(_, reason)| names(reason, user)).map(|(id, _)| id);
        operator_act::Entity::update_many()
            .col_expr(operator_act::Column::Reason, Expr::val(Option::<String>::None))
            .filter(is_one_of(&self.db, operator_act::Column::Id, ids))
            .exec(&self.db)
            .await?;
        let of_settings: Vec<(String, String)> = live_setting::Entity::find()
            .select_only()
            .columns([live_setting::Column::Name, live_setting::Column::Reason])
            .filter(may_name(Expr::col(live_setting::Column::Reason)))
            .into_tuple()
            .all(&self.db)
            .await?;
        let set = of_settings.into_iter().filter(|(_, reason)| names(reason, user)).map(|(name, _)| name);
        live_setting::Entity::update_many()
            .col_expr(live_setting::Column::Reason, Expr::val(Option::<String>::None))
            .filter(is_one_of(&self.db, live_setting::Column::Name, set))
            .exec(&self.db)
            .await?;
        Ok(())
    }

    async fn rename(&self, sale: &SaleId, user: &UserId, to: &UserId) -> Result<u64, StoreError> {
        let transaction = self.begin().await?;
        let ids: Vec<Uuid> = order::Entity::find()
            .select_only()
            .column(order::Column::Id)
            .filter(order::Column::SaleId.eq(sale.as_str()))
            .filter(order::Column::UserId.eq(user.as_str()))
            .order_by_asc(order::Column::Id)
            .lock_exclusive()
            .into_tuple()
            .all(&transaction)
            .await?;
        erase_in_payments(&transaction, sale, user, &ids).await?;
        gate_return::Entity::update_many()
            .col_expr(gate_return::Column::UserId, Expr::val(to.as_str()))
            .filter(is_one_of(&transaction, gate_return::Column::OrderId, ids.iter().copied()))
            .exec(&transaction)
            .await?;
        user_units::Entity::update_many()
            .col_expr(user_units::Column::UserId, Expr::val(to.as_str()))
            .filter(user_units::Column::SaleId.eq(sale.as_str()))
            .filter(user_units::Column::UserId.eq(user.as_str()))
            .exec(&transaction)
            .await?;
        // People write names into reasons.
        order_event::Entity::update_many()
            .col_expr(order_event::Column::Reason, Expr::val(Option::<String>::None))
            .filter(is_one_of(&transaction, order_event::Column::OrderId, ids.iter().copied()))
            .exec(&transaction)
            .await?;
        // A new version, so that a replay of the log does not bring the name back.
        let orders = order::Entity::update_many()
            .col_expr(order::Column::UserId, Expr::val(to.as_str()))
            .col_expr(order::Column::Version, Expr::col(order::Column::Version).add(1))
            .filter(is_one_of(&transaction, order::Column::Id, ids.iter().copied()))
            .exec(&transaction)
            .await?;
        erasure::Entity::delete_by_id((sale.to_string(), user.to_string())).exec(&transaction).await?;
        for ids in ids.chunks(CHUNK) {
            let touched = ids.iter().map(|id| Touched::Order((*id).into()));
            log(&transaction, sale.as_str(), touched).await?;
        }
        self.commit(transaction, &[sale.as_str()]).await?;
        Ok(orders.rows_affected)
    }
}

/// Whether a text has the name as a word of its own, in any case of letters.
fn names(text: &str, user: &UserId) -> bool {
    let (text, name) = (text.to_lowercase(), user.as_str().to_lowercase());
    text.match_indices(&name).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + name.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    })
}

fn pseudonym() -> Result<UserId, StoreError> {
    UserId::parse(format!("erased-{}", Uuid::new_v4().simple()))
        .map_err(|error| StoreError::Broken(error.to_string()))
}

/// Removes the name from payment events for these orders, and from events that name the user for another's order.
async fn erase_in_payments(
    transaction: &DatabaseTransaction,
    sale: &SaleId,
    user: &UserId,
    orders: &[Uuid],
) -> Result<(), StoreError> {
    let theirs = sea_orm::Condition::any()
        .add(is_one_of(transaction, payment_event::Column::OrderId, orders.iter().copied()))
        .add(payment_event::Column::UserId.eq(user.as_str()));
    let events: Vec<(String, String)> = payment_event::Entity::find()
        .select_only()
        .columns([payment_event::Column::Provider, payment_event::Column::EventId])
        .filter(payment_event::Column::SaleId.eq(sale.as_str()))
        .filter(theirs.clone())
        .into_tuple()
        .all(transaction)
        .await?;
    payment_event::Entity::update_many()
        .col_expr(payment_event::Column::UserId, Expr::val(Option::<String>::None))
        .col_expr(payment_event::Column::UpdatedAtMs, Expr::val(Millis::now().0))
        .filter(payment_event::Column::SaleId.eq(sale.as_str()))
        .filter(theirs)
        .exec(transaction)
        .await?;
    let touched = events.iter().map(|(provider, event_id)| Touched::Payment { provider, event_id });
    log(transaction, sale.as_str(), touched).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_as_a_word() {
        let named = |text: &str, user: &str| names(text, &UserId::parse(user).expect("a user"));
        assert!(named("Ada called us", "ada") && named("asked by (ada).", "ada") && named("7", "7"));
        assert!(!named("the adapter broke", "ada") && !named("17 boxes", "7") && !named("", "ada"));
        assert!(named("canada, then Ada", "ada"), "a later word counts too");
    }
}
