//! Writes operations as an OpenAPI 3.1 document.

use schemars::SchemaGenerator;
use schemars::generate::{Contract, SchemaSettings};
use serde_json::{Map, Value, json};

use super::operation::{Caller, Content, Operation, Reply, RequestBody};
use super::parts::{AN_ORDER, HEADERS, PARAMETERS};
use crate::front::Role;
use crate::front::codes::Code;

/// The document for the operations of one listener.
pub(super) fn document(title: &str, description: &str, operations: &[Operation]) -> Value {
    let mut schemas = Schemas::new();
    let mut paths = Map::new();
    for operation in operations {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = schemas.operation(operation);
    }
    let headers: Map<String, Value> = HEADERS
        .iter()
        .map(|(name, description, schema)| {
            let schema = schema(&mut schemas.replies);
            ((*name).to_owned(), json!({ "description": description, "schema": schema }))
        })
        .collect();
    let mut components = schemas.replies.take_definitions(true);
    components.insert("Problem".into(), problem_schema());
    let refusals = operations.iter().flat_map(Operation::problems);
    let examples: Map<String, Value> =
        refusals.map(|code| (code.name.to_owned(), json!({ "value": example(&code) }))).collect();
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": env!("CARGO_PKG_VERSION"),
            "description": description,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": tags(operations),
        "paths": paths,
        "components": {
            "schemas": components,
            "examples": examples,
            "headers": headers,
            "securitySchemes": {
                "token": {
                    "type": "http", "scheme": "bearer", "bearerFormat": "JWT",
                    "description": "A JWT that your login signs.",
                },
            },
        },
    });
    plain_descriptions(&mut document);
    document
}

/// In the order in which the operations have them.
fn tags(operations: &[Operation]) -> Vec<Value> {
    let mut names: Vec<&str> = Vec::new();
    for operation in operations {
        if !names.contains(&operation.tag) {
            names.push(operation.tag);
        }
    }
    names.into_iter().map(|name| json!({ "name": name })).collect()
}

/// Requests and answers have schemas of their own: a field with a default may be left out of a request, and is in every
/// answer. Those of requests are written where they are used, so that one name has one schema.
struct Schemas {
    replies: SchemaGenerator,
    requests: SchemaGenerator,
}

impl Schemas {
    fn new() -> Self {
        let settings = |contract, inline| {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.contract = contract;
                settings.definitions_path = "/components/schemas".into();
                settings.inline_subschemas = inline;
                settings.meta_schema = None;
            })
        };
        Self {
            replies: settings(Contract::Serialize, false).into_generator(),
            requests: settings(Contract::Deserialize, true).into_generator(),
        }
    }

    fn operation(&mut self, operation: &Operation) -> Value {
        let mut written = json!({
            "operationId": operation.id,
            "tags": [operation.tag],
            "summary": operation.summary,
            "responses": self.responses(operation),
        });
        let description = match operation.caller {
            Caller::Operator(role) => format!("{} {}", operation.description, role_needed(role)),
            _ => operation.description.to_owned(),
        };
        if !description.trim().is_empty() {
            written["description"] = description.trim().into();
        }
        let parameters: Vec<Value> = names_in(operation.path)
            .chain(operation.parameters.iter().copied())
            .map(|name| self.parameter(name))
            .collect();
        if !parameters.is_empty() {
            written["parameters"] = parameters.into();
        }
        if let Some(body) = &operation.body {
            written["requestBody"] = self.body(body);
        }
        if matches!(operation.caller, Caller::Buyer | Caller::Operator(_)) {
            written["security"] = json!([{ "token": [] }]);
        }
        written
    }

    fn parameter(&mut self, name: &str) -> Value {
        let known = PARAMETERS.iter().find(|parameter| parameter.name == name);
        // A name that is not listed is a mistake that the test of the document finds: it has no schema.
        let Some(known) = known else { return json!({ "name": name }) };
        json!({
            "name": known.name,
            "in": known.place,
            "required": known.required,
            "description": known.description,
            "schema": (known.schema)(&mut self.requests),
            "example": (known.example)(),
        })
    }

    fn body(&mut self, body: &RequestBody) -> Value {
        let mut schema = (body.schema)(&mut self.requests);
        if body.with_reason {
            let reason = json!({"type": ["string", "null"], "description": "Why, in your own words."});
            let properties = schema.ensure_object().entry("properties").or_insert_with(|| json!({}));
            properties["reason"] = reason;
        }
        let may_be_empty = body.may_be_empty && schema.get("required").is_none();
        json!({
            "required": !may_be_empty,
            "content": {"application/json": {"schema": schema, "example": body.example}},
        })
    }

    fn responses(&mut self, operation: &Operation) -> Value {
        let mut responses = Map::new();
        for reply in &operation.replies {
            responses.insert(reply.status.to_string(), self.reply(reply));
        }
        let problems = operation.problems();
        for of_status in problems.chunk_by(|one, next| one.status == next.status) {
            responses.entry(of_status[0].status.to_string()).or_insert_with(|| refusal(of_status));
        }
        responses.into()
    }

    fn reply(&mut self, reply: &Reply) -> Value {
        let content = match &reply.content {
            Content::Empty => json!({}),
            Content::Json(schema, example) => {
                let schema = schema(&mut self.replies);
                json!({"application/json": {"schema": schema, "example": example}})
            }
            // A schema would be that of each event, for which OpenAPI 3.1 has no words.
            Content::Text(media @ "text/event-stream") => json!({ *media: {} }),
            Content::Text(media) => json!({ *media: {"schema": {"type": "string"}} }),
        };
        let mut written = json!({ "description": reply.description, "content": content });
        if !reply.headers.is_empty() {
            written["headers"] = headers(reply.headers);
        }
        written
    }
}

