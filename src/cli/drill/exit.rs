//! What a drill's books and its end mean for the exit code.

use crate::cli::ended::Ended;

/// Books that do not balance outweigh everything else.
pub(in crate::cli) fn verdict(balances: bool, complete: bool) -> Ended {
    match (balances, complete) {
        (false, _) => Ended::OutOfBalance,
        (true, false) => Ended::ItemsLeft,
        (true, true) => Ended::Done,
    }
}
