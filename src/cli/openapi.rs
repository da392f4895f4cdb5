//! `openapi`: the OpenAPI document of the HTTP API.

use super::ended::{Ended, Failed};
use crate::front::Api;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Whose API: what a front serves to buyers and payment providers, or what operators and monitoring call.
    #[arg(value_enum)]
    api: Chosen,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Chosen {
    Buyers,
    Operations,
}

pub(super) fn run(args: &Args) -> Result<Ended, Failed> {
    let api = match args.api {
        Chosen::Buyers => Api::Buyers,
        Chosen::Operations => Api::Operations,
    };
    say!("{:#}", api.document());
    Ok(Ended::Done)
}
