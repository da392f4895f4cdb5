//! The exit code that follows from a drill's books and its completeness.

use crate::cli::ended::Ended;

/// Books that do not balance outweigh everything else.
pub(in crate::cli) fn verdict(balances: bool, complete: bool) -> Ended {
    match (balances, complete) {
        (false, _) => Ended::OutOfBalance,
        (true, false) => Ended::ItemsLeft,
        (true, true) => Ended::Done,
    }
}
