//! A script whose hash is different in each installation.

use std::sync::OnceLock;

use super::installation::InstallationId;

/// A Lua script. Its text names the installation, so a Redis that knows it was recognised as this installation's since
/// it started: no other way leads into its script cache.
pub struct Script {
    text: String,
    plain: OnceLock<redis::Script>,
    of_installation: OnceLock<redis::Script>,
}

impl Script {
    /// The script with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), plain: OnceLock::new(), of_installation: OnceLock::new() }
    }

    /// The script for an installation, which is always the same one, or for servers that are not checked.
    pub(super) fn of(&self, installation: Option<InstallationId>) -> &redis::Script {
        match installation {
            None => self.plain.get_or_init(|| redis::Script::new(&self.text)),
            Some(id) => self
                .of_installation
                .get_or_init(|| redis::Script::new(&format!("{}\n-- of installation {id}\n", self.text))),
        }
    }
}
