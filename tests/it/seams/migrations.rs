//! Migrating again: after a migration that ended half way, and with a build that is older than the tables.

use doorbuster::store::StoreError;

use crate::faults::stalls::Session;
use crate::support::{Database, World};

async fn migrations_can_be_repeated(database: Database) {
    let world = World::new(database).await;
    let store = world.parts().await.store;
    let mut session = Session::open(&world).await;
    // MariaDB keeps what a migration has done before its record is written.
    session.execute("DELETE FROM seaql_migrations".into()).await;
    store.create_tables().await.expect("repeated");

    // A newer build has made a migration that this one does not know: its tables serve this build too.
    session
        .execute("INSERT INTO seaql_migrations (version, applied_at) VALUES ('m29990101_000001', 0)".into())
        .await;
    store.create_tables().await.expect("nothing to do");
    let lacks = "DELETE FROM seaql_migrations WHERE version LIKE 'm20260101%'";
    session.execute(lacks.into()).await;
    let refused = store.create_tables().await;
    let says =
        |why: &str| ["m29990101_000001", "m20260101", "a newer build"].iter().all(|word| why.contains(word));
    assert!(matches!(&refused, Err(StoreError::Broken(why)) if says(why)), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_can_be_repeated_in_mariadb() {
    migrations_can_be_repeated(Database::Mariadb).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_can_be_repeated_in_postgres() {
    migrations_can_be_repeated(Database::Postgres).await;
}
