//! Replays: when they began, how far they have come, and how they ended.

use std::collections::BTreeSet;

use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _,
    QueryOrder as _, QuerySelect as _,
};
use uuid::Uuid;

use crate::domain::Millis;
use crate::store::entities::replay_run;
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::places::advance;
use crate::store::states::RunState;

/// One replay.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Run {
    /// Its id.
    pub id: Uuid,
    /// `outbox`, `dead-letters`, `log` or `file`.
    pub source: String,
    /// The request, as JSON.
    pub settings: String,
    /// How far it has come.
    pub state: RunState,
    /// The work done so far, as JSON.
    pub report: Option<String>,
    /// Who requested it.
    pub by: String,
    /// Whether an operator has asked it to end.
    pub cancel_asked: bool,
    /// When it began.
    pub at: Millis,
    /// When it last reported.
    pub updated_at: Millis,
    /// When it ended.
    pub ended_at: Option<Millis>,
}

impl Store {
    /// Records a new run, and advances the place of the replay: a database that goes back to before this moment is found
    /// to be behind. A process runs the replays of one source only.
    pub async fn begin_run(&self, run: &Run) -> Result<(), StoreError> {
        let row = replay_run::ActiveModel {
            id: Set(run.id),
            source: Set(run.source.clone()),
            settings: Set(run.settings.clone()),
            state: Set(run.state.as_str().into()),
            report: Set(run.report.clone()),
            actor: Set(run.by.clone()),
            cancel_asked: Set(false),
            at_ms: Set(run.at.0),
            updated_at_ms: Set(run.updated_at.0),
            ended_at_ms: Set(None),
        };
        self.within(async {
            let transaction = self.begin_restoring().await?;
            replay_run::Entity::insert(row).exec_without_returning(&transaction).await?;
            self.commit_run(transaction, &run.source).await
        })
        .await
    }

    async fn commit_run(&self, transaction: DatabaseTransaction, source: &str) -> Result<(), StoreError> {
        let places = advance(&transaction, &BTreeSet::from([self.witnesses.begin_replay(source)])).await?;
        transaction.commit().await?;
        for (replay, place) in places {
            self.witnesses.observe(&replay, place);
        }
        Ok(())
    }

    /// Records how far a run has come; any state but `Running` ends it. Returns whether an operator has asked it to
    /// end; `None` if there is no such run: a run is never deleted, so the database was restored meanwhile.
    pub async fn update_run(
        &self,
        id: Uuid,
        state: RunState,
        report: &str,
    ) -> Result<Option<bool>, StoreError> {
        let now = Millis::now().0;
        self.within(async {
            let ended = (state != RunState::Running).then_some(now);
            replay_run::Entity::update_many()
                .col_expr(replay_run::Column::State, Expr::val(state.as_str()))
                .col_expr(replay_run::Column::Report, Expr::val(report))
                .col_expr(replay_run::Column::UpdatedAtMs, Expr::val(now))
                .col_expr(replay_run::Column::EndedAtMs, Expr::val(ended))
                .filter(replay_run::Column::Id.eq(id))
                .exec(&self.db)
                .await?;
            let row = replay_run::Entity::find_by_id(id).one(&self.db).await?;
            Ok(row.map(|row| row.cancel_asked))
        })
        .await
    }

    /// Sets a run to running again, and clears a request to cancel it. `None` if the run is done or does not exist.
    pub async fn reopen_run(&self, id: Uuid) -> Result<Option<Run>, StoreError> {
        self.within(async {
            let transaction = self.begin_restoring().await?;
            let updated = replay_run::Entity::update_many()
                .col_expr(replay_run::Column::State, Expr::val(RunState::Running.as_str()))
                .col_expr(replay_run::Column::CancelAsked, Expr::val(false))
                .col_expr(replay_run::Column::UpdatedAtMs, Expr::val(Millis::now().0))
                .col_expr(replay_run::Column::EndedAtMs, Expr::val(Option::<i64>::None))
                .filter(replay_run::Column::Id.eq(id))
                .filter(replay_run::Column::State.ne(RunState::Done.as_str()))
                .exec(&transaction)
                .await?;
            if updated.rows_affected == 0 {
                transaction.rollback().await?;
                return Ok(None);
            }
            let Some(run) = replay_run::Entity::find_by_id(id).one(&transaction).await? else {
                return Ok(None);
            };
            self.commit_run(transaction, &run.source).await?;
            read_run(run).map(Some)
        })
        .await
    }

    /// Asks a run to end. Returns `false` if no such run is running.
    pub async fn cancel_run(&self, id: Uuid) -> Result<bool, StoreError> {
        self.within(async {
            let updated = replay_run::Entity::update_many()
                .col_expr(replay_run::Column::CancelAsked, Expr::val(true))
                .filter(replay_run::Column::Id.eq(id))
                .filter(replay_run::Column::State.eq(RunState::Running.as_str()))
                .exec(&self.db)
                .await?;
            Ok(updated.rows_affected > 0)
        })
        .await
    }

    /// A run; `None` if there is none with this id.
    pub async fn run(&self, id: Uuid) -> Result<Option<Run>, StoreError> {
        self.within(async {
            replay_run::Entity::find_by_id(id).one(&self.db).await?.map(read_run).transpose()
        })
        .await
    }

    /// The runs, newest first.
    pub async fn runs(&self, limit: u64) -> Result<Vec<Run>, StoreError> {
        self.within(async {
            let rows = replay_run::Entity::find()
                .order_by_desc(replay_run::Column::AtMs)
                .limit(limit)
                .all(&self.db)
                .await?;
            rows.into_iter().map(read_run).collect()
        })
        .await
    }
}

/// A run's row as a domain value.
fn read_run(row: replay_run::Model) -> Result<Run, StoreError> {
    let state = RunState::ALL.into_iter().find(|state| state.as_str() == row.state);
    let state = state.ok_or_else(|| StoreError::unreadable("a replay", &row))?;
    Ok(Run {
        id: row.id,
        source: row.source,
        settings: row.settings,
        state,
        report: row.report,
        by: row.actor,
        cancel_asked: row.cancel_asked,
        at: Millis(row.at_ms),
        updated_at: Millis(row.updated_at_ms),
        ended_at: row.ended_at_ms.map(Millis),
    })
}
