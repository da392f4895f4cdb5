//! Whether an answer fits what the document of its listener says.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};

use doorbuster::front::Api;
use jsonschema::Validator;
use serde_json::{Value, json};

use crate::support::Answer;

static DOCUMENTS: LazyLock<[Value; 2]> =
    LazyLock::new(|| [Api::Buyers.document(), Api::Operations.document()]);

/// Compiled once for each operation and status.
static COMPILED: LazyLock<Mutex<BTreeMap<String, &'static Validator>>> = LazyLock::new(Mutex::default);

/// Panics if a listener answered something that its document does not have.
pub fn assert_fits(method: &str, target: &str, answer: &Answer) {
    if let Err(why) = check(method, target, answer) {
        panic!("{method} {target} was answered with what the document does not have: {why}\n{answer:#?}");
    }
}

fn check(method: &str, target: &str, answer: &Answer) -> Result<(), String> {
    let path = target.split('?').next().unwrap_or_default();
    let method = method.to_ascii_lowercase();
    let Some((document, template)) = described(path) else { return Ok(()) };
    let operation = &document["paths"][template][&method];
    // Another method, a listener without this API, or a request that did not get as far as its operation.
    let elsewhere = ["method_not_allowed", "not_found"].contains(&answer.code());
    if operation.is_null() || answer.json.is_null() || elsewhere {
        return Ok(());
    }
    let response = &operation["responses"][answer.status.to_string()];
    let media_type = answer.headers.get("content-type").map(String::as_str).unwrap_or_default();
    let media = &response["content"][media_type];
    if media.is_null() {
        return Err(format!("no status {} with {media_type:?}", answer.status));
    }
    if media_type == "application/problem+json" && media["examples"].get(answer.code()).is_none() {
        return Err(format!("no code {}", answer.code()));
    }
    let key = format!("{method} {template} {} {media_type}", answer.status);
    let validator = *COMPILED
        .lock()
        .expect("no panic")
        .entry(key)
        .or_insert_with(|| Box::leak(Box::new(validator(document, &media["schema"]))));
    validator.validate(&answer.json).map_err(|error| format!("{error} at {}", error.instance_path()))
}

/// The document that has this path, and the path as the document writes it.
fn described(path: &str) -> Option<(&'static Value, &'static str)> {
    let mut found: Vec<(&'static Value, &'static str)> = Vec::new();
    for document in DOCUMENTS.iter() {
        let paths = document["paths"].as_object().expect("paths");
        found.extend(
            paths
                .keys()
                .filter(|template| matches(template, path))
                .map(|template| (document, template.as_str())),
        );
    }
    // `…/orders/mine` is not an order, and an act is not part of an id.
    found.into_iter().min_by_key(|(_, template)| (template.matches('{').count(), !template.contains("}:")))
}

fn matches(template: &str, path: &str) -> bool {
    let (of_template, of_path): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
    of_template.len() == of_path.len()
        && of_template.iter().zip(of_path).all(|(wanted, got)| match wanted.strip_prefix('{') {
            Some(parameter) => match parameter.split_once("}:") {
                Some((_, act)) => got.ends_with(&format!(":{act}")),
                None => !got.is_empty() && !got.contains(':'),
            },
            None => *wanted == got,
        })
}

/// The schema with the document's components, so that its references can be followed.
fn validator(document: &Value, schema: &Value) -> Validator {
    let whole = json!({ "allOf": [schema], "components": document["components"] });
    jsonschema::draft202012::new(&whole).expect("a schema")
}

pub fn fits(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    validator(document, schema)
        .validate(value)
        .map_err(|error| format!("{error} at {}", error.instance_path()))
}

/// Calls for each body of JSON that the document describes.
pub fn each_media(document: &Value, on: &mut dyn FnMut(&str, &Value)) {
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let body = operation["requestBody"]["content"].as_object();
            for (_, media) in body.into_iter().flatten() {
                on(&format!("{method} {path}"), media);
            }
            for (status, response) in operation["responses"].as_object().expect("responses") {
                for (_, media) in response["content"].as_object().into_iter().flatten() {
                    on(&format!("{method} {path} {status}"), media);
                }
            }
        }
    }
}