/// The names in braces.
fn names_in(path: &str) -> impl Iterator<Item = &str> {
    path.split('{').skip(1).filter_map(|rest| rest.split('}').next())
}

fn role_needed(role: Role) -> &'static str {
    match role {
        Role::Viewer => "Needs the role `viewer`.",
        Role::Operator => "Needs the role `operator`.",
        Role::Admin => "Needs the role `admin`.",
    }
}

fn headers(names: &[&str]) -> Value {
    let named = |name: &&str| ((*name).to_owned(), json!({"$ref": format!("#/components/headers/{name}")}));
    names.iter().map(named).collect::<Map<String, Value>>().into()
}

/// The refusals of one status. The name of each example is its code.
fn refusal(codes: &[Code]) -> Value {
    let example = |code: &Code| json!({"$ref": format!("#/components/examples/{}", code.name)});
    let examples: Map<String, Value> =
        codes.iter().map(|code| (code.name.to_owned(), example(code))).collect();
    let said: Vec<String> = codes.iter().map(|code| format!("`{}`: {}", code.name, code.title)).collect();
    let named = match codes[0].status {
        429 => &["X-Request-Id", "Retry-After", "RateLimit-Policy", "RateLimit"][..],
        _ if codes.iter().any(|code| code.retryable) => &["X-Request-Id", "Retry-After"],
        _ => &["X-Request-Id"],
    };
    json!({
        "description": said.join(". "),
        "headers": headers(named),
        "content": {
            "application/problem+json": {
                "schema": {"$ref": "#/components/schemas/Problem"},
                "examples": examples,
            },
        },
    })
}

fn example(code: &Code) -> Value {
    let mut problem = json!({
        "type": format!("urn:doorbuster:problem:{}", code.name),
        "title": code.title,
        "status": code.status,
        "detail": code.title,
        "code": code.name,
        "retryable": code.retryable,
        "request_id": "0d9f0c0e-6a55-4a8e-9d0e-0a3f4d7c2b11",
    });
    let more = match code.name {
        "already_ordered" | "outcome_unknown" => json!({ "order_id": AN_ORDER }),
        "order_failed" => json!({ "order_id": AN_ORDER, "failure": "out_of_stock" }),
        "purchase_limit" => json!({ "limit_per_user": 1 }),
        "sale_not_open" => json!({ "opens_at": "2026-11-27T12:00:00.000Z" }),
        "rate_limited" => json!({ "limit": "5/10s" }),
        _ => json!({}),
    };
    for (name, value) in more.as_object().into_iter().flatten() {
        problem[name] = value.clone();
    }
    problem
}

fn problem_schema() -> Value {
    json!({
        "type": "object",
        "description": "Why a request was refused (RFC 9457). `code` is the contract; `detail` is for people and may \
                        change.",
        "required": ["type", "title", "status", "detail", "code", "retryable", "request_id"],
        "properties": {
            "type": {"type": "string", "description": "`urn:doorbuster:problem:` and the code."},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "code": {"type": "string", "pattern": "^[a-z_]+$"},
            "retryable": {"type": "boolean", "description": "Whether the same request may succeed later."},
            "request_id": {"type": "string"},
            "trace_id": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
            "order_id": {"type": "string", "format": "uuid"},
            "failure": {"type": "string", "description": "Why an accepted order could not be confirmed."},
            "from": {"type": "string", "description": "The state of the order."},
            "allowed": {"type": "array", "items": {"type": "string"}, "description": "The acts that it allows."},
            "state": {"type": "string", "description": "The state of the sale."},
            "limit": {"type": "string", "description": "The rate, such as `5/10s`."},
            "limit_per_user": {"type": "integer"},
            "opens_at": {"type": "string", "format": "date-time"},
        },
    })
}

/// The descriptions come from the documentation of the types, where a name in brackets is a link.
fn plain_descriptions(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::String(text) if name == "description" => *text = plain(text),
                    _ => plain_descriptions(member),
                }
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(plain_descriptions),
        _ => {}
    }
}

fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("[`") {
        let (name, after) = after.split_once("`]").unwrap_or((after, ""));
        plain.push_str(before);
        plain.push_str(&format!("`{name}`"));
        rest = match after.strip_prefix('(').and_then(|target| target.split_once(')')) {
            Some((_, after)) => after,
            None => after,
        };
    }
    plain.push_str(rest);
    plain.replace('\n', " ").replace("`None`", "`null`")
}
