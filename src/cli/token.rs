//! `token`: a bearer token for development. In production the shop's login signs tokens.

use super::ended::{Ended, Failed};
use crate::domain::UserId;
use crate::front::{Role, Signer};
use crate::process::Config;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The buyer or operator: the token's `sub`.
    user: String,
    /// Gives access to the admin API.
    #[arg(long, value_parser = ["viewer", "operator", "admin"])]
    role: Option<String>,
    /// Seconds for which it is valid, at most auth.longest_life_s.
    #[arg(long, default_value_t = 24 * 3600, value_parser = clap::value_parser!(u32).range(1..=31_536_000))]
    lasts: u32,
}

pub(super) fn run(config: &Config, args: &Args) -> Result<Ended, Failed> {
    let role = args.role.as_deref().map(|role| match role {
        "admin" => Role::Admin,
        "operator" => Role::Operator,
        _ => Role::Viewer,
    });
    let user: UserId = args.user.parse()?;
    let auth = config.auth();
    let longest = auth.longest_life.as_secs();
    if u64::from(args.lasts) > longest {
        return Err(Failed::Other(format!(
            "--lasts is {}, and auth.longest_life_s is {longest}: such a token would be refused",
            args.lasts
        )));
    }
    say!("{}", Signer::new(auth).mint(&user, role, args.lasts));
    Ok(Ended::Done)
}
