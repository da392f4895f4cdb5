//! Reading a whole hash in pieces, so that no call keeps Redis busy for long.

use super::core::Gate;
use super::error::GateError;

/// About how many fields one call returns.
const AT_ONCE: usize = 1_000;

/// Goes through a hash. A field that is there during the whole reading is returned at least once.
pub(super) struct Scan {
    key: String,
    /// `None` at the end.
    cursor: Option<u64>,
}

impl Scan {
    pub(super) fn of(key: String) -> Self {
        Self { key, cursor: Some(0) }
    }

    /// The next fields, perhaps none; `None` at the end. After an error the same ones can be read again.
    pub(super) async fn next(&mut self, gate: &Gate) -> Result<Option<Vec<(String, String)>>, GateError> {
        let Some(cursor) = self.cursor else { return Ok(None) };
        let mut command = redis::cmd("HSCAN");
        command.arg(&self.key).arg(cursor).arg("COUNT").arg(AT_ONCE);
        let (next, fields): (u64, Vec<(String, String)>) = gate.link.query(&command).await?;
        self.cursor = (next != 0).then_some(next);
        Ok(Some(fields))
    }
}
