//! Reads the gate's keys.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::books::{BookError, GateBooks};

/// The keys of the sale. A drill uses the default prefix.
pub(super) async fn read(url: &str, sale: &str) -> Result<GateBooks, BookError> {
    let mut redis = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let key = |name: &str| format!("doorbuster:{{{sale}}}:{name}");
    let mut pipe = redis::pipe();
    pipe.hgetall(key("items")).hgetall(key("stock")).hgetall(key("users")).hlen(key("outbox"));
    type Replies = (BTreeMap<String, i64>, BTreeMap<String, i64>, BTreeMap<String, String>, i64);
    let (left, stock, users, outbox): Replies = pipe.query_async(&mut redis).await?;
    let mut held = BTreeMap::new();
    for record in users.values().flat_map(|records| records.split(',')) {
        let (order, units) = read_record(record).ok_or_else(|| BookError::Unreadable(record.to_owned()))?;
        if units > 0 {
            held.insert(order, units);
        }
    }
    Ok(GateBooks { left, stock, held, outbox })
}

/// A record is `order|key|fingerprint|sku|units`, with negative units once the order has ended.
fn read_record(record: &str) -> Option<(Uuid, i64)> {
    let mut fields = record.split('|');
    let order = Uuid::try_parse(fields.next()?).ok()?;
    Some((order, fields.nth(3)?.parse().ok()?))
}
