//! The result of one check by `doctor`.

use std::fmt;

use serde::Serialize;

use crate::link::{InstallationId, OtherInstallation};

const REACHABLE: &str = "reachable";
pub(super) const INSTALLATION: &str = "installation";

/// What was found, and what to do if it is amiss.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    /// redis, broker or database.
    server: &'static str,
    /// The name of the check.
    check: &'static str,
    pub(super) ok: bool,
    found: String,
    /// `None` if all is well.
    advice: Option<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, check, ok, found, advice } = self;
        write!(f, "{:<5}  {server:<8}  {check:<12}  {found}", if *ok { "ok" } else { "AMISS" })?;
        if let Some(advice) = advice {
            write!(f, "\n       to do: {advice}")?;
        }
        Ok(())
    }
}

impl Finding {
    /// Whether it says that this server could not be examined.
    pub(super) fn is_unreachable(&self, server: &str) -> bool {
        self.server == server && self.check == REACHABLE && !self.ok
    }
}

/// Collects the findings of one server.
pub(super) struct Findings {
    server: &'static str,
    found: Vec<Finding>,
}

impl Findings {
    pub(super) fn of(server: &'static str) -> Self {
        Self { server, found: Vec::new() }
    }

    pub(super) fn ok(&mut self, check: &'static str, found: impl Into<String>) {
        self.found.push(Finding { server: self.server, check, ok: true, found: found.into(), advice: None });
    }

    pub(super) fn amiss(&mut self, check: &'static str, found: impl Into<String>, advice: impl Into<String>) {
        let (server, advice) = (self.server, Some(advice.into()));
        self.found.push(Finding { server, check, ok: false, found: found.into(), advice });
    }

    /// The server cannot be examined, or stopped answering half way.
    pub(super) fn unreachable(&mut self, found: impl Into<String>, advice: impl Into<String>) {
        self.found.retain(|finding| finding.check != REACHABLE);
        self.amiss(REACHABLE, found, advice);
    }

    pub(super) fn reachable(&mut self, url: impl Into<String>) {
        self.ok(REACHABLE, url);
    }

    /// The same for settings that start refuses: their text ends with what to change.
    pub(super) fn settings(&mut self, broken: Vec<String>) {
        if broken.is_empty() {
            self.ok("settings", "no accepted order can be lost by them");
        }
        for text in broken {
            let (found, advice) = text.split_once("; ").unwrap_or((&text, "change it"));
            self.amiss("settings", found, advice);
        }
    }

    /// Whether the server belongs to the installation of the others; `None` if it has no id yet.
    pub(super) fn installation(&mut self, id: Option<Result<InstallationId, OtherInstallation>>) {
        match id {
            Some(Ok(id)) => self.ok(INSTALLATION, id.to_string()),
            Some(Err(other)) => {
                self.amiss(INSTALLATION, other.to_string(), "use servers of one installation")
            }
            None => {
                self.ok(INSTALLATION, "none yet; `doorbuster migrate` or the first use makes it part of one")
            }
        }
    }

    pub(super) fn into_vec(self) -> Vec<Finding> {
        self.found
    }
}
