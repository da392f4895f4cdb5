//! Asks for confirmation of an act that affects many people.

use std::io::{IsTerminal as _, Write as _};

use tokio_util::sync::CancellationToken;

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

/// The same for a command that ends at `stop`, also while it waits for the answer. `None` if it is time to stop.
pub(super) async fn confirmed_unless(
    stop: &CancellationToken,
    (what, word): (&str, &str),
    yes: bool,
) -> Result<Option<bool>, Failed> {
    let (answer, answered) = tokio::sync::oneshot::channel();
    let (what, word) = (what.to_owned(), word.to_owned());
    // A thread of its own: the process ends although it still reads.
    std::thread::spawn(move || answer.send(confirmed(&what, &word, yes)));
    match stop.run_until_cancelled(answered).await {
        Some(answered) => answered.unwrap_or(Ok(false)).map(Some),
        None => {
            eprintln!();
            Ok(None)
        }
    }
}
