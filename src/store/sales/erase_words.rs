//! A person's name in the words of operators: in the reasons of their acts and settings, in the histories of orders, and in
//! what they showed buyers.

use sea_orm::sea_query::{Expr, ExprTrait as _, Func, SimpleExpr};
use sea_orm::{ColumnTrait as _, EntityTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _};
use uuid::Uuid;

use crate::domain::UserId;
use crate::store::entities::{live_setting, operator_act, order_event, sale_act};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::is_one_of;
use crate::store::states::ActState;

/// Changes of orders that are searched in one statement: few enough for its time limit on a slow disk.
const PAGE: u64 = 50_000;

impl Store {
    /// Removes every reason, and every message to buyers of an act that has ended, that names the user as a word. May be
    /// repeated.
    pub(super) async fn erase_in_words(&self, user: &UserId) -> Result<(), StoreError> {
        let of_sales: Vec<(String, String, String)> = sale_act::Entity::find()
            .select_only()
            .columns([sale_act::Column::SaleId, sale_act::Column::Key, sale_act::Column::Reason])
            .filter(may_name(user, Expr::col(sale_act::Column::Reason)))
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
        let with_message: Vec<(String, String, String)> = sale_act::Entity::find()
            .select_only()
            .columns([sale_act::Column::SaleId, sale_act::Column::Key, sale_act::Column::Args])
            .filter(may_name(user, Expr::col(sale_act::Column::Args)))
            .filter(sale_act::Column::State.ne(ActState::Pending.as_str()))
            .into_tuple()
            .all(&self.db)
            .await?;
        for (sale, key, args) in with_message {
            let Some(args) = without_message(&args, user) else { continue };
            sale_act::Entity::update_many()
                .col_expr(sale_act::Column::Args, Expr::val(args))
                .filter(sale_act::Column::SaleId.eq(sale))
                .filter(sale_act::Column::Key.eq(key))
                .exec(&self.db)
                .await?;
        }
        self.erase_in_other_reasons(user).await
    }

    /// Removes the reasons in the histories of all orders that name the user as a word; their own orders lose every reason.
    pub(super) async fn erase_in_histories(&self, user: &UserId) -> Result<(), StoreError> {
        let mut after = Uuid::nil();
        while let Some(last) = self.within(self.erase_in_page(user, after)).await? {
            after = last;
        }
        Ok(())
    }

    /// The same in the orders of the next changes. Returns the last of these orders; `None` if there are no more.
    async fn erase_in_page(&self, user: &UserId, after: Uuid) -> Result<Option<Uuid>, StoreError> {
        let page: Vec<Uuid> = order_event::Entity::find()
            .select_only()
            .column(order_event::Column::OrderId)
            .filter(order_event::Column::OrderId.gt(after))
            .order_by_asc(order_event::Column::OrderId)
            .limit(PAGE)
            .into_tuple()
            .all(&self.db)
            .await?;
        let Some(last) = page.last().copied() else { return Ok(None) };
        let named: Vec<(Uuid, i32, String)> = order_event::Entity::find()
            .select_only()
            .columns([
                order_event::Column::OrderId,
                order_event::Column::Version,
                order_event::Column::Reason,
            ])
            .filter(order_event::Column::OrderId.gt(after))
            .filter(order_event::Column::OrderId.lte(last))
            .filter(may_name(user, Expr::col(order_event::Column::Reason)))
            .into_tuple()
            .all(&self.db)
            .await?;
        for (order, version, _) in named.into_iter().filter(|(_, _, reason)| names(reason, user)) {
            order_event::Entity::update_many()
                .col_expr(order_event::Column::Reason, Expr::val(Option::<String>::None))
                .filter(order_event::Column::OrderId.eq(order))
                .filter(order_event::Column::Version.eq(version))
                .exec(&self.db)
                .await?;
        }
        Ok(Some(last))
    }

    /// Removes the reasons of acts that concern no sale, and those of settings.
    async fn erase_in_other_reasons(&self, user: &UserId) -> Result<(), StoreError> {
        let others: Vec<(Uuid, String)> = operator_act::Entity::find()
            .select_only()
            .columns([operator_act::Column::Id, operator_act::Column::Reason])
            .filter(may_name(user, Expr::col(operator_act::Column::Reason)))
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
            .filter(may_name(user, Expr::col(live_setting::Column::Reason)))
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
}

/// Finds more than whole words; [`names`] sorts out the rest.
fn may_name(user: &UserId, column: SimpleExpr) -> SimpleExpr {
    Expr::expr(Func::lower(column)).like(format!("%{}%", user.as_str().to_lowercase()))
}

/// The arguments of an act without the message to buyers, if that names the user.
fn without_message(args: &str, user: &UserId) -> Option<String> {
    let mut args: serde_json::Value = serde_json::from_str(args).ok()?;
    let message =
        args.get_mut("message").filter(|message| message.as_str().is_some_and(|text| names(text, user)))?;
    *message = serde_json::Value::Null;
    Some(args.to_string())
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
