//! `user`: erases a person's name from archived sales.

use super::ended::{Ended, Failed};
use super::terms::Reason;
use crate::control::Control;
use crate::domain::{SaleId, UserId};
use crate::process::{Config, Parts};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Replace a user's name with a pseudonym in all archived sales.
    #[command(after_help = "Example:\n  doorbuster user erase ada --yes")]
    Erase {
        user: UserId,
        /// Required, because it cannot be undone.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        reason: Reason,
    },
}

pub(super) async fn run(config: &Config, verb: Verb) -> Result<Ended, Failed> {
    let Verb::Erase { user, yes, reason } = verb;
    if !yes {
        return Err(Failed::Usage("this cannot be undone: add --yes".into()));
    }
    let parts = Parts::open(config).await?;
    let erased = Control::new(parts.gate, parts.store).erase(&user, &reason.request()).await?;
    if erased.orders == 0 && erased.left.is_empty() {
        println!("no sale knows {user}");
        return Ok(Ended::ItemsLeft);
    }
    println!("{user} is {} now, in {} orders", erased.pseudonym, erased.orders);
    println!(
        "the order log has the name until its entries are {} hours old; exports and backups keep it until you delete them",
        config.queue.log_hours
    );
    if erased.left.is_empty() {
        return Ok(Ended::Done);
    }
    let left: Vec<&str> = erased.left.iter().map(SaleId::as_str).collect();
    println!("still named in these sales, which have to be archived first: {}", left.join(", "));
    Ok(Ended::ItemsLeft)
}
