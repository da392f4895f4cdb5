//! Changes still to be written to the order log, and the runs of replays.

use sea_orm_migration::prelude::*;
use sea_orm_migration::schema::{big_integer, big_integer_null, boolean, string_len, text, text_null, uuid};

use crate::exact;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[derive(DeriveIden)]
enum LogOutbox {
    Table,
    Id,
    Kind,
    SaleId,
    Reference,
    AtMs,
}

#[derive(DeriveIden)]
enum ReplayRuns {
    Table,
    Id,
    Source,
    Settings,
    State,
    Report,
    Actor,
    CancelAsked,
    AtMs,
    UpdatedAtMs,
    EndedAtMs,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager
            .create_table(
                exact(Table::create().table(LogOutbox::Table), manager)
                    .if_not_exists()
                    // UUIDv7, so roughly in order of time.
                    .col(uuid(LogOutbox::Id).primary_key())
                    // order, sale, act or payment.
                    .col(string_len(LogOutbox::Kind, 10))
                    .col(string_len(LogOutbox::SaleId, 40))
                    // The order's id, the act's key, or provider/event.
                    .col(string_len(LogOutbox::Reference, 150))
                    .col(big_integer(LogOutbox::AtMs))
                    .to_owned(),
            )
            .await?;
        manager
            .create_table(
                exact(Table::create().table(ReplayRuns::Table), manager)
                    .if_not_exists()
                    .col(uuid(ReplayRuns::Id).primary_key())
                    // outbox, dead-letters, log or file.
                    .col(string_len(ReplayRuns::Source, 16))
                    // JSON: filters, limits, the file.
                    .col(text(ReplayRuns::Settings))
                    // running, done, stopped, cancelled or failed.
                    .col(string_len(ReplayRuns::State, 16))
                    // JSON.
                    .col(text_null(ReplayRuns::Report))
                    .col(string_len(ReplayRuns::Actor, 100))
                    .col(boolean(ReplayRuns::CancelAsked))
                    .col(big_integer(ReplayRuns::AtMs))
                    .col(big_integer(ReplayRuns::UpdatedAtMs))
                    .col(big_integer_null(ReplayRuns::EndedAtMs))
                    .to_owned(),
            )
            .await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.drop_table(Table::drop().table(ReplayRuns::Table).to_owned()).await?;
        manager.drop_table(Table::drop().table(LogOutbox::Table).to_owned()).await
    }
}
