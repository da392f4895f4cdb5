//! The result of a health check, as `/readyz` shows it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

/// What the last health check found.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Readiness {
    /// `starting`, `ready`, `degraded` (does its work, but a server is unavailable, or it has modes) or `unavailable`.
    pub status: &'static str,
    /// Each server that was checked, by name.
    pub dependencies: BTreeMap<&'static str, Dependency>,
    /// In what way it does less than it could, because a live setting says so: `read_only`, `shedding_reads`,
    /// `refusing_by_memory`, `persistence_paused`. Missing if there is nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub modes: Vec<&'static str>,
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
        Self { status: "starting", dependencies: BTreeMap::new(), modes: Vec::new() }
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
