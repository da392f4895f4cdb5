//! The keys that an operator may change for all running processes. A value that is set in the database replaces that of the
//! configuration.

use serde_json::Value;

use super::check;
use super::sections::Config;
use crate::control::{InvalidSetting, KnownSetting, KnownSettings};
use crate::store::LiveSetting;

/// Each key, and what its value may be. `config/default.toml` says what it means.
const LIVE: [(&str, &str); 10] = [
    ("front.address_rate", "a rate such as 100/1s, or nothing for no limit"),
    ("front.buyer_rate", "a rate such as 20/1s, or nothing for no limit"),
    ("front.read_only", "true or false"),
    ("front.refuse_above_mb", "0 to 1000000; 0 for no bound"),
    ("front.shed_reads_percent", "0 to 100"),
    ("front.suspected_rate", "a rate such as 1000/1s, or nothing for no limit"),
    ("log.level", "error, warn, info, debug, trace, or a filter of up to 200 characters"),
    ("worker.lanes", "1 to 16"),
    ("worker.lease_ms", "2000 to 5000"),
    ("worker.persist", "true or false"),
];

/// The longest value, in characters, that its column takes.
const LONGEST: usize = 200;

impl Config {
    /// The same configuration with another value for a key that may change.
    pub(in crate::process) fn with_live(&self, name: &str, value: &str) -> Result<Self, InvalidSetting> {
        let (_, allowed) = LIVE.iter().find(|(known, _)| *known == name).ok_or_else(|| unknown(name))?;
        let invalid = || InvalidSetting::Value { name: name.to_owned(), value: value.to_owned(), allowed };
        if value.chars().count() > LONGEST {
            return Err(invalid());
        }
        let mut values = serde_json::to_value(self).map_err(|_| invalid())?;
        let leaf = leaf(&mut values, name).ok_or_else(invalid)?;
        *leaf = match leaf {
            Value::Bool(_) => Value::Bool(value.parse().map_err(|_| invalid())?),
            Value::Number(_) => Value::from(value.parse::<u64>().map_err(|_| invalid())?),
            _ => Value::from(value),
        };
        let mut changed: Self = serde_json::from_value(values).map_err(|_| invalid())?;
        changed.installation = self.installation.clone();
        let mut mistakes = Vec::new();
        check::check(&changed, false, false, &mut mistakes);
        if mistakes.iter().any(|mistake| mistake.starts_with(name)) {
            return Err(invalid());
        }
        Ok(changed)
    }

    /// The configuration with all that was set, and why one or the other value does not count.
    pub(in crate::process) fn with_all_live(&self, set: &[LiveSetting]) -> (Self, Vec<InvalidSetting>) {
        let (mut config, mut refused) = (self.clone(), Vec::new());
        for setting in set {
            match config.with_live(&setting.name, &setting.value) {
                Ok(changed) => config = changed,
                Err(why) => refused.push(why),
            }
        }
        (config, refused)
    }
}

impl KnownSettings for Config {
    fn all(&self) -> Vec<KnownSetting> {
        let mut values = serde_json::to_value(self).unwrap_or_default();
        let mut configured = |name| match leaf(&mut values, name) {
            Some(Value::String(text)) => text.clone(),
            other => other.map(|value| value.to_string()).unwrap_or_default(),
        };
        LIVE.map(|(name, allowed)| KnownSetting { name, configured: configured(name), allowed }).into()
    }

    fn check(&self, name: &str, value: &str) -> Result<(), InvalidSetting> {
        self.with_live(name, value).map(|_| ())
    }
}

fn leaf<'a>(values: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    let (section, key) = name.split_once('.')?;
    values.get_mut(section)?.get_mut(key)
}

fn unknown(name: &str) -> InvalidSetting {
    let known = LIVE.map(|(known, _)| known).join(", ");
    InvalidSetting::Unknown { name: name.to_owned(), known }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Sources;

    fn config() -> Config {
        Config::load(&Sources::default()).expect("valid")
    }

    #[test]
    fn every_key_is_known_and_its_default_is_allowed() {
        for setting in config().all() {
            let said = config().check(setting.name, &setting.configured);
            assert!(said.is_ok(), "{}: {said:?}", setting.name);
        }
    }

    #[test]
    fn a_value_out_of_its_range_is_refused_with_the_range() {
        for (name, value, says) in [
            ("worker.lanes", "17", "worker.lanes cannot be \"17\"; it must be 1 to 16"),
            ("worker.lanes", "many", "it must be 1 to 16"),
            ("front.read_only", "yes", "it must be true or false"),
            ("front.address_rate", "fast", "it must be a rate such as 100/1s, or nothing for no limit"),
            ("log.level", "loud", "it must be error, warn, info, debug, trace, or a filter of"),
            ("log.level", &format!("info,a={}", "debug,b=".repeat(30)), "it must be error, warn, info,"),
            (
                "front.listen",
                "0.0.0.0:80",
                "front.listen cannot be set while processes run; these can: front.",
            ),
        ] {
            let said = config().check(name, value).expect_err("refused").to_string();
            assert!(said.contains(says), "{said}");
        }
    }

    #[test]
    fn what_is_set_replaces_the_configuration_and_what_cannot_be_read_does_not() {
        let set = |name: &str, value: &str| LiveSetting {
            name: name.to_owned(),
            value: value.to_owned(),
            by: "operator ada".to_owned(),
            reason: None,
            at: crate::domain::Millis(0),
        };
        let all = [set("worker.lanes", "2"), set("of.another.build", "9"), set("worker.persist", "false")];
        let (config, refused) = config().with_all_live(&all);
        assert!(config.worker.lanes == 2 && !config.worker.persist && config.worker.batch == 800);
        assert!(matches!(&refused[..], [InvalidSetting::Unknown { name, .. }] if name == "of.another.build"));
    }
}
