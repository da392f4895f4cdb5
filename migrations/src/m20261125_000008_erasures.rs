//! Names that are to be erased from a sale as soon as it is archived.

use sea_orm_migration::prelude::*;
use sea_orm_migration::schema::{big_integer, string_len};

use crate::exact;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[derive(DeriveIden)]
enum Erasures {
    Table,
    SaleId,
    UserId,
    AskedAtMs,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let table = exact(Table::create().table(Erasures::Table), manager)
            .if_not_exists()
            .col(string_len(Erasures::SaleId, 40))
            .col(string_len(Erasures::UserId, 64))
            .col(big_integer(Erasures::AskedAtMs))
            .primary_key(Index::create().col(Erasures::SaleId).col(Erasures::UserId))
            .to_owned();
        manager.create_table(table).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.drop_table(Table::drop().table(Erasures::Table).to_owned()).await
    }
}
