//! Whether a client that was written for one document works with another.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// What the second document takes away from clients of the first.
pub fn broken(old: &Value, new: &Value) -> Vec<String> {
    let mut broken = Broken { old, new, found: Vec::new() };
    for (path, methods) in members(&old["paths"]) {
        for (method, operation) in members(methods) {
            broken.operation(&format!("{method} {path}"), operation, &new["paths"][path][method]);
        }
    }
    for (code, example) in members(&old["components"]["examples"]) {
        let now = &new["components"]["examples"][code]["value"];
        for field in ["status", "retryable", "type"] {
            if now[field] != example["value"][field] {
                broken.found.push(format!(
                    "the code {code}: {field} was {}, is {}",
                    example["value"][field], now[field]
                ));
            }
        }
    }
    broken.found
}

struct Broken<'a> {
    old: &'a Value,
    new: &'a Value,
    found: Vec<String>,
}

impl Broken<'_> {
    fn operation(&mut self, name: &str, old: &Value, new: &Value) {
        if new.is_null() {
            self.found.push(format!("{name} is gone"));
            return;
        }
        if old["operationId"] != new["operationId"] {
            self.found.push(format!("{name} has another operationId"));
        }
        let named = |operation: &Value| -> BTreeSet<String> {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            parameters.map(|parameter| parameter["name"].to_string()).collect()
        };
        let before = named(old);
        for parameter in new["parameters"].as_array().into_iter().flatten() {
            if parameter["required"] == true && !before.contains(&parameter["name"].to_string()) {
                self.found.push(format!("{name} needs the parameter {}", parameter["name"]));
            }
        }
        if new["requestBody"]["required"] == true && old["requestBody"]["required"] != true {
            self.found.push(format!("{name} needs a body"));
        }
        for (media, content) in members(&old["requestBody"]["content"]) {
            let now = &new["requestBody"]["content"][media]["schema"];
            self.schema(&format!("{name}, body"), &content["schema"], now, Way::In);
        }
        for (status, response) in members(&old["responses"]) {
            for (media, content) in members(&response["content"]) {
                let now = &new["responses"][status]["content"][media];
                if now.is_null() {
                    self.found.push(format!("{name} no longer answers {status} {media}"));
                    continue;
                }
                self.schema(&format!("{name}, {status}"), &content["schema"], &now["schema"], Way::Out);
            }
        }
    }

    /// What goes in may be taken more widely, and what comes out may say more, but never the reverse.
    fn schema(&mut self, place: &str, old: &Value, new: &Value, way: Way) {
        let (old, new) = (resolved(self.old, old), resolved(self.new, new));
        if old == new {
            return;
        }
        let (offered, wanted) = match way {
            Way::In => (values(&old), values(&new)),
            Way::Out => (values(&new), values(&old)),
        };
        if let (Some(offered), Some(wanted)) = (offered, wanted)
            && !offered.is_subset(&wanted)
        {
            self.found.push(format!("{place}: {offered:?} is not among {wanted:?}"));
        }
        let required = |schema: &Value, name: &str| {
            schema["required"].as_array().is_some_and(|names| names.iter().any(|required| required == name))
        };
        for (name, field) in members(&old["properties"]) {
            let now = &new["properties"][name];
            let place = format!("{place}.{name}");
            if now.is_null() {
                self.found.push(format!("{place} is gone"));
                continue;
            }
            if way == Way::Out && required(&old, name) && !required(&new, name) {
                self.found.push(format!("{place} may be missing"));
            }
            self.schema(&place, field, now, way);
        }
        for (name, _) in members(&new["properties"]) {
            if way == Way::In && required(&new, name) && !required(&old, name) {
                self.found.push(format!("{place}.{name} is needed"));
            }
        }
        if old["items"].is_object() {
            self.schema(&format!("{place}[]"), &old["items"], &new["items"], way);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn resolved(document: &Value, schema: &Value) -> Value {
    match schema["$ref"].as_str() {
        Some(path) => document.pointer(&path[1..]).cloned().unwrap_or_default(),
        None => schema.clone(),
    }
}

/// The types or the values that a schema allows; `None` if it does not say.
fn values(schema: &Value) -> Option<BTreeSet<String>> {
    let alternatives = ["oneOf", "anyOf"].into_iter().find_map(|key| schema[key].as_array());
    if let Some(alternatives) = alternatives {
        return Some(alternatives.iter().map(value_of).collect());
    }
    if let Some(values) = schema["enum"].as_array() {
        return Some(values.iter().map(Value::to_string).collect());
    }
    match &schema["type"] {
        Value::Array(types) => Some(types.iter().map(Value::to_string).collect()),
        Value::Null => None,
        kind => Some([kind.to_string()].into()),
    }
}

fn value_of(schema: &Value) -> String {
    for key in ["const", "$ref", "type"] {
        if let Some(value) = schema.get(key) {
            return value.to_string();
        }
    }
    schema.to_string()
}

#[test]
fn each_way_to_break_a_client_is_found() {
    let good = json!({
        "paths": {"/order": {"post": {
            "operationId": "place", "parameters": [],
            "requestBody": {"content": {"application/json": {"schema": {
                "properties": {"sku": {"type": "string"}, "quantity": {"type": ["integer", "null"]}},
            }}}},
            "responses": {"200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Order"}}}}},
        }}},
        "components": {
            "schemas": {"Order": {
                "required": ["id"], "properties": {"id": {"type": "string"}, "state": {"enum": ["a", "b"]}},
            }},
            "examples": {"sold_out": {"value": {"status": 409, "retryable": false, "type": "urn:x"}}},
        },
    });
    assert!(broken(&good, &good).is_empty());
    let order = "/components/schemas/Order";
    let post = "/paths/~1order/post";
    let body = "/paths/~1order/post/requestBody/content/application~1json/schema";
    let damages: [(&str, &str, Value); 11] = [
        ("/paths", "/order", json!({})),
        (post, "operationId", json!("buy")),
        (post, "parameters", json!([{"name": "key", "required": true}])),
        (post, "responses", json!({})),
        (body, "required", json!(["sku"])),
        (body, "properties", json!({"sku": {"type": "string"}})),
        (&format!("{body}/properties/quantity"), "type", json!("integer")),
        (order, "required", json!([])),
        (order, "properties", json!({"id": {"type": "string"}})),
        (&format!("{order}/properties/state"), "enum", json!(["a", "b", "c"])),
        ("/components/examples/sold_out/value", "status", json!(410)),
    ];
    for (place, field, value) in damages {
        let mut bad = good.clone();
        bad.pointer_mut(place).expect("the place")[field] = value;
        assert!(!broken(&good, &bad).is_empty(), "{place} {field}");
    }
    // A client does not mind these.
    for (place, field, value) in [
        (order, "required", json!(["id", "state"])),
        (&*format!("{order}/properties/state"), "enum", json!(["a"])),
        (post, "parameters", json!([{"name": "key", "required": false}])),
    ] {
        let mut wider = good.clone();
        wider.pointer_mut(place).expect("the place")[field] = value;
        assert_eq!(broken(&good, &wider), Vec::<String>::new(), "{place} {field}");
    }
}
