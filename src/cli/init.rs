//! `doorbuster init`: writes files for the tools that a team runs already.

use std::path::PathBuf;

use clap::Subcommand;

use super::ended::{Ended, Failed};
use crate::telemetry::grafana;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Prometheus: what to scrape, and the alerts.
    #[command(
        after_help = "Example:\n  doorbuster init prometheus --into /etc/prometheus --target front-1:9100"
    )]
    Prometheus {
        #[command(flatten)]
        files: Files,
        /// The operations listener of a process, HOST:PORT. May be repeated.
        #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9090")]
        target: Vec<String>,
    },
    /// Grafana: a dashboard to import.
    #[command(after_help = "Example:\n  doorbuster init grafana --into /var/lib/grafana/dashboards")]
    Grafana {
        #[command(flatten)]
        files: Files,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Files {
    /// The folder for the files.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    into: PathBuf,
    /// Replace files that exist.
    #[arg(long)]
    force: bool,
}

/// The alert rules of this build.
const ALERTS: &str = include_str!("../../config/prometheus/alerts.yml");

pub(super) fn run(verb: &Verb) -> Result<Ended, Failed> {
    match verb {
        Verb::Prometheus { files, target } => {
            files.write(&[("prometheus.yml", &scrape(target)), ("alerts.yml", ALERTS)])?;
        }
        Verb::Grafana { files } => {
            files.write(&[("doorbuster-dashboard.json", &format!("{:#}\n", grafana()))])?;
        }
    }
    Ok(Ended::Done)
}

fn scrape(targets: &[String]) -> String {
    let targets: Vec<String> = targets.iter().map(|target| format!("          - {target:?}\n")).collect();
    format!(
        "# Written by `doorbuster init prometheus`. The alerts need a scrape each minute at least; during a sale, each five\n\
         # seconds show more.\n\
         global:\n  scrape_interval: 5s\n  evaluation_interval: 15s\n\
         rule_files: [alerts.yml]\n\
         scrape_configs:\n  - job_name: doorbuster\n    static_configs:\n      - targets:\n{}",
        targets.concat()
    )
}

impl Files {
    /// Writes all of them, or none if one exists.
    fn write(&self, files: &[(&str, &str)]) -> Result<(), Failed> {
        let paths = files.iter().map(|(name, _)| self.into.join(name));
        if let Some(path) = paths.into_iter().find(|path| !self.force && path.exists()) {
            return Err(Failed::Usage(format!("{} exists; --force replaces it", path.display())));
        }
        for (name, text) in files {
            let path = self.into.join(name);
            std::fs::write(&path, text)
                .map_err(|error| Failed::Other(format!("{}: {error}", path.display())))?;
            println!("{}", path.display());
        }
        Ok(())
    }
}
