//! When the last backup of the database was made.

use sea_orm_migration::prelude::*;
use sea_orm_migration::schema::{big_integer, integer};

#[derive(DeriveMigrationName)]
pub struct Migration;

#[derive(DeriveIden)]
enum Backup {
    Table,
    Only,
    MadeAtMs,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager
            .create_table(
                Table::create()
                    .table(Backup::Table)
                    .if_not_exists()
                    // Always 1.
                    .col(integer(Backup::Only).primary_key())
                    .col(big_integer(Backup::MadeAtMs))
                    .to_owned(),
            )
            .await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.drop_table(Table::drop().table(Backup::Table).to_owned()).await
    }
}
