//! `sale check`: checks everything that a sale needs, while there is still time.

use std::time::Duration;

use crate::cli::ended::{Ended, Failed};
use crate::cli::output::Output;
use crate::control::{Check, Control};
use crate::domain::SaleId;
use crate::process::Config;
use crate::queue::Publisher;

/// How long connecting to the broker may take.
const BROKER_WITHIN: Duration = Duration::from_secs(10);

pub(super) async fn check(
    config: &Config,
    control: &Control,
    sale: &SaleId,
    output: &Output,
) -> Result<Ended, Failed> {
    let mut checks = control.check(sale).await?;
    checks.push(broker(config).await);
    let ready = checks.iter().all(|check| check.good);
    if output.is_json() {
        say!("{}", serde_json::json!({ "sale_id": sale, "ready": ready, "checks": checks }));
    } else {
        for check in &checks {
            say!("{:<5} {:<16} {}", if check.good { "ok" } else { "WRONG" }, check.what, check.said);
        }
        say!("{sale} is {}", if ready { "ready" } else { "not ready" });
    }
    Ok(if ready { Ended::Done } else { Ended::ItemsLeft })
}

/// Connects as a front does: this declares the exchanges and queues, and compares their settings.
async fn broker(config: &Config) -> Check {
    let publisher = Publisher::open(config.queue());
    let up = tokio::time::timeout(BROKER_WITHIN, publisher.wait_until_up()).await.is_ok();
    let said = match up {
        true => "answers, and its exchanges and queues have the right settings".to_owned(),
        false => {
            format!("could not be used within {BROKER_WITHIN:?}; is it running, and is queue.url right?")
        }
    };
    Check { what: "broker", good: up, said }
}
