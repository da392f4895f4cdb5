//! The tables of Doorbuster. Run by `doorbuster migrate`; each migration is added once and never
//! changed afterwards, because databases that have it do not run it again.
//!
//! Times are BIGINT milliseconds since 1970 in UTC, the same on all three databases.

pub use sea_orm_migration::prelude::{DbErr, MigratorTrait};
use sea_orm_migration::prelude::{SchemaManager, TableCreateStatement};

mod m20260101_000001_orders;
mod m20261121_000002_order_life;
mod m20261122_000003_recovery;

pub struct Migrator;

/// MySQL's usual collations take `ada` and `Ada` for one user; the others compare bytes anyway.
fn exact(table: &mut TableCreateStatement, manager: &SchemaManager) -> TableCreateStatement {
    if manager.get_database_backend() == sea_orm_migration::sea_orm::DbBackend::MySql {
        table.character_set("utf8mb4").collate("utf8mb4_bin");
    }
    table.to_owned()
}

#[sea_orm_migration::async_trait::async_trait]
impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn sea_orm_migration::MigrationTrait>> {
        vec![
            Box::new(m20260101_000001_orders::Migration),
            Box::new(m20261121_000002_order_life::Migration),
            Box::new(m20261122_000003_recovery::Migration),
        ]
    }
}
