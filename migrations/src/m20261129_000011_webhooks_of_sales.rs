//! What webhooks say of sales, and which types of events an endpoint is given.

use sea_orm_migration::prelude::*;
use sea_orm_migration::schema::{boolean, integer, string_len, string_len_null, uuid};

use crate::exact;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[derive(DeriveIden)]
enum WebhookSales {
    Table,
    SaleId,
    SubjectId,
    Version,
    IsSoldOut,
    BooksAreBroken,
}

#[derive(DeriveIden)]
enum WebhookEndpoints {
    Table,
    Types,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let sales = exact(Table::create().table(WebhookSales::Table), manager)
            .if_not_exists()
            .col(string_len(WebhookSales::SaleId, 40).primary_key())
            // Stands for the sale where events of orders have the order's id.
            .col(uuid(WebhookSales::SubjectId))
            // Of the last event of the sale.
            .col(integer(WebhookSales::Version))
            .col(boolean(WebhookSales::IsSoldOut))
            .col(boolean(WebhookSales::BooksAreBroken))
            .to_owned();
        manager.create_table(sales).await?;
        if manager.has_column("webhook_endpoints", "types").await? {
            return Ok(());
        }
        // Separated by spaces; NULL: all.
        let types = string_len_null(WebhookEndpoints::Types, 500);
        let add = Table::alter().table(WebhookEndpoints::Table).add_column(types).to_owned();
        manager.alter_table(add).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let drop =
            Table::alter().table(WebhookEndpoints::Table).drop_column(WebhookEndpoints::Types).to_owned();
        manager.alter_table(drop).await?;
        manager.drop_table(Table::drop().table(WebhookSales::Table).to_owned()).await
    }
}
