//! The items of a drill's sale.

/// The item that an operator restocks, and the only one of a sale with one.
pub(super) const FIRST_ITEM: &str = "unit";

/// What a buyer asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The item.
    pub(super) sku: String,
    /// The units.
    pub(super) quantity: u32,
}

/// The name of an item.
pub(super) fn sku(nth: u32) -> String {
    if nth == 0 { FIRST_ITEM.to_owned() } else { format!("{FIRST_ITEM}-{}", nth + 1) }
}
