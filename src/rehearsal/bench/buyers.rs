//! The prepared requests of a crowd.

use std::ops::Range;
use std::sync::Arc;

use super::error::BenchError;
use super::load::order;
use super::sample::user;
use super::world::World;
use crate::front::{AuthSettings, Signer};

/// Settings for a front whose load must not end with unknown outcomes: if the disk stalls for a second, the round
/// gets slower, but the measurement continues.
pub(super) const LONG_TIMEOUTS: [&str; 2] = ["redis.timeout_ms=10000", "intake.confirm_within_ms=10000"];

/// Signs tokens as the world's fronts expect them.
pub(super) fn tokens(world: &World) -> Signer {
    Signer::new(AuthSettings::with_secret(&world.secret))
}

/// One order request per buyer, each with a separate token.
pub(super) fn requests(
    tokens: &Signer,
    sale: &str,
    buyers: Range<u64>,
) -> Result<Arc<Vec<Vec<u8>>>, BenchError> {
    let requests = buyers.map(|nth| Ok(order(sale, &tokens.mint(&user(nth)?, None, 86_400), None)));
    Ok(Arc::new(requests.collect::<Result<_, BenchError>>()?))
}
