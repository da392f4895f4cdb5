//! The sales, buyers and attempts that every benchmark uses.

use super::error::{BenchError, broken};
use crate::domain::{
    Attempt, Fingerprint, Item, KeyDigest, Millis, Number, OrderId, Sale, SaleId, SaleState, Sku, Terms,
    UserId, Window,
};
use crate::gate::{Gate, Versions};
use crate::store::Store;

/// The stock of a sale that must not sell out.
pub(super) const PLENTY: u32 = 100_000_000;

/// A sale of one item, with a limit of one unit per buyer.
pub(super) fn sale(id: &str, stock: u32) -> Result<Sale, BenchError> {
    Ok(Sale {
        id: SaleId::parse(id).map_err(broken)?,
        name: "Drop".into(),
        window: Window { opens_at: Millis(0), closes_at: None },
        limit_per_user: 1,
        terms: Terms::default(),
        items: vec![Item {
            sku: Sku::parse("shoe").map_err(broken)?,
            stock: i64::from(stock),
            limit_per_user: None,
        }],
    })
}

/// Creates the sale in the database and in the gate, and opens it.
pub(super) async fn open_sale(gate: &Gate, store: &Store, sale: &Sale) -> Result<(), BenchError> {
    store.create_sale(sale).await.map_err(broken)?;
    gate.load(sale, &Versions::default()).await.map_err(broken)?;
    gate.move_sale(&sale.id, SaleState::Open, &[SaleState::Draft]).await.map_err(broken)?;
    store.set_sale_state(&sale.id, SaleState::Open, Number { epoch: 1, seq: 1 }).await.map_err(broken)
}

/// The nth buyer. Their name has 16 characters.
pub(super) fn user(nth: u64) -> Result<UserId, BenchError> {
    UserId::parse(format!("buyer-{nth:010}")).map_err(broken)
}

/// The nth buyer's attempt: one unit of the sale's only item.
pub(super) fn attempt(sale: &Sale, nth: u64) -> Result<Attempt, BenchError> {
    let sku = sale.items[0].sku.clone();
    Ok(Attempt {
        id: OrderId::generate(),
        sale: sale.id.clone(),
        user: user(nth)?,
        fingerprint: Fingerprint::of_body(&sku, 1),
        sku,
        quantity: 1,
        key: KeyDigest::of_key(None),
        keyed: false,
    })
}
