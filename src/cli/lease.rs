//! `lease`: who holds which lease, and an operator's release.

use std::time::Duration;

use super::ended::{Ended, Failed};
use super::output::Output;
use super::terms::Reason;
use crate::control::recorded;
use crate::lease::{Lease, Leases};
use crate::process::{Config, Parts};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// List the leases that are held now.
    #[command(after_help = "Example:\n  doorbuster lease list --scope shoes")]
    List {
        /// Only this scope: a sale, or an internal scope, which begins with an underscore.
        #[arg(long)]
        scope: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Show one lease.
    #[command(after_help = "Example:\n  doorbuster lease show shoes ada")]
    Show {
        /// The scope that `list` shows: the sale.
        scope: String,
        /// The name that `list` shows: the user.
        name: String,
        #[command(flatten)]
        output: Output,
    },
    /// Take a lease from a holder that is gone.
    ///
    /// Leases also expire by themselves. A holder that is still alive learns late that its lease is gone: until
    /// then only its fencing token keeps it from writing.
    #[command(after_help = "Example:\n  doorbuster lease release shoes ada --token 17")]
    Release {
        /// The scope that `list` shows: the sale.
        scope: String,
        /// The name that `list` shows: the user.
        name: String,
        /// The token that `show` prints. A lease that has been taken again since then is not touched.
        #[arg(long)]
        token: i64,
        #[command(flatten)]
        reason: Reason,
    },
}

pub(super) async fn run(config: &Config, verb: Verb) -> Result<Ended, Failed> {
    let leases = Leases::open(&config.redis(), &config.redis.prefix)?;
    match verb {
        Verb::List { scope, output } => {
            let scopes = match scope {
                Some(scope) => vec![scope],
                None => leases.scopes().await?,
            };
            let mut held = Vec::new();
            for scope in scopes {
                held.extend(leases.list(&scope).await?);
            }
            print_list(&held, &output);
            Ok(Ended::Done)
        }
        Verb::Show { scope, name, output } => match leases.show(&scope, &name).await? {
            Some(lease) => {
                print_one(&lease, &output);
                Ok(Ended::Done)
            }
            None => Err(Failed::Other(format!("nobody holds {name} in {scope}"))),
        },
        Verb::Release { scope, name, token, reason } => {
            let (request, store) = (reason.request(), Parts::open(config).await?.store);
            request.check()?;
            // The name would be a person's.
            let act = ("lease release", scope.as_str());
            let releasing = async { Ok::<_, Failed>(leases.force_release(&scope, &name, token).await?) };
            let describe = |released: &bool| match released {
                true => format!("released token {token}"),
                false => format!("nothing released: no lease has token {token}"),
            };
            if recorded(&store, act, &request, releasing, describe).await? {
                say!("{name} in {scope} is free");
                return Ok(Ended::Done);
            }
            let now = leases.show(&scope, &name).await?;
            Err(Failed::Other(match now {
                Some(lease) => format!(
                    "nothing released: {name} in {scope} is held with token {} by {}",
                    lease.token, lease.holder
                ),
                None => format!("nothing released: nobody holds {name} in {scope}"),
            }))
        }
    }
}

fn print_list(leases: &[Lease], output: &Output) {
    if output.is_json() {
        let leases: Vec<_> = leases.iter().map(json).collect();
        say!("{}", serde_json::json!({ "leases": leases }));
        return;
    }
    if leases.is_empty() {
        say!("no leases are held");
        return;
    }
    let widest =
        |of: fn(&Lease) -> &str| leases.iter().map(|lease| of(lease).len()).max().unwrap_or(0).max(5);
    let (scope, name) = (widest(|lease| &lease.scope), widest(|lease| &lease.name));
    say!(
        "{:<scope$}  {:<name$}  {:>8}  {:>8}  {:<16}  {:<32}  HOLDER",
        "SCOPE",
        "NAME",
        "AGE",
        "ENDS IN",
        "TOKEN",
        "OWNER"
    );
    for lease in leases {
        say!(
            "{:<scope$}  {:<name$}  {:>8}  {:>8}  {:<16}  {:<32}  {}",
            lease.scope,
            lease.name,
            seconds(lease.age),
            seconds(lease.ends_in),
            lease.token,
            lease.owner,
            lease.holder
        );
    }
}

fn print_one(lease: &Lease, output: &Output) {
    if output.is_json() {
        say!("{}", json(lease));
        return;
    }
    say!("scope    {}", lease.scope);
    say!("name     {}", lease.name);
    say!("holder   {}", lease.holder);
    say!("owner    {}", lease.owner);
    say!("token    {}", lease.token);
    say!("age      {}", seconds(lease.age));
    say!("ends in  {}", seconds(lease.ends_in));
}

fn json(lease: &Lease) -> serde_json::Value {
    serde_json::json!({
        "scope": lease.scope,
        "name": lease.name,
        "holder": lease.holder,
        "owner": lease.owner,
        "token": lease.token,
        "age_ms": milliseconds(lease.age),
        "ends_in_ms": milliseconds(lease.ends_in),
    })
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
