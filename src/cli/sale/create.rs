//! `sale create`: a draft from the options.

use super::args::Create;
use crate::cli::ended::{Ended, Failed};
use crate::control::Control;
use crate::domain::{Item, Millis, Sale, SaleId, Terms, Window};

pub(super) async fn create(control: &Control, create: Create) -> Result<Ended, Failed> {
    let id: SaleId = create.sale.parse()?;
    let mut items = Vec::with_capacity(create.items.len());
    for item in &create.items {
        let wrong = || Failed::Usage(format!("--item {item}: write it as SKU=STOCK, such as shoe=500"));
        let (sku, stock) = item.split_once('=').ok_or_else(wrong)?;
        let stock = stock.parse().map_err(|_| wrong())?;
        items.push(Item { sku: sku.parse()?, stock, limit_per_user: None });
    }
    let now = Millis::now();
    let plain = Sale {
        name: create.name.unwrap_or_else(|| id.to_string()),
        window: Window { opens_at: create.terms.opens_at().unwrap_or(now), closes_at: None },
        limit_per_user: 1,
        terms: Terms::default(),
        items,
        id,
    };
    let sale = create.terms.change()?.apply(&plain, now)?;
    control.create(&sale, &create.reason.request()).await?;
    say!("created {}; open it with: doorbuster sale open {}", sale.id, sale.id);
    Ok(Ended::Done)
}
