//! `export`: writes a sale to a file of JSON lines, which `replay run file` reads.

use std::path::PathBuf;

use super::ended::{Ended, Failed};
use crate::domain::SaleId;
use crate::process::{Config, Parts};
use crate::recovery::replay::export;
use crate::rehearsal::drill::Progress as Bar;

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
    let bar = Bar::on_stderr();
    bar.begin(0, "orders");
    let exported = export(&parts.gate, &parts.store, &args.sale, &args.file, &|done| bar.reach(done)).await;
    bar.end();
    let exported = exported?;
    eprintln!(
        "{} orders, {} in flight, {} sales, acts and payments",
        exported.orders, exported.accepted, exported.others
    );
    Ok(Ended::Done)
}
