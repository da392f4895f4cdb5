//! A sale as lines, one entry each: what `replay run file` reads.

use std::io::{BufWriter, Write};
use std::path::Path;

use crate::domain::{Entry, SaleId};
use crate::gate::{Gate, GateError};
use crate::store::{Store, StoreError};

/// Orders in one query.
const PAGE: u64 = 500;

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("there is no sale {0}")]
    NotFound(SaleId),
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error("the database: {0}")]
    Store(#[from] StoreError),
    /// What was there before under this name is there still.
    #[error("{0} could not be written: {1}; nothing was changed there")]
    Io(String, std::io::Error),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Exported {
    /// Orders with a row.
    pub orders: u64,
    /// Orders in flight.
    pub accepted: u64,
    /// Sale, acts and payments.
    pub others: u64,
}

/// Writes a sale to a file, or to standard output where it is `-`. On return the file is complete and
/// synced; a file that was there under this name is replaced then, and not before.
///
/// The outbox is read before the rows: an order that is committed in between stands there twice, which
/// changes nothing for who reads it.
pub async fn export(
    gate: &Gate,
    store: &Store,
    sale: &SaleId,
    to: &Path,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Exported, ExportError> {
    let io = |error| ExportError::Io(to.display().to_string(), error);
    if to.as_os_str() == "-" {
        let mut out = BufWriter::new(std::io::stdout());
        return write(gate, store, sale, &mut out, &io, progress).await;
    }
    // A device is written to as it is.
    if std::fs::metadata(to).is_ok_and(|there| !there.is_file()) {
        let device = std::fs::OpenOptions::new().write(true).open(to).map_err(io)?;
        return write(gate, store, sale, &mut BufWriter::new(device), &io, progress).await;
    }
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let part = tempfile::Builder::new().prefix(".export-").tempfile_in(folder).map_err(io)?;
    let mut out = BufWriter::new(part.reopen().map_err(io)?);
    let exported = write(gate, store, sale, &mut out, &io, progress).await?;
    out.get_ref().sync_all().map_err(io)?;
    part.persist(to).map_err(|error| io(error.error))?;
    Ok(exported)
}

async fn write(
    gate: &Gate,
    store: &Store,
    sale: &SaleId,
    out: &mut (impl Write + Send),
    io: &(dyn Fn(std::io::Error) -> ExportError + Sync),
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Exported, ExportError> {
    let mut exported = Exported { orders: 0, accepted: 0, others: 0 };
    let accepted = gate.in_flight(sale).await?;
    let others = store.sale_entries(sale).await?;
    if others.is_empty() {
        return Err(ExportError::NotFound(sale.clone()));
    }
    for entry in others {
        line(out, &entry).map_err(io)?;
        exported.others += 1;
    }
    for ticket in accepted {
        line(out, &Entry::Accepted(ticket.order)).map_err(io)?;
        exported.accepted += 1;
    }
    let mut after = None;
    loop {
        let page = store.order_entries_after(sale, after, PAGE).await?;
        for entry in &page {
            after = entry.order().map(|order| order.id).or(after);
            line(out, entry).map_err(io)?;
            exported.orders += 1;
        }
        progress(exported.orders);
        if (page.len() as u64) < PAGE {
            break;
        }
    }
    out.flush().map_err(io)?;
    Ok(exported)
}

fn line(out: &mut (impl Write + Send), entry: &Entry) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    out.write_all(&line)
}
