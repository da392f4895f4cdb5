//! `front`, `worker` and `migrate`.

use super::ended::{Ended, Failed};
use crate::link::InstallationId;
use crate::process::{Config, Role, Running, redact, signal};

pub(super) async fn run(config: &Config, role: Role) -> Result<Ended, Failed> {
    let stop = signal::stop_token();
    let mut running = Box::pin(Running::start(config, role)).await?;
    if role == Role::Front && !config.auth.secret.is_empty() {
        tracing::warn!(
            "auth.secret makes tokens as well as it verifies them: in production, set auth.jwks or auth.public_key to the \
             public keys of your login, and no secret"
        );
    }
    if let Some(buyers) = running.buyers {
        tracing::info!(%buyers, "serving buyers");
    }
    if let Some(monitoring) = running.monitoring {
        tracing::info!(%monitoring, "serving monitoring");
    }
    tracing::info!(operations = %running.operations, database = running.parts.store.engine(), "started");
    let failed = stop.run_until_cancelled(running.task_ended()).await;
    tracing::info!("stopping: taking no new work, finishing what is in progress");
    running.stop().await;
    failed.map_or(Ok(Ended::Done), |why| Err(Failed::Other(why.to_string())))
}

#[derive(Debug, clap::Args)]
pub(super) struct MigrateArgs {
    /// The installation that this database belongs to. Only for a database that replaces the installation's own, or a
    /// backup from before it had an id.
    #[arg(long, value_name = "ID")]
    installation: Option<InstallationId>,
}

pub(super) async fn migrate(config: &Config, args: &MigrateArgs) -> Result<Ended, Failed> {
    let migrated = crate::process::migrate(config, args.installation).await?;
    say!(
        "the tables in {} are up to date; installation {}",
        redact(&config.database.url),
        migrated.installation
    );
    if let Some(why) = migrated.undeclared {
        eprintln!(
            "doorbuster: the queues are not declared ({why}); the first front or worker that may declares them"
        );
    }
    for why in migrated.unreached {
        eprintln!("doorbuster: {why}; it gets the id of the installation when it is first used");
    }
    Ok(Ended::Done)
}
