//! Configuration: layers in, one checked [`Config`] out. All mistakes are reported together.

mod check;
mod sections;

use std::path::PathBuf;

use config::{ConfigBuilder, Environment, File, FileFormat, builder::DefaultState};

pub use sections::*;

const DEFAULTS: &str = include_str!("../../../config/default.toml");

/// Where configuration comes from, besides the built-in defaults and the environment.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    pub profile: Option<String>,
    pub file: Option<PathBuf>,
    /// `section.key=value`.
    pub overrides: Vec<String>,
}

/// Every mistake found, one line each.
#[derive(Debug, thiserror::Error)]
#[error("the configuration has {} mistake{}:\n{}", .0.len(), if .0.len() == 1 { "" } else { "s" }, .0.join("\n"))]
pub struct Mistakes(pub Vec<String>);

impl Config {
    pub fn load(sources: &Sources) -> Result<Self, Mistakes> {
        let one = |text: String| Mistakes(vec![format!("  {text}")]);
        let defaults = config::Config::builder()
            .add_source(File::from_str(DEFAULTS, FileFormat::Toml))
            .build()
            .map_err(|error| one(format!("config/default.toml: {error}")))?;
        let merged = layers(sources).map_err(one)?.build().map_err(|error| one(error.to_string()))?;
        let mut mistakes = Vec::new();
        check::keys(&defaults, &merged, &mut mistakes);
        if mistakes.is_empty() {
            let config: Config = match merged.try_deserialize() {
                Ok(config) => config,
                Err(error) => return Err(one(error.to_string())),
            };
            let config = config.with_secret_from_file(&mut mistakes);
            config.check(&mut mistakes);
            if mistakes.is_empty() {
                return Ok(config);
            }
        }
        mistakes.sort();
        Err(Mistakes(mistakes.into_iter().map(|mistake| format!("  {mistake}")).collect()))
    }
}

fn layers(sources: &Sources) -> Result<ConfigBuilder<DefaultState>, String> {
    let mut builder = config::Config::builder().add_source(File::from_str(DEFAULTS, FileFormat::Toml));
    if let Some(profile) = &sources.profile {
        let path = format!("config/{profile}.toml");
        builder = builder.add_source(File::new(&path, FileFormat::Toml));
    }
    if let Some(file) = &sources.file {
        builder = builder.add_source(File::from(file.clone()).format(FileFormat::Toml));
    }
    builder =
        builder.add_source(Environment::with_prefix("DOORBUSTER").prefix_separator("__").separator("__"));
    for pair in &sources.overrides {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| format!("--set {pair}: write it as section.key=value"))?;
        builder = builder.set_override(key, value).map_err(|error| format!("--set {pair}: {error}"))?;
    }
    Ok(builder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(overrides: &[&str]) -> Result<Config, Mistakes> {
        let overrides = overrides.iter().map(|pair| (*pair).to_owned()).collect();
        Config::load(&Sources { overrides, ..Default::default() })
    }

    const SECRET: &str = "auth.secret=0123456789abcdef0123456789abcdef";

    #[test]
    fn the_defaults_need_only_a_secret() {
        assert!(load(&[SECRET]).is_ok());
        let error = load(&[]).expect_err("no secret").to_string();
        assert!(error.contains("auth.secret"), "{error}");
    }

    #[test]
    fn all_mistakes_are_told_at_once_and_misspelt_keys_with_a_suggestion() {
        let error = load(&[SECRET, "worker.bach=9", "queue.window=many", "nonsense.x=1"])
            .expect_err("three mistakes");
        let text = error.to_string();
        assert_eq!(error.0.len(), 3, "{text}");
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
        let config = load(&[SECRET, "database.url=postgres://shop:hunter2@db/shop"]).expect("valid");
        let shown = config.redacted();
        assert!(!shown.contains("0123456789") && !shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("shop:***@db"), "{shown}");
    }
}
