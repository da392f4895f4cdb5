//! `export`: writes a sale to a file of JSON lines, which `replay run file` reads.

use std::path::PathBuf;

use super::ended::{Ended, Failed};
use super::reading::Reading;
use crate::domain::SaleId;
use crate::process::{Config, Parts, signal};
use crate::recovery::replay::export;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The sale to export.
    #[arg(long)]
    sale: SaleId,
    /// The file to write, or - for standard output.
    #[arg(long)]
    file: PathBuf,
}

pub(super) async fn run(config: &Config, args: Args) -> Result<Ended, Failed> {
    let parts = Parts::open(config).await?;
    let exporting = async {
        let reading = Reading::of(&parts.store, &args.sale).await;
        let progress = |done| reading.reach("orders", done);
        let exported = export(&parts.gate, &parts.store, &args.sale, &args.file, &progress).await;
        reading.end();
        exported
    };
    let exported = signal::stop_token().run_until_cancelled(exporting).await;
    let stopped = || format!("stopped before the export was complete; {} is as it was", args.file.display());
    let exported = exported.ok_or_else(|| Failed::Other(stopped()))??;
    eprintln!(
        "{} orders, {} in flight, {} sales, acts and payments",
        exported.orders, exported.accepted, exported.others
    );
    Ok(Ended::Done)
}
