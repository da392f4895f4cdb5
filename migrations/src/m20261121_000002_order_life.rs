//! The life of an order after it has a row: the history of who changed it and why, payment deadlines,
//! payments, and units still to be returned to the gate. Also the terms of a sale, and operators' acts on it.

use sea_orm_migration::prelude::*;
use sea_orm_migration::schema::{
    big_integer, big_integer_null, boolean, integer, integer_null, string_len, string_len_null, text, uuid,
    uuid_null,
};

use crate::exact;

#[derive(DeriveMigrationName)]
pub struct Migration;

#[derive(DeriveIden)]
enum Orders {
    Table,
    PayByMs,
}

#[derive(DeriveIden)]
enum Sales {
    Table,
    PayWithinS,
    Rebuy,
    LatePayment,
    UserRate,
    SaleRate,
    Message,
    RetryAfterS,
    RulesVersion,
    ToldEpoch,
    ToldSeq,
}

#[derive(DeriveIden)]
enum Items {
    Table,
    LimitPerUser,
}

#[derive(DeriveIden)]
enum OrderEvents {
    Table,
    OrderId,
    Version,
    SaleId,
    FromStatus,
    ToStatus,
    Actor,
    Reason,
    AtMs,
}

#[derive(DeriveIden)]
enum GateReturns {
    Table,
    OrderId,
    SaleId,
    UserId,
    Sku,
    Quantity,
    AtMs,
}

#[derive(DeriveIden)]
enum SaleActs {
    Table,
    SaleId,
    Key,
    Kind,
    Args,
    Sku,
    Units,
    ItemVersion,
    Actor,
    Reason,
    State,
    Result,
    AtMs,
    EndedAtMs,
}

#[derive(DeriveIden)]
enum PaymentEvents {
    Table,
    Provider,
    EventId,
    Kind,
    SaleId,
    OrderId,
    UserId,
    State,
    NewOrderId,
    Detail,
    ReceivedAtMs,
    DueAtMs,
    UpdatedAtMs,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // NULL unless a payment is due, so that a search by deadline finds only orders that wait for payment.
        add(manager, "orders", Orders::Table, big_integer_null(Orders::PayByMs)).await?;
        for column in [
            integer_null(Sales::PayWithinS),
            boolean(Sales::Rebuy).default(true).take(),
            string_len(Sales::LatePayment, 16).default("retake").take(),
            string_len_null(Sales::UserRate, 20),
            string_len_null(Sales::SaleRate, 20),
            string_len_null(Sales::Message, 200),
            integer_null(Sales::RetryAfterS),
            // The version of the terms: window, limits, rules.
            big_integer(Sales::RulesVersion).default(1).take(),
            // The gate's number when units were last returned to it.
            big_integer(Sales::ToldEpoch).default(0).take(),
            big_integer(Sales::ToldSeq).default(0).take(),
        ] {
            add(manager, "sales", Sales::Table, column).await?;
        }
        add(manager, "items", Items::Table, integer_null(Items::LimitPerUser)).await?;
        manager.create_table(order_events(manager)).await?;
        manager.create_table(gate_returns(manager)).await?;
        manager.create_table(sale_acts(manager)).await?;
        manager.create_table(payment_events(manager)).await?;
        create_indexes(manager).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        for table in [
            Table::drop().table(PaymentEvents::Table).to_owned(),
            Table::drop().table(SaleActs::Table).to_owned(),
            Table::drop().table(GateReturns::Table).to_owned(),
            Table::drop().table(OrderEvents::Table).to_owned(),
        ] {
            manager.drop_table(table).await?;
        }
        manager.drop_index(Index::drop().name("orders_pay_by").table(Orders::Table).to_owned()).await?;
        drop_column(manager, Items::Table, Items::LimitPerUser).await?;
        drop_column(manager, Orders::Table, Orders::PayByMs).await?;
        for column in [
            Sales::PayWithinS,
            Sales::Rebuy,
            Sales::LatePayment,
            Sales::UserRate,
            Sales::SaleRate,
            Sales::Message,
            Sales::RetryAfterS,
            Sales::RulesVersion,
            Sales::ToldEpoch,
            Sales::ToldSeq,
        ] {
            drop_column(manager, Sales::Table, column).await?;
        }
        Ok(())
    }
}

/// Adds one column at a time, because SQLite accepts no more. A column that already exists was added by a
/// run that died half way.
async fn add(
    manager: &SchemaManager<'_>,
    name: &str,
    table: impl IntoIden + 'static,
    mut column: ColumnDef,
) -> Result<(), DbErr> {
    if manager.has_column(name, column.get_column_name()).await? {
        return Ok(());
    }
    manager.alter_table(Table::alter().table(table).add_column(column.take()).to_owned()).await
}

async fn drop_column(
    manager: &SchemaManager<'_>,
    table: impl IntoIden + 'static,
    column: impl IntoIden + 'static,
) -> Result<(), DbErr> {
    manager.alter_table(Table::alter().table(table).drop_column(column).to_owned()).await
}

