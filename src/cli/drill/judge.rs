//! `drill judge`: another look at the case of a drill that failed.

use super::args::Args;
use super::exit::verdict;
use crate::cli::ended::{Ended, Failed};
use crate::cli::output::print;
use crate::rehearsal::judge::{self, Case};

pub(super) fn judge(args: &Args) -> Result<Ended, Failed> {
    let Some(folder) = &args.folder else {
        let why = "name the folder that the drill has left: doorbuster drill judge FOLDER";
        return Err(Failed::Usage(why.into()));
    };
    let case = Case::open(folder).map_err(|error| Failed::Usage(error.to_string()))?;
    let judgement = judge::judge(&case);
    if args.output.is_json() {
        say!("{}", serde_json::json!(judgement));
    } else {
        print(&judgement);
    }
    Ok(verdict(judgement.broken.is_empty(), judgement.short.is_empty()))
}
