//! `settings`: what an operator changes for all processes while they run.

use std::sync::Arc;

use super::ended::{Ended, Failed};
use super::output::Output;
use super::terms::Reason;
use crate::control::{SettingActs, SettingError, SettingStatus};
use crate::process::{Config, Parts};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// List the settings that may change, with their values, and who has set them.
    #[command(after_help = "Example:\n  doorbuster settings list")]
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Set a setting for all processes. They follow within two seconds.
    #[command(
        after_help = "Example:\n  doorbuster settings set worker.lanes 2 --reason \"the database is slow\"\n  \
                      doorbuster settings set front.read_only true"
    )]
    Set {
        /// A key of the configuration, such as worker.lanes.
        name: String,
        /// Its value.
        value: String,
        #[command(flatten)]
        reason: Reason,
        #[command(flatten)]
        output: Output,
    },
    /// Have the value of each process's configuration count again.
    #[command(after_help = "Example:\n  doorbuster settings unset worker.lanes")]
    Unset {
        /// A key of the configuration, such as worker.lanes.
        name: String,
        #[command(flatten)]
        reason: Reason,
        #[command(flatten)]
        output: Output,
    },
}

pub(super) async fn run(config: &Config, verb: Verb) -> Result<Ended, Failed> {
    let acts = SettingActs::new(Arc::new(config.clone()), Parts::open(config).await?.store);
    let (all, output) = match verb {
        Verb::List { output } => (acts.list().await, output),
        Verb::Set { name, value, reason, output } => {
            (acts.set(&name, &value, &reason.request()).await, output)
        }
        Verb::Unset { name, reason, output } => (acts.unset(&name, &reason.request()).await, output),
    };
    let all = all.map_err(|error| match error {
        SettingError::Setting(_) | SettingError::Request(_) => Failed::Usage(error.to_string()),
        SettingError::Store(error) => error.into(),
    })?;
    if output.is_json() {
        say!("{}", serde_json::json!({ "settings": all }));
    } else {
        print(&all);
    }
    Ok(Ended::Done)
}

fn print(all: &[SettingStatus]) {
    say!("{:<26} {:<14} {:<14} SET BY", "NAME", "VALUE", "CONFIGURED");
    for SettingStatus { name, value, configured, set, .. } in all {
        let [value, configured] = [value, configured].map(|text| if text.is_empty() { "-" } else { text });
        let set = set.as_ref().map_or_else(
            || "-".to_owned(),
            |set| {
                let reason = set.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
                format!("{} at {}{reason}", set.by, set.at)
            },
        );
        say!("{name:<26} {value:<14} {configured:<14} {set}");
    }
}
