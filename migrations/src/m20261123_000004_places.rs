//! How far the database has come with each sale, and from when on the order log may be ahead of it.

use sea_orm_migration::prelude::*;
use sea_orm_migration::schema::{big_integer, integer, string_len};

use crate::exact;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[derive(DeriveIden)]
enum Places {
    Table,
    SaleId,
    Line,
    Number,
}

#[derive(DeriveIden)]
enum LogPosition {
    Table,
    Id,
    ReplayFromMs,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager
            .create_table(
                exact(Table::create().table(Places::Table), manager)
                    .if_not_exists()
                    .col(string_len(Places::SaleId, 40).primary_key())
                    // Rises each time a database that went back is brought up to date.
                    .col(big_integer(Places::Line))
                    // Rises with each committed change of the sale.
                    .col(big_integer(Places::Number))
                    .to_owned(),
            )
            .await?;
        manager
            .create_table(
                exact(Table::create().table(LogPosition::Table), manager)
                    .if_not_exists()
                    // Always 1.
                    .col(integer(LogPosition::Id).primary_key())
                    // Every entry of the order log that is older than this is in the database.
                    .col(big_integer(LogPosition::ReplayFromMs))
                    .to_owned(),
            )
            .await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.drop_table(Table::drop().table(LogPosition::Table).to_owned()).await?;
        manager.drop_table(Table::drop().table(Places::Table).to_owned()).await
    }
}
