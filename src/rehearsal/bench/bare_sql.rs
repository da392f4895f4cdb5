//! The ceiling for PostgreSQL: the same rows into the same tables, with plain sqlx and one statement per table and
//! batch.

use std::time::Instant;

use futures_util::future::try_join_all;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use super::error::{BenchError, broken};
use super::sample;
use super::world::open_store;
use crate::domain::{Fingerprint, KeyDigest, Millis, OrderId, Sku};

const ORDERS: &str = "INSERT INTO orders (id, sale_id, user_id, sku, quantity, status, epoch, seq, \
     limit_per_user, fence, attempt_id, key_digest, live_key, fingerprint, version, accepted_at_ms, \
     recorded_at_ms, updated_at_ms) \
     SELECT id, $2, user_id, 'shoe', 1, 'confirmed', 1, seq, 1, 1, $5, $6, $6, $7, 1, $8, $8, $8 \
     FROM UNNEST($1::uuid[], $3::text[], $4::int8[]) AS a(id, user_id, seq) ON CONFLICT DO NOTHING";
const UNITS: &str = "INSERT INTO user_units (sale_id, user_id, units, fence) \
     SELECT $1, user_id, 1, 1 FROM UNNEST($2::text[]) AS a(user_id) \
     ON CONFLICT (sale_id, user_id) DO UPDATE SET units = user_units.units + excluded.units";
const SOLD: &str =
    "UPDATE items SET sold = sold + $2 WHERE sale_id = $1 AND sku = 'shoe' AND sold + $2 <= stock";

/// Orders per second on this many connections at once, with `batch` orders per transaction.
pub(super) async fn batches(
    url: &str,
    sale: &str,
    count: u64,
    batch: usize,
    connections: u64,
) -> Result<f64, BenchError> {
    let store = open_store(url).await?;
    store.create_sale(&sample::sale(sale, sample::PLENTY)?).await.map_err(broken)?;
    store.close().await;
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(PgConnection::connect(url).await.map_err(broken)?);
    }
    let begin = Instant::now();
    let part = count / connections;
    try_join_all(
        open.into_iter().zip(0..).map(async |(connection, nth)| {
            write(connection, sale, nth * part..(nth + 1) * part, batch).await
        }),
    )
    .await?;
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

async fn write(
    mut connection: PgConnection,
    sale: &str,
    buyers: std::ops::Range<u64>,
    batch: usize,
) -> Result<(), BenchError> {
    let (key, fingerprint) =
        (KeyDigest::of_key(None), Fingerprint::of_body(&Sku::parse("shoe").map_err(broken)?, 1));
    let buyers: Vec<u64> = buyers.collect();
    for buyers in buyers.chunks(batch) {
        let ids: Vec<Uuid> = buyers.iter().map(|_| OrderId::generate().uuid()).collect();
        let users: Vec<String> = buyers.iter().map(|nth| format!("buyer-{nth:010}")).collect();
        let numbers: Vec<i64> = buyers.iter().map(|nth| nth.cast_signed() + 2).collect();
        let mut transaction = connection.begin().await.map_err(broken)?;
        sqlx::query(ORDERS)
            .bind(ids)
            .bind(sale)
            .bind(&users)
            .bind(numbers)
            .bind(Uuid::new_v4())
            .bind(key.to_string())
            .bind(fingerprint.to_string())
            .bind(Millis::now().0)
            .execute(&mut *transaction)
            .await
            .map_err(broken)?;
        sqlx::query(UNITS).bind(sale).bind(&users).execute(&mut *transaction).await.map_err(broken)?;
        let units = i64::try_from(buyers.len()).unwrap_or(i64::MAX);
        let sold =
            sqlx::query(SOLD).bind(sale).bind(units).execute(&mut *transaction).await.map_err(broken)?;
        if sold.rows_affected() != 1 {
            return Err(broken("the bare counter was not raised"));
        }
        transaction.commit().await.map_err(broken)?;
    }
    Ok(())
}
