//! Endpoints of webhooks, states of orders that no endpoint has been given yet, and deliveries that are not done.

use sea_orm_migration::prelude::*;
use sea_orm_migration::schema::{big_integer, big_integer_null, integer, string_len, string_len_null, uuid};

use crate::exact;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[derive(DeriveIden)]
enum WebhookEndpoints {
    Table,
    Id,
    Url,
    Secrets,
    State,
    OffReason,
    FailingSinceMs,
    CreatedAtMs,
}

#[derive(DeriveIden)]
enum WebhookEvents {
    Table,
    OrderId,
    Version,
    SaleId,
    Status,
    AtMs,
}

#[derive(DeriveIden)]
enum WebhookDeliveries {
    Table,
    EndpointId,
    OrderId,
    Version,
    SaleId,
    Status,
    AtMs,
    Tries,
    DueAtMs,
    LastError,
}

const DUE: &str = "webhook_deliveries_due";

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        for table in [endpoints(manager), events(manager), deliveries(manager)] {
            manager.create_table(table).await?;
        }
        if manager.has_index("webhook_deliveries", DUE).await? {
            return Ok(());
        }
        let due = Index::create()
            .name(DUE)
            .table(WebhookDeliveries::Table)
            .col(WebhookDeliveries::EndpointId)
            .col(WebhookDeliveries::DueAtMs)
            .to_owned();
        manager.create_index(due).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.drop_table(Table::drop().table(WebhookDeliveries::Table).to_owned()).await?;
        manager.drop_table(Table::drop().table(WebhookEvents::Table).to_owned()).await?;
        manager.drop_table(Table::drop().table(WebhookEndpoints::Table).to_owned()).await
    }
}

fn endpoints(manager: &SchemaManager<'_>) -> TableCreateStatement {
    exact(Table::create().table(WebhookEndpoints::Table), manager)
        .if_not_exists()
        .col(string_len(WebhookEndpoints::Id, 40).primary_key())
        .col(string_len(WebhookEndpoints::Url, 500))
        // Separated by spaces: several while one is being rotated.
        .col(string_len(WebhookEndpoints::Secrets, 500))
        // on or off.
        .col(string_len(WebhookEndpoints::State, 16))
        .col(string_len_null(WebhookEndpoints::OffReason, 200))
        // Since when nothing was delivered; NULL after a success.
        .col(big_integer_null(WebhookEndpoints::FailingSinceMs))
        .col(big_integer(WebhookEndpoints::CreatedAtMs))
        .to_owned()
}

/// A row leaves when the endpoints have their deliveries.
fn events(manager: &SchemaManager<'_>) -> TableCreateStatement {
    exact(Table::create().table(WebhookEvents::Table), manager)
        .if_not_exists()
        .col(uuid(WebhookEvents::OrderId))
        .col(integer(WebhookEvents::Version))
        .col(string_len(WebhookEvents::SaleId, 40))
        .col(string_len(WebhookEvents::Status, 16))
        .col(big_integer(WebhookEvents::AtMs))
        .primary_key(Index::create().col(WebhookEvents::OrderId).col(WebhookEvents::Version))
        .to_owned()
}

/// A row leaves when its endpoint has answered 2xx.
fn deliveries(manager: &SchemaManager<'_>) -> TableCreateStatement {
    exact(Table::create().table(WebhookDeliveries::Table), manager)
        .if_not_exists()
        .col(string_len(WebhookDeliveries::EndpointId, 40))
        .col(uuid(WebhookDeliveries::OrderId))
        .col(integer(WebhookDeliveries::Version))
        .col(string_len(WebhookDeliveries::SaleId, 40))
        .col(string_len(WebhookDeliveries::Status, 16))
        .col(big_integer(WebhookDeliveries::AtMs))
        .col(integer(WebhookDeliveries::Tries))
        // NULL: given up, until an operator has it delivered again.
        .col(big_integer_null(WebhookDeliveries::DueAtMs))
        .col(string_len_null(WebhookDeliveries::LastError, 200))
        .primary_key(
            Index::create()
                .col(WebhookDeliveries::EndpointId)
                .col(WebhookDeliveries::OrderId)
                .col(WebhookDeliveries::Version),
        )
        .to_owned()
}
