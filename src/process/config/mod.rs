//! Configuration: layers in, one checked [`Config`] out. All mistakes are reported together.

mod check;
mod keys;
mod live;
mod ranges;
mod redact;
mod sections;
mod settings;
mod transport;

use std::path::PathBuf;

use config::{ConfigBuilder, Environment, File, FileFormat, builder::DefaultState};

pub use redact::redact;
pub use sections::*;

const DEFAULTS: &str = include_str!("../../../config/default.toml");

/// Where configuration comes from, besides the built-in defaults and the environment.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// Applied over the built-in defaults, below everything else.
    pub defaults: Vec<(&'static str, String)>,
    /// Whether the command signs or verifies tokens. Other commands need no secret.
    pub needs_secret: bool,
    /// Whether it signs them. Then a public key alone is not enough.
    pub signs: bool,
    /// The name of a file in `config/`.
    pub profile: Option<String>,
    /// A file that overrides the profile.
    pub file: Option<PathBuf>,
    /// Pairs of `section.key=value` that override everything else.
    pub overrides: Vec<String>,
}

/// Every mistake found.
#[derive(Debug, thiserror::Error)]
#[error("the configuration has {} mistake{}:\n{}", .0.len(), if .0.len() == 1 { "" } else { "s" }, .0.join("\n"))]
pub struct Mistakes(
    /// One line each.
    pub Vec<String>,
);

impl Config {
    /// Merges all sources and checks the result; reports every mistake at once.
    pub fn load(sources: &Sources) -> Result<Self, Mistakes> {
        let one = |error: config::ConfigError| Mistakes(vec![format!("  {error}")]);
        let defaults = from_defaults().build().map_err(one)?;
        let merged = layers(sources)?.build().map_err(one)?;
        let mut mistakes = Vec::new();
        // A key that is misspelt or has the wrong type is reported and keeps its default, so that the rest can be
        // checked in the same pass.
        let mut usable = from_defaults();
        for (key, value) in keys::usable(&defaults, &merged, &mut mistakes) {
            usable = usable.set_override(key, value).map_err(one)?;
        }
        let usable = usable.build().map_err(one)?;
        let defaults = defaults.try_deserialize::<Config>().map_err(one)?;
        match usable.try_deserialize::<Config>() {
            Ok(config) => {
                let config = config.with_secrets_from_files(&defaults, &mut mistakes);
                check::check(&config, sources.needs_secret, sources.signs, &mut mistakes);
                if mistakes.is_empty() {
                    return Ok(config);
                }
            }
            Err(error) => mistakes.push(error.to_string()),
        }
        mistakes.sort();
        Err(Mistakes(mistakes.into_iter().map(|mistake| format!("  {mistake}")).collect()))
    }
}

fn from_defaults() -> ConfigBuilder<DefaultState> {
    config::Config::builder().add_source(File::from_str(DEFAULTS, FileFormat::Toml))
}

fn layers(sources: &Sources) -> Result<ConfigBuilder<DefaultState>, Mistakes> {
    let mistake = |text: String| Mistakes(vec![format!("  {text}")]);
    let mut builder = from_defaults();
    for (key, value) in &sources.defaults {
        let text = format!("{key} = {}", toml::Value::from(value.as_str()));
        builder = builder.add_source(File::from_str(&text, FileFormat::Toml));
    }
    if let Some(profile) = &sources.profile {
        builder = builder.add_source(File::new(&format!("config/{profile}.toml"), FileFormat::Toml));
    }
    if let Some(file) = &sources.file {
        builder = builder.add_source(File::from(file.clone()).format(FileFormat::Toml));
    }
    builder =
        builder.add_source(Environment::with_prefix("DOORBUSTER").prefix_separator("__").separator("__"));
    for pair in &sources.overrides {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| mistake(format!("--set {pair}: write it as section.key=value")))?;
        builder =
            builder.set_override(key, value).map_err(|error| mistake(format!("--set {pair}: {error}")))?;
    }
    Ok(builder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(overrides: &[&str]) -> Result<Config, Mistakes> {
        let overrides = overrides.iter().map(|pair| (*pair).to_owned()).collect();
        Config::load(&Sources { overrides, needs_secret: true, ..Default::default() })
    }

    const SECRET: &str = "auth.secret=0123456789abcdef0123456789abcdef";

    #[test]
    fn the_defaults_need_only_a_key() {
        let config = load(&[SECRET]).expect("valid");
        let secret = SECRET.split_once('=').expect("a pair").1;
        assert_eq!(config.auth(), crate::front::AuthSettings::with_secret(secret));
        let error = load(&[]).expect_err("no key").to_string();
        assert!(error.contains("auth.jwks"), "{error}");
    }

    #[test]
    fn all_mistakes_are_reported_at_once_and_misspelt_keys_with_a_suggestion() {
        let error = load(&[
            SECRET,
            "worker.bach=9",
            "queue.window=many",
            "nonsense.x=1",
            "gate.batch=0",
            "log.level=warning",
        ])
        .expect_err("five mistakes");
        let text = error.to_string();
        assert_eq!(error.0.len(), 5, "{text}");
        assert!(text.contains("worker.bach is not a key; did you mean worker.batch?"), "{text}");
        assert!(text.contains("queue.window must be a whole number, not \"many\""), "{text}");
    }

    #[test]
    fn values_outside_their_range_are_refused_with_the_range() {
        let error = load(&[SECRET, "worker.batch=0", "auth.leeway_s=60", "front.listen=here"])
            .expect_err("out of range");
        let text = error.to_string();
        assert_eq!(error.0.len(), 3, "{text}");
        assert!(text.contains("worker.batch is 0; it must be 1 to 1000"), "{text}");
    }

    #[test]
    fn every_default_lies_in_its_range_and_secrets_are_not_shown() {
        let config =
            load(&[SECRET, "database.url=postgres://shop:hunter2@db/shop?sslmode=require"]).expect("valid");
        let shown = config.redacted();
        assert!(!shown.contains("0123456789") && !shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("shop:***@db"), "{shown}");
    }
}
