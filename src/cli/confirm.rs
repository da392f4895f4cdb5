//! Asks for confirmation of an act that affects many people.

use std::io::{IsTerminal as _, Write as _};

use super::ended::Failed;

/// Whether the caller agrees, by `--yes` or by typing `word` on a terminal. Without a terminal only `--yes` counts.
pub(super) fn confirmed(what: &str, word: &str, yes: bool) -> Result<bool, Failed> {
    if yes {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failed::Usage(format!("{what}: add --yes, since there is no terminal to ask on")));
    }
    eprint!("{what}. Type {word} to continue: ");
    let _ = std::io::stderr().flush();
    let mut typed = String::new();
    let read = std::io::stdin().read_line(&mut typed);
    let agreed = read.is_ok() && typed.trim() == word;
    if !agreed {
        eprintln!("nothing was done");
    }
    Ok(agreed)
}
