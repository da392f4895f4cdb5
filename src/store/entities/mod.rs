//! The tables as SeaORM sees them. Their meaning is in the migration that makes them.

pub(super) mod item;
pub(super) mod order;
pub(super) mod sale;
pub(super) mod user_units;
