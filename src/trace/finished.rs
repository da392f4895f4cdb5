//! A span as it is recorded.

use std::time::SystemTime;

use crate::domain::TraceContext;

/// How a span relates to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Work inside of a process.
    Internal,
    /// A request that this process answers.
    Server,
    /// A call of a server.
    Client,
    /// A message that is sent.
    Producer,
    /// A message that is worked on.
    Consumer,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    Number(i64),
}

/// A span that has ended.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) context: TraceContext,
    pub(super) parent: Option<u64>,
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) begun: SystemTime,
    pub(super) ended: SystemTime,
    pub(super) attributes: Vec<(&'static str, Value)>,
    /// Why it failed, if it did.
    pub(super) failure: Option<String>,
}
