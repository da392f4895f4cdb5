//! Asking before something that many depend on.

use std::io::{IsTerminal as _, Write as _};

use super::Failed;

/// Has the caller said yes: by `--yes`, or by typing the word on a terminal?
pub(super) fn confirmed(what: &str, word: &str, yes: bool) -> Result<bool, Failed> {
    if yes {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failed::Usage(format!("{what}: say --yes, since nobody can be asked here")));
    }
    eprint!("{what}. Type {word} to go on: ");
    let _ = std::io::stderr().flush();
    let mut typed = String::new();
    let read = std::io::stdin().read_line(&mut typed);
    let said_yes = read.is_ok() && typed.trim() == word;
    if !said_yes {
        eprintln!("nothing was done");
    }
    Ok(said_yes)
}
