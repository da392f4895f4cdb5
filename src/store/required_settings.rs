//! The settings without which a COMMIT is not durable.

use sea_orm::{ConnectionTrait as _, DbBackend, Statement};

use super::error::StoreError;
use super::handle::Store;

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
}
