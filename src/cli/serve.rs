//! `front`, `worker` and `migrate`.

use super::ended::{Ended, Failed};
use crate::process::{Config, Role, Running, redact, signal};
use crate::store::Store;

pub(super) async fn run(config: &Config, role: Role) -> Result<Ended, Failed> {
    let stop = signal::stop_token();
    let mut running = Box::pin(Running::start(config, role)).await?;
    if let Some(buyers) = running.buyers {
        tracing::info!(%buyers, "serving buyers");
    }
    tracing::info!(operations = %running.operations, database = running.parts.store.engine(), "started");
    let failed = stop.run_until_cancelled(running.task_ended()).await;
    tracing::info!("stopping: taking no new work, finishing what is in progress");
    running.stop().await;
    failed.map_or(Ok(Ended::Done), |why| Err(Failed::Other(why.to_string())))
}

pub(super) async fn migrate(config: &Config) -> Result<Ended, Failed> {
    let store = Store::connect(&config.store()).await?;
    store.migrate().await?;
    println!("the tables in {} are up to date", redact(&config.database.url));
    store.close().await;
    Ok(Ended::Done)
}
