//! Replays: what was begun, how far it came, and how it ended.

use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, EntityTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _,
};
use uuid::Uuid;

use super::entities::replay_run;
use super::{Store, StoreError};
use crate::domain::Millis;

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Under way, or its process has died: then nobody holds its source's lease.
    Running,
    Done,
    /// Its process was asked to stop.
    Stopped,
    /// Somebody has asked for its end.
    Cancelled,
    Failed,
}

impl RunState {
    const ALL: [Self; 5] = [Self::Running, Self::Done, Self::Stopped, Self::Cancelled, Self::Failed];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

/// One replay.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Run {
    pub id: Uuid,
    pub source: String,
    /// JSON: what it was asked for.
    pub settings: String,
    pub state: RunState,
    /// JSON: what it has done.
    pub report: Option<String>,
    pub by: String,
    pub cancel_asked: bool,
    pub at: Millis,
    pub updated_at: Millis,
    pub ended_at: Option<Millis>,
}

impl Store {
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
            replay_run::Entity::insert(row).exec_without_returning(&self.db).await?;
            Ok(())
        })
        .await
    }

    /// Writes how far a run has come; with another state than `Running`, its end. The answer is whether
    /// somebody has asked for its end.
    pub async fn update_run(&self, id: Uuid, state: RunState, report: &str) -> Result<bool, StoreError> {
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
            Ok(row.is_some_and(|row| row.cancel_asked))
        })
        .await
    }

    /// It is under way again, and nobody has asked for its end. `None` where there is none, or it is done.
    pub async fn reopen_run(&self, id: Uuid) -> Result<Option<Run>, StoreError> {
        self.within(async {
            let updated = replay_run::Entity::update_many()
                .col_expr(replay_run::Column::State, Expr::val(RunState::Running.as_str()))
                .col_expr(replay_run::Column::CancelAsked, Expr::val(false))
                .col_expr(replay_run::Column::UpdatedAtMs, Expr::val(Millis::now().0))
                .col_expr(replay_run::Column::EndedAtMs, Expr::val(Option::<i64>::None))
                .filter(replay_run::Column::Id.eq(id))
                .filter(replay_run::Column::State.ne(RunState::Done.as_str()))
                .exec(&self.db)
                .await?;
            if updated.rows_affected == 0 {
                return Ok(None);
            }
            replay_run::Entity::find_by_id(id).one(&self.db).await?.map(read_run).transpose()
        })
        .await
    }

    /// Asks a run to end. `false` where there is none that runs.
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

    pub async fn run(&self, id: Uuid) -> Result<Option<Run>, StoreError> {
        self.within(async {
            replay_run::Entity::find_by_id(id).one(&self.db).await?.map(read_run).transpose()
        })
        .await
    }

    /// The newest first.
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
