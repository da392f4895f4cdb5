//! The settings without which a COMMIT is not durable.

use sea_orm::{ConnectionTrait as _, DbBackend, Statement};

use super::error::StoreError;
use super::handle::Store;
use super::pooler::{MIXED, Sessions};
use super::session::SessionLimits;

impl Store {
    /// The settings of the database that break a promise, each with the value to set. Empty if all are right.
    pub async fn wrong_settings(&self) -> Result<Vec<String>, StoreError> {
        let checks: &[(&str, &str, &str)] = match self.db.get_database_backend() {
            DbBackend::Postgres => &[
                ("SHOW fsync", "on", "fsync = on"),
                ("SHOW synchronous_commit", "on remote_write remote_apply local", "synchronous_commit = on"),
                ("SHOW full_page_writes", "on", "full_page_writes = on"),
            ],
            DbBackend::MySql => &[(
                "SELECT CAST(@@innodb_flush_log_at_trx_commit AS CHAR)",
                "1",
                "innodb_flush_log_at_trx_commit = 1",
            )],
            _ => &[],
        };
        let mut wrong = Vec::new();
        match self.sessions().await? {
            None | Some(Sessions::Own) => {}
            Some(Sessions::Mixed) => return Ok(vec![MIXED.into()]),
            Some(Sessions::Shared) => wrong.extend(self.missing_limits().await?),
        }
        for (query, good, setting) in checks {
            let statement = Statement::from_string(self.db.get_database_backend(), *query);
            let row = self.within(async { Ok(self.db.query_one_raw(statement).await?) }).await?;
            let value: String = row.map(|row| row.try_get_by_index(0)).transpose()?.unwrap_or_default();
            if !good.split(' ').any(|good| good == value) {
                wrong.push(format!(
                    "the database has {query:?} = {value}: a power cut could lose a committed order; set {setting}"
                ));
            }
        }
        Ok(wrong)
    }

    /// Why a pooler before PostgreSQL cannot be used: it would run one client's statements for another. `None` if there
    /// is none, or a good one.
    pub async fn mixes_statements(&self) -> Result<Option<&'static str>, StoreError> {
        Ok((self.sessions().await? == Some(Sessions::Mixed)).then_some(MIXED))
    }

    async fn sessions(&self) -> Result<Option<Sessions>, StoreError> {
        if self.db.get_database_backend() != DbBackend::Postgres {
            return Ok(None);
        }
        let looking =
            async { self.pooler.sessions().await.map_err(|error| StoreError::Away(error.to_string())) };
        Ok(Some(self.within(looking).await?))
    }

    /// The limits that the role lacks: a session that a pooler lends to others cannot be given any.
    async fn missing_limits(&self) -> Result<Option<String>, StoreError> {
        let statement = Statement::from_string(
            DbBackend::Postgres,
            "SELECT name, setting = '0', current_user FROM pg_settings WHERE name IN \
             ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout') ORDER BY name",
        );
        let rows = self.within(async { Ok(self.db.query_all_raw(statement).await?) }).await?;
        let mut missing = Vec::new();
        for row in rows {
            let (name, is_missing, role): (String, bool, String) =
                (row.try_get_by_index(0)?, row.try_get_by_index(1)?, row.try_get_by_index(2)?);
            if is_missing {
                let limit = SessionLimits::new(self.timeout).of_role(&name).as_millis();
                missing.push(format!("ALTER ROLE {role} SET {name} = '{limit}ms'"));
            }
        }
        Ok((!missing.is_empty()).then(|| {
            format!(
                "database.url leads to a pooler that shares sessions, so their limits must be those of the role, or a \
                 transaction that nobody ends locks its rows for hours: run {}, and reconnect the pooler",
                missing.join("; ")
            )
        }))
    }
}
