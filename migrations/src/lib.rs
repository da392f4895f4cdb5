//! The tables of Doorbuster, created by `doorbuster migrate`. A migration is added once, and what it makes is never
//! changed afterwards, because a database that already has it does not run it again.
//!
//! Times are BIGINT milliseconds since 1970 in UTC, the same on all three databases.

pub use sea_orm_migration::prelude::{DbErr, MigratorTrait};
use sea_orm_migration::prelude::{SchemaManager, TableCreateStatement};

mod m20260101_000001_orders;
mod m20261121_000002_order_life;
mod m20261122_000003_recovery;
mod m20261123_000004_places;
mod m20261124_000005_installation;
mod m20261124_000006_backup;
mod m20261125_000007_operator_acts;
mod m20261125_000008_erasures;
mod m20261127_000009_live_settings;
mod m20261128_000010_webhooks;
mod m20261129_000011_webhooks_of_sales;

/// All migrations, in the order in which they run.
pub struct Migrator;

/// Makes text compare byte by byte. MySQL's default collations treat `ada` and `Ada` as one user; the
/// other databases compare bytes anyway.
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
            Box::new(m20261123_000004_places::Migration),
            Box::new(m20261124_000005_installation::Migration),
            Box::new(m20261124_000006_backup::Migration),
            Box::new(m20261125_000007_operator_acts::Migration),
            Box::new(m20261125_000008_erasures::Migration),
            Box::new(m20261127_000009_live_settings::Migration),
            Box::new(m20261128_000010_webhooks::Migration),
            Box::new(m20261129_000011_webhooks_of_sales::Migration),
        ]
    }
}
