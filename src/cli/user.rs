//! `user`: erases a person's name from archived sales, and from others once they are archived.

use super::ended::{Ended, Failed};
use super::output::Output;
use super::terms::Reason;
use crate::control::Control;
use crate::domain::{SaleId, UserId};
use crate::process::{Config, Parts};
use crate::store::Erasure;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Replace a user's name with a pseudonym in all archived sales, and in the others once they are archived.
    #[command(after_help = "Example:\n  doorbuster user erase ada --yes")]
    Erase {
        user: UserId,
        /// Required, because it cannot be undone.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        reason: Reason,
    },
    /// List the names that are erased once their sale is archived.
    #[command(after_help = "Example:\n  doorbuster user erasures")]
    Erasures {
        #[command(flatten)]
        output: Output,
    },
}

pub(super) async fn run(config: &Config, verb: Verb) -> Result<Ended, Failed> {
    match verb {
        Verb::Erase { yes: false, .. } => Err(Failed::Usage("this cannot be undone: add --yes".into())),
        Verb::Erase { user, reason, .. } => erase(config, &user, reason).await,
        Verb::Erasures { output } => list(config, &output).await,
    }
}

async fn list(config: &Config, output: &Output) -> Result<Ended, Failed> {
    let parts = Parts::open(config).await?;
    let erasures = Control::new(parts.gate, parts.store).erasures().await?;
    if output.is_json() {
        say!("{}", serde_json::json!({ "erasures": erasures }));
        return Ok(Ended::Done);
    }
    if erasures.is_empty() {
        say!("no name waits to be erased");
        return Ok(Ended::Done);
    }
    say!("{:<25} {:<40} USER", "ASKED AT", "SALE");
    for Erasure { sale, user, asked_at } in erasures {
        say!("{asked_at:<25} {sale:<40} {user}");
    }
    Ok(Ended::Done)
}

async fn erase(config: &Config, user: &UserId, reason: Reason) -> Result<Ended, Failed> {
    let parts = Parts::open(config).await?;
    let erased = Control::new(parts.gate, parts.store).erase(user, &reason.request()).await?;
    if erased.orders == 0 && erased.left.is_empty() {
        say!("no sale knows {user}");
        return Ok(Ended::ItemsLeft);
    }
    say!("{user} is {} now, in {} orders", erased.pseudonym, erased.orders);
    say!(
        "the order log has the name until its entries are {} hours old, and dead letters until they are replayed or failed \
         (`doorbuster dead-letters list`); exports and backups keep it until you delete them",
        config.queue.log_hours
    );
    if erased.left.is_empty() {
        return Ok(Ended::Done);
    }
    let left: Vec<&str> = erased.left.iter().map(SaleId::as_str).collect();
    say!(
        "still named in these sales; a front erases the name within a minute after they are archived: {}",
        left.join(", ")
    );
    Ok(Ended::ItemsLeft)
}
