//! The result of a health check, as `/readyz` shows it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

/// What the last health check found.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Readiness {
    /// `starting`, `ready`, `degraded` (takes orders, but a server is unavailable) or `unavailable`.
    pub status: &'static str,
    /// Each server that was checked, by name.
    pub dependencies: BTreeMap<&'static str, Dependency>,
}

impl Readiness {
    /// Whether this process can do its work: `ready` or `degraded`.
    pub(super) fn takes_orders(&self) -> bool {
        matches!(self.status, "ready" | "degraded")
    }
}

/// The state before the first check.
impl Default for Readiness {
    fn default() -> Self {
        Self { status: "starting", dependencies: BTreeMap::new() }
    }
}

/// The health of one server.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Dependency {
    /// Whether it answered and may be used.
    pub up: bool,
    /// Why it is down, or what is notable about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
