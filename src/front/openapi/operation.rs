//! One operation of the API: what it takes, what it answers, and how it may refuse.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;

use crate::front::Role;
use crate::front::codes::{
    BODY_TOO_LARGE, Code, FORBIDDEN, INTERNAL, KEYS_UNAVAILABLE, MALFORMED, NOT_FOUND, OUTCOME_UNKNOWN,
    RATE_LIMITED, REQUEST_TIMEOUT, STATUS_UNAVAILABLE, UNAUTHENTICATED,
};

/// Who may call an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    /// Anybody, on the buyers' listener.
    Anybody,
    /// A buyer with a token.
    Buyer,
    /// A payment provider, which signs its calls.
    Provider,
    /// An operator with at least this role.
    Operator(Role),
    /// Monitoring, without a token.
    Monitoring,
}

/// Makes the schema of a type; the generator keeps the schemas that it refers to.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// What an answer or a body carries.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// JSON of a schema, with an example.
    Json(SchemaOf, Value),
    /// None at all.
    Empty,
    /// Text of this media type.
    Text(&'static str),
}

/// An answer that is no problem.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) description: &'static str,
    /// The names of further headers, of [`HEADERS`](super::parts::HEADERS).
    pub(super) headers: &'static [&'static str],
    pub(super) content: Content,
}

/// A request's body.
#[derive(Debug, Clone)]
pub(super) struct RequestBody {
    pub(super) schema: SchemaOf,
    pub(super) example: Value,
    /// Whether the act takes a `reason` besides the fields of the schema.
    pub(super) with_reason: bool,
    /// An empty body counts as an empty object.
    pub(super) may_be_empty: bool,
}

/// One method of one path.
#[derive(Debug, Clone)]
pub(super) struct Operation {
    pub(super) method: &'static str,
    /// With its parameters in braces. A path may end in `:act` after a parameter.
    pub(super) path: &'static str,
    pub(super) id: &'static str,
    pub(super) tag: &'static str,
    pub(super) summary: &'static str,
    pub(super) description: &'static str,
    pub(super) caller: Caller,
    /// The names of its parameters besides those in the path, of [`PARAMETERS`](super::parts::PARAMETERS).
    pub(super) parameters: Vec<&'static str>,
    pub(super) body: Option<RequestBody>,
    pub(super) replies: Vec<Reply>,
    /// How it refuses, without what is the same for all operations of its kind.
    own_problems: &'static [Code],
}

impl Operation {
    fn new(method: &'static str, path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self {
            method,
            path,
            id,
            tag: "",
            summary,
            description: "",
            caller: Caller::Anybody,
            parameters: Vec::new(),
            body: None,
            replies: Vec::new(),
            own_problems: &[],
        }
    }

    pub(super) fn get(path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new("get", path, id, summary)
    }

    pub(super) fn post(path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new("post", path, id, summary)
    }

    pub(super) fn by(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }

    pub(super) fn tagged(mut self, tag: &'static str) -> Self {
        self.tag = tag;
        self
    }

    pub(super) fn says(mut self, description: &'static str) -> Self {
        self.description = description;
        self
    }

    pub(super) fn with(mut self, parameter: &'static str) -> Self {
        self.parameters.push(parameter);
        self
    }

    /// Takes JSON of this type, with an example.
    pub(super) fn takes<T: JsonSchema>(self, example: Value) -> Self {
        self.body(RequestBody { schema: schema_of::<T>, example, with_reason: false, may_be_empty: false })
    }

    /// Takes JSON of this type, or nothing.
    pub(super) fn may_take<T: JsonSchema>(self, example: Value) -> Self {
        self.body(RequestBody { schema: schema_of::<T>, example, with_reason: false, may_be_empty: true })
    }

    /// Takes JSON of this type, and a `reason`; or nothing, if the type has no field that is required.
    pub(super) fn takes_reason_and<T: JsonSchema>(self, example: Value) -> Self {
        self.body(RequestBody { schema: schema_of::<T>, example, with_reason: true, may_be_empty: true })
    }

    fn body(mut self, body: RequestBody) -> Self {
        self.body = Some(body);
        self
    }

    /// Answers with JSON of this type, with an example.
    pub(super) fn replies<T: JsonSchema>(
        self,
        status: u16,
        description: &'static str,
        headers: &'static [&'static str],
        example: Value,
    ) -> Self {
        let content = Content::Json(schema_of::<T>, example);
        self.reply(Reply { status, description, headers, content })
    }

    /// Answers with server-sent events, which a client can resume.
    pub(super) fn streams(self) -> Self {
        let content = Content::Text("text/event-stream");
        self.with("Last-Event-ID").reply(Reply {
            status: 200,
            description: "The events",
            headers: &[],
            content,
        })
    }

    pub(super) fn reply(mut self, reply: Reply) -> Self {
        self.replies.push(reply);
        self
    }

    pub(super) fn refuses(mut self, codes: &'static [Code]) -> Self {
        self.own_problems = codes;
        self
    }

    /// Every problem that it may answer, by status. Each code once.
    pub(super) fn problems(&self) -> Vec<Code> {
        let mut codes = self.own_problems.to_vec();
        if self.caller != Caller::Monitoring {
            codes.push(INTERNAL);
        }
        match self.caller {
            Caller::Anybody | Caller::Provider => codes.push(RATE_LIMITED),
            Caller::Buyer => codes.extend([RATE_LIMITED, UNAUTHENTICATED, KEYS_UNAVAILABLE]),
            Caller::Operator(_) => codes.extend([UNAUTHENTICATED, FORBIDDEN, KEYS_UNAVAILABLE]),
            Caller::Monitoring => {}
        }
        if self.path.contains('{') {
            codes.push(NOT_FOUND); // a path that is not UTF-8
        }
        if self.body.is_some() {
            codes.extend([MALFORMED, REQUEST_TIMEOUT, BODY_TOO_LARGE]);
        }
        // What `front.request_within_ms` ends.
        codes.push(if self.method == "post" { OUTCOME_UNKNOWN } else { STATUS_UNAVAILABLE });
        codes.sort_by_key(|code| (code.status, code.name));
        codes.dedup_by_key(|code| code.name);
        codes
    }
}

pub(super) fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}
