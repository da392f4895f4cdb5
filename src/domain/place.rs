//! How far the database has come with one sale.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The place of the database in its own history of a sale. Every committed change of the sale takes the next `number`.
/// Redis and the order log witness the highest place, so that a database that was restored from a backup, or failed
/// over to a replica that was behind, is found to be behind. Once such a database has been brought up to date it
/// begins a higher `line`. Compared line first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Place {
    /// Rises each time a database that went back is brought up to date.
    pub line: i64,
    /// Rises with each committed change.
    pub number: i64,
}

impl Place {
    /// The first place of a sale.
    pub const FIRST: Self = Self { line: 1, number: 1 };
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.line, self.number)
    }
}
