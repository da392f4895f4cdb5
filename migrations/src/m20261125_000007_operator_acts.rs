//! Acts of operators that belong to no row of their own: creating a sale, deciding on a dead letter, erasing a name.

use sea_orm_migration::prelude::*;
use sea_orm_migration::schema::{big_integer, string_len, string_len_null, uuid};

use crate::exact;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[derive(DeriveIden)]
enum OperatorActs {
    Table,
    Id,
    Kind,
    Subject,
    Actor,
    Reason,
    Result,
    AtMs,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let table = exact(Table::create().table(OperatorActs::Table), manager)
            .if_not_exists()
            // Of version 7, so that it sorts by time.
            .col(uuid(OperatorActs::Id).primary_key())
            .col(string_len(OperatorActs::Kind, 40))
            .col(string_len(OperatorActs::Subject, 100))
            .col(string_len(OperatorActs::Actor, 100))
            .col(string_len_null(OperatorActs::Reason, 200))
            // NULL until the act has ended.
            .col(string_len_null(OperatorActs::Result, 500))
            .col(big_integer(OperatorActs::AtMs))
            .to_owned();
        manager.create_table(table).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.drop_table(Table::drop().table(OperatorActs::Table).to_owned()).await
    }
}
