//! The sources of a command's configuration: the options before and after its name, and what the command needs.

use std::ffi::OsString;
use std::path::PathBuf;

use super::discover;
use super::ended::Failed;
use crate::process::{Config, Sources, log, redact};
use crate::store::missing_file;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct SourceArgs {
    /// Read config/<PROFILE>.toml, overriding the defaults.
    #[arg(long, global = true)]
    profile: Option<String>,
    /// Read this file, overriding the profile.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one key, overriding everything else. May be repeated.
    #[arg(long = "set", global = true, value_name = "SECTION.KEY=VALUE")]
    overrides: Vec<String>,
}

/// What a command needs from its configuration.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Needs {
    /// It signs or verifies tokens. Other commands run without a secret.
    pub(super) secret: bool,
    /// It signs tokens, so a public key is not enough.
    pub(super) signs: bool,
    /// It works with servers that are already running, or with their secret, so it looks for their addresses.
    /// Commands that start private servers must not meet any others.
    pub(super) discovers: bool,
}

impl SourceArgs {
    /// Adds the discovered file, if the command looks for one, and reports it on standard error. Refuses secrets among the
    /// options.
    pub(super) fn resolve(self, needs: Needs) -> Result<Sources, Failed> {
        for pair in &self.overrides {
            refuse_secret(pair)?;
        }
        let mut file = self.config;
        if file.is_none() && needs.discovers {
            file = discover::from_environment()?;
        }
        let configured = file.is_some() || self.profile.is_some() || discover::is_configured(&self.overrides);
        if needs.discovers
            && !configured
            && let Ok(here) = std::env::current_dir()
            && let Some(found) = discover::nearest(&here)?
        {
            eprintln!("using {}", discover::shown(&found, &here).display());
            file = Some(found);
        }
        Ok(Sources {
            defaults: Vec::new(),
            needs_secret: needs.secret,
            signs: needs.signs,
            profile: self.profile,
            file,
            overrides: self.overrides,
        })
    }
}

/// Every user of a host can read the command lines of its processes.
fn refuse_secret(pair: &str) -> Result<(), Failed> {
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    let is_secret = match key {
        "auth.secret" | "payments.secrets" | "traces.headers" => !value.is_empty(),
        "redis.url" | "queue.url" | "database.url" | "auth.jwks" => redact(value) != value,
        _ => false,
    };
    if !is_secret {
        return Ok(());
    }
    let variable = format!("DOORBUSTER__{}", key.to_uppercase().replace('.', "__"));
    let file = if key == "auth.jwks" { String::new() } else { format!(", or name a file with {key}_file") };
    Err(Failed::Usage(format!(
        "--set {key} holds a secret, and every user of this host can read it there; set {variable}{file}"
    )))
}

/// For commands that print a result: the log shows only problems. Commands say themselves that the database has gone back
/// in time.
pub(super) fn load(sources: &Sources) -> Result<Config, Failed> {
    log::start_with("text", "warn,doorbuster::store::witnesses=off");
    Ok(Config::load(sources)?)
}

/// For commands that look at a database or change what is in it: one that is not there is a mistake, which must not leave
/// an empty file behind.
pub(super) fn load_with_database(sources: &Sources) -> Result<Config, Failed> {
    let config = load(sources)?;
    let Some(file) = missing_file(&config.database.url) else { return Ok(config) };
    Err(Failed::Usage(format!(
        "there is no database {}: start `doorbuster dev`, name a configuration with --config FILE or DOORBUSTER_CONFIG, or \
         create the database with `doorbuster migrate`",
        file.display()
    )))
}

/// For long-running processes: the log is as configured.
pub(super) fn load_and_log(sources: &Sources) -> Result<Config, Failed> {
    let config = Config::load(sources)?;
    log::start(&config);
    Ok(config)
}

/// Moves `--set`, `--config` and `--profile` before the command: otherwise clap would silently let the ones after it
/// replace the ones before it.
pub(super) fn first(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args = args.into_iter();
    let mut first: Vec<OsString> = args.next().into_iter().collect();
    let mut rest = Vec::new();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        let option = ["--set", "--config", "--profile"]
            .into_iter()
            .find(|option| text == *option || text.starts_with(&format!("{option}=")));
        if text == "--" {
            rest.push(arg);
            rest.extend(args);
            break;
        } else if let Some(option) = option {
            let has_value = text.len() > option.len();
            first.push(arg);
            if !has_value {
                first.extend(args.next());
            }
        } else {
            rest.push(arg);
        }
    }
    first.extend(rest);
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_before_and_after_the_command_all_count() {
        let line = "doorbuster --set a.b=1 token --set=c.d=2 ada --config x.toml -- --set";
        let sorted = first(line.split(' ').map(OsString::from));
        let expected = "doorbuster --set a.b=1 --set=c.d=2 --config x.toml token ada -- --set";
        assert_eq!(sorted, expected.split(' ').map(OsString::from).collect::<Vec<_>>());
    }
}
