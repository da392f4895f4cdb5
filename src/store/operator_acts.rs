//! Acts of operators that no other row records, and the list of all acts.

use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, EntityTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _,
};
use uuid::Uuid;

use super::clock;
use super::entities::{operator_act, sale_act};
use super::error::StoreError;
use super::handle::Store;
use crate::domain::{ActRequest, Millis};

/// The longest result, in characters.
const RESULT: usize = 500;

/// One act of an operator, for a list.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct OperatorAct {
    /// When it began, by the database's clock.
    pub at: Millis,
    /// `create`, `erase`, `dead-letter replay`, `dead-letter fail`, `lease release`, `backup mark`, one that begins with
    /// `settings` or `webhook`, or a kind of an act on a
    /// sale.
    pub kind: String,
    /// What it was done to: the id of a sale, of a dead letter or of an endpoint, a setting, or a scope of leases. Never the name of a person.
    pub subject: String,
    /// Who requested it.
    pub by: String,
    /// Why, in the requester's words.
    pub reason: Option<String>,
    /// The outcome in words. `None` if the process died before it was known.
    pub result: Option<String>,
}

/// An act that has begun, and whose result is still to be recorded.
#[derive(Debug, Clone, Copy)]
pub struct BegunOperatorAct(Uuid);

impl Store {
    /// Records an act before it is done. On return the row is durable.
    pub async fn begin_operator_act(
        &self,
        kind: &str,
        subject: &str,
        request: &ActRequest,
    ) -> Result<BegunOperatorAct, StoreError> {
        let id = Uuid::now_v7();
        self.within(async {
            let row = operator_act::ActiveModel {
                id: Set(id),
                kind: Set(kind.to_owned()),
                subject: Set(subject.to_owned()),
                actor: Set(request.by.clone()),
                reason: Set(request.reason.clone()),
                result: Set(None),
                at_ms: Set(clock::now(&self.db).await?.0),
            };
            operator_act::Entity::insert(row).exec_without_returning(&self.db).await?;
            Ok(BegunOperatorAct(id))
        })
        .await
    }

    /// Records how an act ended. May be repeated.
    pub async fn end_operator_act(&self, act: BegunOperatorAct, result: &str) -> Result<(), StoreError> {
        let result: String = result.chars().take(RESULT).collect();
        self.within(async {
            operator_act::Entity::update_many()
                .col_expr(operator_act::Column::Result, Expr::val(result))
                .filter(operator_act::Column::Id.eq(act.0))
                .exec(&self.db)
                .await?;
            Ok(())
        })
        .await
    }

    /// The latest acts of operators, on sales and otherwise, newest first.
    pub async fn latest_acts(&self, limit: u64) -> Result<Vec<OperatorAct>, StoreError> {
        let mut acts = self
            .within(async {
                // Not by the id alone, which has the time of the host.
                let rows = operator_act::Entity::find()
                    .order_by_desc(operator_act::Column::AtMs)
                    .order_by_desc(operator_act::Column::Id)
                    .limit(limit);
                Ok(rows.all(&self.db).await?.into_iter().map(OperatorAct::from).collect::<Vec<_>>())
            })
            .await?;
        let on_sales = self
            .within(async {
                let rows = sale_act::Entity::find()
                    .order_by_desc(sale_act::Column::AtMs)
                    .order_by_desc(sale_act::Column::Key)
                    .limit(limit);
                Ok(rows.all(&self.db).await?)
            })
            .await?;
        acts.extend(on_sales.into_iter().map(OperatorAct::from));
        acts.sort_by_key(|act| std::cmp::Reverse(act.at));
        acts.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(acts)
    }
}

impl From<operator_act::Model> for OperatorAct {
    fn from(row: operator_act::Model) -> Self {
        let operator_act::Model { id: _, kind, subject, actor, reason, result, at_ms } = row;
        Self { at: Millis(at_ms), kind, subject, by: actor, reason, result }
    }
}

impl From<sale_act::Model> for OperatorAct {
    fn from(row: sale_act::Model) -> Self {
        Self {
            at: Millis(row.at_ms),
            kind: row.kind,
            subject: row.sale_id,
            by: row.actor,
            reason: row.reason,
            result: row.result,
        }
    }
}
