//! Which installation the database belongs to.

use sea_orm_migration::prelude::*;
use sea_orm_migration::schema::{integer, string_len};

use crate::exact;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[derive(DeriveIden)]
enum Installation {
    Table,
    Only,
    Id,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager
            .create_table(
                exact(Table::create().table(Installation::Table), manager)
                    .if_not_exists()
                    // Always 1.
                    .col(integer(Installation::Only).primary_key())
                    // The UUID that Redis and the broker carry too.
                    .col(string_len(Installation::Id, 36))
                    .to_owned(),
            )
            .await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.drop_table(Table::drop().table(Installation::Table).to_owned()).await
    }
}
