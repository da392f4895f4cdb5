//! An operator's changes of settings for all running processes.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::operator_acts::recorded;
use crate::domain::{ActRequest, Invalid, Millis};
use crate::store::{LiveSetting, Store, StoreError};

/// A setting that may change.
#[derive(Debug, Clone)]
pub struct KnownSetting {
    /// Its key in the configuration.
    pub name: &'static str,
    /// The value that it has there.
    pub configured: String,
    /// What its value may be, in words.
    pub allowed: &'static str,
}

/// Which settings may change. The configuration knows.
pub trait KnownSettings: Send + Sync {
    /// All of them, by name.
    fn all(&self) -> Vec<KnownSetting>;

    /// Whether a setting may have this value.
    fn check(&self, name: &str, value: &str) -> Result<(), InvalidSetting>;
}

/// Why a setting cannot have a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSetting {
    /// It is no key, or one that is read when a process starts.
    #[error("{name} cannot be set while processes run; these can: {known}")]
    Unknown {
        /// The key.
        name: String,
        /// Those that can be.
        known: String,
    },
    /// The value is out of its bounds.
    #[error("{name} cannot be {value:?}; it must be {allowed}")]
    Value {
        /// The key.
        name: String,
        /// The value.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
}

/// Why a setting was not changed, or may not have been.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// Nothing changed.
    #[error(transparent)]
    Setting(#[from] InvalidSetting),
    /// The request breaks a rule; nothing changed.
    #[error(transparent)]
    Request(#[from] Invalid),
    /// The database failed or did not answer. The change may have been made: repeat it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A setting with its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SettingStatus {
    /// Its key in the configuration.
    pub name: String,
    /// The value that counts.
    pub value: String,
    /// The value that counts where none is set: that of the process that answers.
    pub configured: String,
    /// What its value may be, in words.
    pub allowed: String,
    /// Who set it, when and why. Missing where the configuration's value counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<SetBy>,
}

/// Who set a setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SetBy {
    /// Who.
    pub by: String,
    /// Why, in their words.
    pub reason: Option<String>,
    /// When.
    pub at: Millis,
}

/// An operator's acts on settings. Cheap to clone.
#[derive(Clone)]
pub struct SettingActs {
    known: Arc<dyn KnownSettings>,
    store: Store,
}

impl SettingActs {
    /// Does not connect yet.
    pub fn new(known: Arc<dyn KnownSettings>, store: Store) -> Self {
        Self { known, store }
    }

    /// All settings that may change, by name. At the end those that another build has set and this one does not know.
    pub async fn list(&self) -> Result<Vec<SettingStatus>, SettingError> {
        let mut set = self.store.live_settings().await?;
        let mut all = Vec::new();
        for known in self.known.all() {
            let at = set.iter().position(|setting| setting.name == known.name);
            all.push(SettingStatus::of(known, at.map(|at| set.remove(at))));
        }
        all.extend(set.into_iter().map(SettingStatus::unknown));
        Ok(all)
    }

    /// Sets a setting for all processes, which follow within two seconds if they reach the database. On return the value
    /// is durable. May be repeated. Returns all settings.
    pub async fn set(
        &self,
        name: &str,
        value: &str,
        request: &ActRequest,
    ) -> Result<Vec<SettingStatus>, SettingError> {
        self.known.check(name, value)?;
        request.check()?;
        let setting =
            async { Ok::<_, SettingError>(self.store.set_live_setting(name, value, request).await?) };
        recorded(&self.store, ("settings set", name), request, setting, |()| format!("{value:?}")).await?;
        self.list().await
    }

    /// Has the configuration's value count again. On return that is durable. May be repeated. Returns all settings.
    pub async fn unset(&self, name: &str, request: &ActRequest) -> Result<Vec<SettingStatus>, SettingError> {
        if !self.list().await?.iter().any(|setting| setting.name == name) {
            self.known.check(name, "")?;
        }
        request.check()?;
        let unsetting = async { Ok::<_, SettingError>(self.store.unset_live_setting(name).await?) };
        let describe = |was_set: &bool| if *was_set { "unset" } else { "was not set" }.to_owned();
        recorded(&self.store, ("settings unset", name), request, unsetting, describe).await?;
        self.list().await
    }
}

impl SettingStatus {
    fn of(known: KnownSetting, set: Option<LiveSetting>) -> Self {
        Self {
            name: known.name.to_owned(),
            value: set.as_ref().map_or_else(|| known.configured.clone(), |setting| setting.value.clone()),
            configured: known.configured,
            allowed: known.allowed.to_owned(),
            set: set.map(SetBy::of),
        }
    }

    fn unknown(set: LiveSetting) -> Self {
        Self {
            name: set.name.clone(),
            value: set.value.clone(),
            configured: String::new(),
            allowed: "unknown to this build, which ignores it".to_owned(),
            set: Some(SetBy::of(set)),
        }
    }
}

impl SetBy {
    fn of(set: LiveSetting) -> Self {
        Self { by: set.by, reason: set.reason, at: set.at }
    }
}
