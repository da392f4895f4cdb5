//! A large sale, made in bulk directly in PostgreSQL.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _};

use super::error::{BenchError, broken};
use super::sample::{PLENTY, sale};
use super::world::World;
use crate::domain::{Fingerprint, Millis, Number, SaleState, Sku};
use crate::rehearsal::servers::Kind;

/// Its id.
pub(super) const LARGE: &str = "large";

/// Rows in one statement.
const AT_ONCE: u64 = 100_000;

/// A tenth of the orders has been cancelled. The names are in no order, so that neighbours in the index are not
/// neighbours in the table.
const ORDERS: &str = "INSERT INTO orders (id, sale_id, user_id, sku, quantity, status, epoch, seq, limit_per_user, \
     fence, key_digest, live_key, fingerprint, version, accepted_at_ms, recorded_at_ms, updated_at_ms) \
     SELECT (lpad(to_hex($4 + n / 100), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8' || \
             substr(md5(n::text), 4, 15))::uuid, \
         $1, md5(n::text), 'shoe', 1, CASE WHEN n % 10 = 0 THEN 'cancelled' ELSE 'paid' END, 1, n + 1, 1, 1, \
         substr(md5(n::text), 1, 16), CASE WHEN n % 10 = 0 THEN NULL ELSE substr(md5(n::text), 1, 16) END, \
         $5, 2, $4 + n / 100, $4 + n / 100, $4 + n / 100 \
     FROM generate_series($2::int8, $3::int8) AS n";
const UNITS: &str = "INSERT INTO user_units (sale_id, user_id, units, fence) \
     SELECT $1, md5(n::text), CASE WHEN n % 10 = 0 THEN 0 ELSE 1 END, 1 FROM generate_series($2::int8, $3::int8) AS n";
const SOLD: &str = "UPDATE items SET sold = (SELECT COUNT(*) FROM orders WHERE sale_id = $1 AND live_key IS NOT NULL) \
     WHERE sale_id = $1";

/// The large sale in PostgreSQL: open, with the gate's number after its last order.
pub(super) async fn make_rows(
    world: &World,
    orders: u64,
    announce: &impl Fn(&str),
) -> Result<(), BenchError> {
    let store = world.store(Kind::Postgres).await?;
    let large = sale(LARGE, PLENTY)?;
    store.create_sale(&large).await.map_err(broken)?;
    let number = Number { epoch: 1, seq: i64::try_from(orders).unwrap_or(i64::MAX) };
    store.set_sale_state(&large.id, SaleState::Open, number).await.map_err(broken)?;
    store.close().await;
    let fingerprint = Fingerprint::of_body(&Sku::parse("shoe").map_err(broken)?, 1).to_string();
    let begun = Millis::now().minus(Duration::from_secs(86_400));
    let mut connection = connection(world).await?;
    for from in (0..orders).step_by(AT_ONCE as usize) {
        announce(&format!("making rows: {from} of {orders}"));
        let to = orders.min(from + AT_ONCE) - 1;
        let (from, to) = (from as i64, to as i64);
        let rows = sqlx::query(ORDERS).bind(LARGE).bind(from).bind(to).bind(begun.0).bind(&fingerprint);
        rows.execute(&mut connection).await.map_err(broken)?;
        sqlx::query(UNITS).bind(LARGE).bind(from).bind(to).execute(&mut connection).await.map_err(broken)?;
    }
    sqlx::query(SOLD).bind(LARGE).execute(&mut connection).await.map_err(broken)?;
    // The order log begins when the first front starts, and a sale that is older needs its beginning.
    sqlx::query("UPDATE sales SET created_at_ms = $1")
        .bind(Millis::now().0)
        .execute(&mut connection)
        .await
        .map_err(broken)?;
    // As the database does by itself after a while.
    for settled in ["VACUUM ANALYZE", "CHECKPOINT"] {
        sqlx::query(settled).execute(&mut connection).await.map_err(broken)?;
    }
    connection.close().await.map_err(broken)
}

/// A connection for statements that are meant to take long.
pub(super) async fn connection(world: &World) -> Result<PgConnection, BenchError> {
    let options: PgConnectOptions = world.url(Kind::Postgres)?.parse().map_err(broken)?;
    PgConnection::connect_with(&options.disable_statement_logging()).await.map_err(broken)
}
