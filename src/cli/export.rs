//! `export`: a sale as lines, for `replay run file`.

use std::path::PathBuf;

use super::{Ended, Failed};
use crate::domain::SaleId;
use crate::process::Parts;
use crate::process::config::Config;
use crate::recovery::replay::export;
use crate::rehearsal::drill::Progress as Bar;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Which sale.
    #[arg(long)]
    sale: SaleId,
    /// The file that is written, or - for standard output.
    #[arg(long)]
    file: PathBuf,
}

pub(super) async fn run(config: &Config, args: Args) -> Result<Ended, Failed> {
    let parts = Parts::open(config).await?;
    let bar = Bar::on_stderr();
    bar.begin(0, "orders");
    let exported = export(&parts.gate, &parts.store, &args.sale, &args.file, &|done| bar.reach(done)).await;
    bar.end();
    let exported = exported.map_err(|error| Failed::Said(error.to_string()))?;
    eprintln!(
        "{} orders, {} in flight, {} sales, acts and payments",
        exported.orders, exported.accepted, exported.others
    );
    Ok(Ended::Done)
}
