//! The tables of Doorbuster. Run by `doorbuster migrate`; each migration is added once and never
//! changed afterwards, because databases that have it do not run it again.
//!
//! Times are BIGINT milliseconds since 1970 in UTC, the same on all three databases.

pub use sea_orm_migration::prelude::{DbErr, MigratorTrait};

mod m20260101_000001_orders;

pub struct Migrator;

#[sea_orm_migration::async_trait::async_trait]
impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn sea_orm_migration::MigrationTrait>> {
        vec![Box::new(m20260101_000001_orders::Migration)]
    }
}
