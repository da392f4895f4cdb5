//! `user`: what is known of a person.

use super::{Ended, Failed};
use crate::control::Control;
use crate::domain::UserId;
use crate::process::Parts;
use crate::process::config::Config;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Put a name that says nothing in the place of a user's, in all archived sales.
    Erase {
        user: UserId,
        /// It cannot be undone.
        #[arg(long)]
        yes: bool,
    },
}

pub(super) async fn run(config: &Config, verb: Verb) -> Result<Ended, Failed> {
    let Verb::Erase { user, yes } = verb;
    if !yes {
        return Err(Failed::Usage("this cannot be undone: say --yes".into()));
    }
    let parts = Parts::open(config).await?;
    let erased = Control::new(parts.gate, parts.store).erase(&user).await?;
    if erased.orders == 0 && erased.left.is_empty() {
        println!("no sale knows {user}");
        return Ok(Ended::ItemsLeft);
    }
    println!("{user} is {} now, in {} orders", erased.pseudonym, erased.orders);
    if erased.left.is_empty() {
        return Ok(Ended::Done);
    }
    let left: Vec<&str> = erased.left.iter().map(crate::domain::SaleId::as_str).collect();
    println!("not in these sales, which have to be archived first: {}", left.join(", "));
    Ok(Ended::ItemsLeft)
}
