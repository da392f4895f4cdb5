//! Whether a client that was written for one document works with another.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// What the second document takes away from clients of the first.
pub fn broken(old: &Value, new: &Value) -> Vec<String> {
    let mut broken = Broken { old, new, found: Vec::new(), seen: BTreeSet::new() };
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
    /// The names of schemas, in the old document and in the new.
    seen: BTreeSet<(String, String, Way)>,
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
        if is_open(old) && !is_open(new) {
            self.found.push(format!("{name} needs a token"));
        }
        self.parameters(name, old, new);
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

    fn parameters(&mut self, name: &str, old: &Value, new: &Value) {
        let (before, now) = (parameters(old), parameters(new));
        for (parameter, is_new) in &now {
            let was_required = before.get(parameter).is_some_and(|before| before["required"] == true);
            if is_new["required"] == true && !was_required {
                self.found.push(format!("{name} needs the parameter {parameter}"));
            }
        }
        for (parameter, before) in &before {
            match now.get(parameter) {
                Some(now) => {
                    self.schema(&format!("{name}, {parameter}"), &before["schema"], &now["schema"], Way::In);
                }
                None => self.found.push(format!("{name} does not know the parameter {parameter}")),
            }
        }
    }

    /// What is taken may not become narrower.
    fn bounds(&mut self, place: &str, old: &Value, new: &Value) {
        for (least, most) in [("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems")] {
            let [least_before, least_now] =
                [old, new].map(|schema| schema[least].as_f64().unwrap_or(f64::MIN));
            let [most_before, most_now] = [old, new].map(|schema| schema[most].as_f64().unwrap_or(f64::MAX));
            if least_now > least_before || most_now < most_before {
                self.found.push(format!("{place}: {least} or {most} is narrower"));
            }
        }
        if new["pattern"].is_string() && new["pattern"] != old["pattern"] {
            self.found.push(format!("{place} has another pattern"));
        }
    }

    /// What goes in may be taken more widely, and what comes out may say more, but never the reverse.
    fn schema(&mut self, place: &str, old: &Value, new: &Value, way: Way) {
        // Schemas that are named are looked at once, since what they name may differ although they do not.
        if let Some(name) = old["$ref"].as_str()
            && !self.seen.insert((name.to_owned(), new["$ref"].to_string(), way))
        {
            return;
        }
        let (old, new) = (resolved(self.old, old), resolved(self.new, new));
        let (offered, wanted) = match way {
            Way::In => (values(&old), values(&new)),
            Way::Out => (values(&new), values(&old)),
        };
        if let (Some(offered), Some(wanted)) = (offered, wanted)
            && !offered.is_subset(&wanted)
        {
            self.found.push(format!("{place}: {offered:?} is not among {wanted:?}"));
        }
        if way == Way::In {
            self.bounds(place, &old, &new);
        }
        for (alternative, schema) in alternatives(&old) {
            if let Some((_, now)) = alternatives(&new).into_iter().find(|(other, _)| *other == alternative) {
                self.schema(place, schema, now, way);
            }
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
        for elements in ["items", "additionalProperties"] {
            if old[elements].is_object() {
                self.schema(&format!("{place}[]"), &old[elements], &new[elements], way);
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    In,
    Out,
}

/// Whether anybody may ask for it.
fn is_open(operation: &Value) -> bool {
    let ways = operation["security"].as_array();
    ways.is_none_or(|ways| ways.is_empty() || ways.iter().any(|way| *way == json!({})))
}

fn parameters(operation: &Value) -> BTreeMap<String, &Value> {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    parameters.map(|parameter| (parameter["name"].to_string(), parameter)).collect()
}

/// Those that have a name.
fn alternatives(schema: &Value) -> Vec<(&Value, &Value)> {
    let all = ["oneOf", "anyOf"].into_iter().find_map(|key| schema[key].as_array());
    let named = all.into_iter().flatten().filter(|alternative| alternative["$ref"].is_string());
    named.map(|alternative| (&alternative["$ref"], alternative)).collect()
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
            "operationId": "place", "parameters": [{"name": "wait", "schema": {"type": "integer", "maximum": 30}}],
            "security": [],
            "requestBody": {"content": {"application/json": {"schema": {
                "properties": {"sku": {"type": "string"}, "quantity": {"type": ["integer", "null"]}},
            }}}},
            "responses": {"200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Order"}}}}},
        }}},
        "components": {
            "schemas": {"Order": {
                "required": ["id"], "properties": {
                    "id": {"type": "string"}, "state": {"enum": ["a", "b"]},
                    "payment": {"anyOf": [{"$ref": "#/components/schemas/Payment"}, {"type": "null"}]},
                },
            }, "Payment": {"properties": {"at": {"type": "string"}}}},
            "examples": {"sold_out": {"value": {"status": 409, "retryable": false, "type": "urn:x"}}},
        },
    });
    assert!(broken(&good, &good).is_empty());
    let order = "/components/schemas/Order";
    let post = "/paths/~1order/post";
    let wait = "/paths/~1order/post/parameters/0";
    let body = "/paths/~1order/post/requestBody/content/application~1json/schema";
    let damages: [(&str, &str, Value); 17] = [
        ("/paths", "/order", json!({})),
        (post, "operationId", json!("buy")),
        (post, "parameters", json!([{"name": "wait"}, {"name": "key", "required": true}])),
        (post, "parameters", json!([])),
        (post, "security", json!([{"token": []}])),
        (wait, "required", json!(true)),
        (&format!("{wait}/schema"), "maximum", json!(10)),
        (&format!("{wait}/schema"), "pattern", json!("[0-9]")),
        ("/components/schemas/Payment", "properties", json!({})),
        (post, "responses", json!({})),
        (body, "required", json!(["sku"])),
        (body, "properties", json!({"sku": {"type": "string"}})),
        (&format!("{body}/properties/quantity"), "type", json!("integer")),
        (order, "required", json!([])),
        (order, "properties", json!({"id": {"type": "string"}, "payment": {}})),
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
        (post, "parameters", json!([good.pointer(wait), {"name": "key", "required": false}])),
        (&format!("{wait}/schema"), "maximum", json!(60)),
    ] {
        let mut wider = good.clone();
        wider.pointer_mut(place).expect("the place")[field] = value;
        assert_eq!(broken(&good, &wider), Vec::<String>::new(), "{place} {field}");
    }
}
