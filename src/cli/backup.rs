//! `backup`: when the database was last backed up, and whether the order log reaches back that far.

use super::ended::{Ended, Failed};
use super::terms::Reason;
use super::time;
use crate::control::recorded;
use crate::domain::Millis;
use crate::process::{Config, Parts};
use crate::queue::OrderLog;
use crate::recovery::log_begins_at;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Record that the database was backed up. Run it after each backup, with the time at which that began.
    #[command(
        after_help = "Example:\n  doorbuster backup mark\n  doorbuster backup mark --at 2030-05-01T03:00:00Z"
    )]
    Mark {
        /// When the backup began: a time such as 2030-05-01T03:00:00Z, or how long ago: 90s, 15m, 2h, 3d. By default
        /// now.
        #[arg(long, value_parser = time::parse)]
        at: Option<Millis>,
        #[command(flatten)]
        reason: Reason,
    },
    /// Show when the database was last backed up, and how far back the order log reaches.
    #[command(after_help = "Example:\n  doorbuster backup show")]
    Show,
}

pub(super) async fn run(config: &Config, verb: Verb) -> Result<Ended, Failed> {
    let store = Parts::open(config).await?.store;
    if let Verb::Mark { at, reason } = verb {
        let (now, at) = (Millis::now(), at.unwrap_or_else(Millis::now));
        let request = reason.request();
        request.check()?;
        if at > now {
            return Err(Failed::Usage(format!("--at {at}: no backup was made in the future")));
        }
        let act = ("backup mark", "the database");
        let marking = async { Ok::<_, Failed>(store.mark_backup(at).await?) };
        recorded(&store, act, &request, marking, |()| format!("backed up at {at}")).await?;
    }
    let last = store.last_backup().await?;
    match last {
        Some(at) => say!("the database was last backed up at {at}"),
        None => say!("no backup is recorded: run `doorbuster backup mark` after each one"),
    }
    let begins_at = match log_begins_at(&OrderLog::open(config.queue()), &store).await {
        Ok(begins_at) => begins_at,
        Err(error) => {
            say!("whether the order log reaches back to it is not known: {error}");
            return Ok(Ended::ItemsLeft);
        }
    };
    match begins_at {
        Some(at) => say!("the order log begins at {at}"),
        None => say!("the order log has everything since the first sale"),
    }
    if last.is_some_and(|last| begins_at.is_none_or(|begins_at| begins_at <= last)) {
        return Ok(Ended::Done);
    }
    if last.is_some() {
        say!(
            "  that backup cannot be brought up to date from the log: make a new one. If the broker was not wiped, raise \
             queue.log_hours or queue.log_mb too"
        );
    }
    Ok(Ended::ItemsLeft)
}
