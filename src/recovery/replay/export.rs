//! Writes a sale as lines, one entry each, in the form that `replay run file` reads.

use std::io::{BufWriter, Write};
use std::path::Path;

use crate::domain::{Entry, SaleId};
use crate::gate::{Gate, GateError};
use crate::store::{Store, StoreError};

/// Orders whose histories are read together.
const PAGE: usize = 500;

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The database has no such sale.
    #[error("there is no sale {0}")]
    NotFound(SaleId),
    /// Redis did not answer.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The database did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file could not be written. An existing file is unchanged.
    #[error("{0} could not be written: {1}; nothing was changed there")]
    Io(String, std::io::Error),
}

/// The counts of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Exported {
    /// Orders with a row.
    pub orders: u64,
    /// Orders in flight.
    pub accepted: u64,
    /// The sale, its acts and its payments.
    pub others: u64,
}

/// Writes a sale to a file, or to standard output if `to` is `-`. The file replaces an existing one only once it is
/// complete and synced, which it is on return. `progress` is called with the orders written so far.
///
/// The outbox is read before the rows, so an order that is committed in between is in the file twice. A replay of the
/// file is idempotent, so that does no harm.
pub async fn export(
    gate: &Gate,
    store: &Store,
    sale: &SaleId,
    to: &Path,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Exported, ExportError> {
    let export = Export { gate, store, sale, to, progress };
    let io = |error| export.io(error);
    if to.as_os_str() == "-" {
        return export.write(&mut BufWriter::new(std::io::stdout())).await;
    }
    // A device or a pipe cannot be replaced, so it is written to directly.
    if std::fs::metadata(to).is_ok_and(|there| !there.is_file()) {
        let device = std::fs::OpenOptions::new().write(true).open(to).map_err(io)?;
        return export.write(&mut BufWriter::new(device)).await;
    }
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let part = tempfile::Builder::new().prefix(".export-").tempfile_in(folder).map_err(io)?;
    let mut out = BufWriter::new(part.reopen().map_err(io)?);
    let exported = export.write(&mut out).await?;
    out.get_ref().sync_all().map_err(io)?;
    part.persist(to).map_err(|error| io(error.error))?;
    Ok(exported)
}

struct Export<'a> {
    gate: &'a Gate,
    store: &'a Store,
    sale: &'a SaleId,
    to: &'a Path,
    progress: &'a (dyn Fn(u64) + Sync),
}

impl Export<'_> {
    fn io(&self, error: std::io::Error) -> ExportError {
        ExportError::Io(self.to.display().to_string(), error)
    }

    async fn write(&self, out: &mut (impl Write + Send)) -> Result<Exported, ExportError> {
        let mut exported = Exported { orders: 0, accepted: 0, others: 0 };
        let accepted = self.gate.in_flight(self.sale).await?;
        let others = self.store.sale_entries(self.sale).await?;
        if others.is_empty() {
            return Err(ExportError::NotFound(self.sale.clone()));
        }
        for entry in others {
            self.line(out, &entry)?;
            exported.others += 1;
        }
        for ticket in accepted {
            self.line(out, &Entry::Accepted(ticket.order))?;
            exported.accepted += 1;
        }
        // Before the orders: a payment that is applied meanwhile is pending in the file, its order is paid, and applying
        // it again changes nothing.
        let mut pages = self.store.payment_pages(self.sale);
        while let Some(payments) = pages.next().await? {
            for payment in payments {
                self.line(out, &payment)?;
                exported.others += 1;
            }
        }
        let mut pages = self.store.order_pages(self.sale);
        while let Some(rows) = pages.next().await? {
            for rows in rows.chunks(PAGE) {
                for entry in self.store.entries_of(rows).await? {
                    self.line(out, &entry)?;
                    exported.orders += 1;
                }
            }
            (self.progress)(exported.orders);
        }
        out.flush().map_err(|error| self.io(error))?;
        Ok(exported)
    }

    fn line(&self, out: &mut impl Write, entry: &Entry) -> Result<(), ExportError> {
        let json = serde_json::to_vec(entry).map_err(|error| self.io(error.into()))?;
        out.write_all(&json).and_then(|()| out.write_all(b"\n")).map_err(|error| self.io(error))
    }
}