fn order_events(manager: &SchemaManager<'_>) -> TableCreateStatement {
    exact(Table::create().table(OrderEvents::Table), manager)
        .if_not_exists()
        .col(uuid(OrderEvents::OrderId))
        // The order's version after the change. Of two concurrent changes, one fails.
        .col(integer(OrderEvents::Version))
        .col(string_len(OrderEvents::SaleId, 40))
        .col(string_len(OrderEvents::FromStatus, 16))
        .col(string_len(OrderEvents::ToStatus, 16))
        .col(string_len(OrderEvents::Actor, 100))
        .col(string_len_null(OrderEvents::Reason, 200))
        .col(big_integer(OrderEvents::AtMs))
        .primary_key(Index::create().col(OrderEvents::OrderId).col(OrderEvents::Version))
        .to_owned()
}

fn gate_returns(manager: &SchemaManager<'_>) -> TableCreateStatement {
    exact(Table::create().table(GateReturns::Table), manager)
        .if_not_exists()
        .col(uuid(GateReturns::OrderId).primary_key())
        .col(string_len(GateReturns::SaleId, 40))
        .col(string_len(GateReturns::UserId, 64))
        .col(string_len(GateReturns::Sku, 40))
        .col(integer(GateReturns::Quantity))
        .col(big_integer(GateReturns::AtMs))
        .to_owned()
}

fn sale_acts(manager: &SchemaManager<'_>) -> TableCreateStatement {
    exact(Table::create().table(SaleActs::Table), manager)
        .if_not_exists()
        .col(string_len(SaleActs::SaleId, 40))
        // The caller's idempotency key, or one generated for the act.
        .col(string_len(SaleActs::Key, 64))
        .col(string_len(SaleActs::Kind, 20))
        // JSON.
        .col(text(SaleActs::Args))
        // For a restock: the item, the units, and the item's version afterwards.
        .col(string_len_null(SaleActs::Sku, 40))
        .col(big_integer_null(SaleActs::Units))
        .col(big_integer_null(SaleActs::ItemVersion))
        .col(string_len(SaleActs::Actor, 100))
        .col(string_len_null(SaleActs::Reason, 200))
        // pending, done or refused.
        .col(string_len(SaleActs::State, 16))
        .col(string_len_null(SaleActs::Result, 500))
        .col(big_integer(SaleActs::AtMs))
        .col(big_integer_null(SaleActs::EndedAtMs))
        .primary_key(Index::create().col(SaleActs::SaleId).col(SaleActs::Key))
        .to_owned()
}

fn payment_events(manager: &SchemaManager<'_>) -> TableCreateStatement {
    exact(Table::create().table(PaymentEvents::Table), manager)
        .if_not_exists()
        .col(string_len(PaymentEvents::Provider, 40))
        .col(string_len(PaymentEvents::EventId, 100))
        .col(string_len(PaymentEvents::Kind, 20))
        .col(string_len(PaymentEvents::SaleId, 40))
        .col(uuid(PaymentEvents::OrderId))
        .col(string_len_null(PaymentEvents::UserId, 64))
        // pending, applied, late, retaken, refunded or mismatch.
        .col(string_len(PaymentEvents::State, 16))
        // The order that took a unit again.
        .col(uuid_null(PaymentEvents::NewOrderId))
        .col(string_len_null(PaymentEvents::Detail, 200))
        .col(big_integer(PaymentEvents::ReceivedAtMs))
        .col(big_integer(PaymentEvents::DueAtMs))
        .col(big_integer(PaymentEvents::UpdatedAtMs))
        .primary_key(Index::create().col(PaymentEvents::Provider).col(PaymentEvents::EventId))
        .to_owned()
}

/// Skips an index that exists: a run that died half way has created it.
async fn create_indexes(manager: &SchemaManager<'_>) -> Result<(), DbErr> {
    let index = |name: &str| Index::create().name(name).to_owned();
    for (table, name, index) in [
        ("orders", "orders_pay_by", index("orders_pay_by").table(Orders::Table).col(Orders::PayByMs)),
        (
            "gate_returns",
            "gate_returns_at",
            index("gate_returns_at").table(GateReturns::Table).col(GateReturns::AtMs),
        ),
        (
            "gate_returns",
            "gate_returns_sale",
            index("gate_returns_sale").table(GateReturns::Table).col(GateReturns::SaleId),
        ),
        (
            "sale_acts",
            "sale_acts_state",
            index("sale_acts_state").table(SaleActs::Table).col(SaleActs::State),
        ),
        (
            "payment_events",
            "payment_events_due",
            index("payment_events_due")
                .table(PaymentEvents::Table)
                .col(PaymentEvents::State)
                .col(PaymentEvents::DueAtMs),
        ),
        (
            "payment_events",
            "payment_events_order",
            index("payment_events_order").table(PaymentEvents::Table).col(PaymentEvents::OrderId),
        ),
        (
            "payment_events",
            "payment_events_sale",
            index("payment_events_sale").table(PaymentEvents::Table).col(PaymentEvents::SaleId),
        ),
    ] {
        if !manager.has_index(table, name).await? {
            manager.create_index(index.to_owned()).await?;
        }
    }
    Ok(())
}
