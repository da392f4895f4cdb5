//! Sales, their items, orders, and the units each user holds.

use sea_orm_migration::prelude::*;
use sea_orm_migration::schema::{
    big_integer, big_integer_null, integer, string_len, string_len_null, uuid, uuid_null,
};

use crate::exact;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[derive(DeriveIden)]
enum Sales {
    Table,
    Id,
    Name,
    State,
    OpensAtMs,
    ClosesAtMs,
    LimitPerUser,
    Epoch,
    Seq,
    CreatedAtMs,
    UpdatedAtMs,
}

#[derive(DeriveIden)]
enum Items {
    Table,
    SaleId,
    Sku,
    Stock,
    Sold,
    Version,
}

#[derive(DeriveIden)]
enum Orders {
    Table,
    Id,
    SaleId,
    UserId,
    Sku,
    Quantity,
    Status,
    Failure,
    Epoch,
    Seq,
    LimitPerUser,
    Fence,
    AttemptId,
    KeyDigest,
    LiveKey,
    Fingerprint,
    Version,
    AcceptedAtMs,
    RecordedAtMs,
    UpdatedAtMs,
}

#[derive(DeriveIden)]
enum UserUnits {
    Table,
    SaleId,
    UserId,
    Units,
    Fence,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.create_table(sales(manager)).await?;
        manager.create_table(items(manager)).await?;
        manager.create_table(orders(manager)).await?;
        let index = |name: &str| {
            Index::create().name(name).table(Orders::Table).col(Orders::SaleId).unique().to_owned()
        };
        for (name, columns) in [
            ("orders_sale_user_live_key", [Orders::UserId, Orders::LiveKey]),
            ("orders_sale_number", [Orders::Epoch, Orders::Seq]),
        ] {
            // MySQL and SQLite keep what a migration has done before it ended half way.
            if !manager.has_index("orders", name).await? {
                let mut index = index(name);
                for column in columns {
                    index.col(column);
                }
                manager.create_index(index).await?;
            }
        }
        manager.create_table(user_units(manager)).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        for table in [
            Table::drop().table(UserUnits::Table).to_owned(),
            Table::drop().table(Orders::Table).to_owned(),
            Table::drop().table(Items::Table).to_owned(),
            Table::drop().table(Sales::Table).to_owned(),
        ] {
            manager.drop_table(table).await?;
        }
        Ok(())
    }
}

fn sales(manager: &SchemaManager<'_>) -> TableCreateStatement {
    exact(Table::create().table(Sales::Table), manager)
        .if_not_exists()
        .col(string_len(Sales::Id, 40).primary_key())
        .col(string_len(Sales::Name, 200))
        .col(string_len(Sales::State, 16))
        .col(big_integer(Sales::OpensAtMs))
        .col(big_integer_null(Sales::ClosesAtMs))
        .col(integer(Sales::LimitPerUser))
        .col(big_integer(Sales::Epoch))
        .col(big_integer(Sales::Seq))
        .col(big_integer(Sales::CreatedAtMs))
        .col(big_integer(Sales::UpdatedAtMs))
        .to_owned()
}

fn items(manager: &SchemaManager<'_>) -> TableCreateStatement {
    exact(Table::create().table(Items::Table), manager)
        .if_not_exists()
        .col(string_len(Items::SaleId, 40))
        .col(string_len(Items::Sku, 40))
        .col(big_integer(Items::Stock))
        .col(big_integer(Items::Sold))
        .col(big_integer(Items::Version))
        .primary_key(Index::create().col(Items::SaleId).col(Items::Sku))
        // The last line of defence against overselling, whichever process writes.
        .check(Expr::col(Items::Sold).gte(0))
        .check(Expr::col(Items::Sold).lte(Expr::col(Items::Stock)))
        .to_owned()
}

fn orders(manager: &SchemaManager<'_>) -> TableCreateStatement {
    exact(Table::create().table(Orders::Table), manager)
        .if_not_exists()
        .col(uuid(Orders::Id).primary_key())
        .col(string_len(Orders::SaleId, 40))
        .col(string_len(Orders::UserId, 64))
        .col(string_len(Orders::Sku, 40))
        .col(integer(Orders::Quantity))
        .col(string_len(Orders::Status, 16))
        .col(string_len_null(Orders::Failure, 32))
        // The gate's number; NULL if another order holds the number.
        .col(big_integer_null(Orders::Epoch))
        .col(big_integer_null(Orders::Seq))
        .col(integer(Orders::LimitPerUser))
        .col(big_integer(Orders::Fence))
        .col(uuid_null(Orders::AttemptId))
        .col(string_len(Orders::KeyDigest, 16))
        // The key digest while the order is live, then NULL. NULLs do not collide, so the
        // unique index below covers live orders only, on every database.
        .col(string_len_null(Orders::LiveKey, 16))
        .col(string_len(Orders::Fingerprint, 11))
        .col(integer(Orders::Version))
        .col(big_integer(Orders::AcceptedAtMs))
        .col(big_integer(Orders::RecordedAtMs))
        .col(big_integer(Orders::UpdatedAtMs))
        .to_owned()
}

fn user_units(manager: &SchemaManager<'_>) -> TableCreateStatement {
    exact(Table::create().table(UserUnits::Table), manager)
        .if_not_exists()
        .col(string_len(UserUnits::SaleId, 40))
        .col(string_len(UserUnits::UserId, 64))
        .col(big_integer(UserUnits::Units))
        .col(big_integer(UserUnits::Fence))
        .primary_key(Index::create().col(UserUnits::SaleId).col(UserUnits::UserId))
        .check(Expr::col(UserUnits::Units).gte(0))
        .to_owned()
}
