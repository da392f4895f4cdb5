//! Settings that an operator has changed for all running processes.

use sea_orm_migration::prelude::*;
use sea_orm_migration::schema::{big_integer, string_len, string_len_null};

use crate::exact;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[derive(DeriveIden)]
enum LiveSettings {
    Table,
    Name,
    Value,
    Actor,
    Reason,
    SetAtMs,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let table = exact(Table::create().table(LiveSettings::Table), manager)
            .if_not_exists()
            // A key of the configuration, such as `worker.lanes`.
            .col(string_len(LiveSettings::Name, 64).primary_key())
            .col(string_len(LiveSettings::Value, 200))
            .col(string_len(LiveSettings::Actor, 100))
            .col(string_len_null(LiveSettings::Reason, 200))
            .col(big_integer(LiveSettings::SetAtMs))
            .to_owned();
        manager.create_table(table).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.drop_table(Table::drop().table(LiveSettings::Table).to_owned()).await
    }
}
