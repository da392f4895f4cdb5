//! An OpenAPI document as one page of HTML, without scripts and without anything from another host.

use std::fmt::Write as _;

use serde_json::{Map, Value};

const STYLE: &str = include_str!("page.css");

pub(super) fn page(document: &Value) -> String {
    let mut html = String::with_capacity(128 * 1024);
    let title = text(&document["info"]["title"]);
    let _ = write!(
        html,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>{title}</title><style>{STYLE}</style><main><h1>{title}</h1><p>{}</p>\
         <p>For machines: <a href=openapi.json>openapi.json</a>, OpenAPI 3.1.</p>",
        text(&document["info"]["description"]),
    );
    let operations = operations(document);
    html.push_str("<nav>");
    for tag in document["tags"].as_array().into_iter().flatten() {
        let _ = write!(html, "<h2>{}</h2><ul>", text(&tag["name"]));
        for (path, method, operation) in operations.iter().filter(|one| one.2["tags"][0] == tag["name"]) {
            let _ = write!(
                html,
                "<li><a href=#{}><b class={method}>{method}</b> <code>{}</code></a> {}</li>",
                text(&operation["operationId"]),
                escaped(path),
                text(&operation["summary"]),
            );
        }
        html.push_str("</ul>");
    }
    html.push_str("</nav>");
    for (path, method, operation) in operations {
        write_operation(&mut html, path, method, operation);
    }
    html.push_str("<h2>Refusals</h2>");
    for (name, example) in members(&document["components"]["examples"]) {
        let _ = write!(html, "<section id=code-{name}><h3>{name}</h3>");
        write_example(&mut html, &example["value"]);
        html.push_str("</section>");
    }
    html.push_str("<h2>Schemas</h2>");
    for (name, schema) in members(&document["components"]["schemas"]) {
        let _ = write!(html, "<section id=schema-{name}><h3>{name}</h3>");
        write_schema(&mut html, schema);
        html.push_str("</section>");
    }
    html.push_str("</main></html>");
    html
}

/// Path, method and operation, in the order of the tags.
fn operations(document: &Value) -> Vec<(&str, &str, &Value)> {
    let of_path =
        |(path, methods)| members(methods).map(move |(method, operation)| (path, method, operation));
    let mut all: Vec<(&str, &str, &Value)> = members(&document["paths"]).flat_map(of_path).collect();
    let tags = document["tags"].as_array();
    let place = |tag: &Value| tags?.iter().position(|known| known["name"] == *tag);
    all.sort_by_key(|(_, _, operation)| place(&operation["tags"][0]));
    all
}

fn write_operation(html: &mut String, path: &str, method: &str, operation: &Value) {
    let _ = write!(
        html,
        "<section id={}><h3><b class={method}>{method}</b> <code>{}</code></h3><p><strong>{}.</strong> {}</p>",
        text(&operation["operationId"]),
        escaped(path),
        text(&operation["summary"]),
        marked(&operation["description"]),
    );
    if operation["security"].is_array() {
        html.push_str("<p>Needs <code>Authorization: Bearer TOKEN</code>.</p>");
    }
    if let Some(parameters) = operation["parameters"].as_array() {
        html.push_str("<table><tr><th>parameter<th>in<th>meaning</tr>");
        for parameter in parameters {
            let required = if parameter["required"] == true { "" } else { ", optional" };
            let _ = write!(
                html,
                "<tr><td><code>{}</code><td>{}{required}<td>{}</tr>",
                text(&parameter["name"]),
                text(&parameter["in"]),
                marked(&parameter["description"]),
            );
        }
        html.push_str("</table>");
    }
    let body = &operation["requestBody"]["content"]["application/json"];
    if body.is_object() {
        html.push_str("<h4>Body</h4>");
        write_schema(html, &body["schema"]);
        write_example(html, &body["example"]);
    }
    html.push_str("<h4>Answers</h4>");
    for (status, response) in members(&operation["responses"]) {
        write_response(html, status, response);
    }
    html.push_str("</section>");
}

fn write_response(html: &mut String, status: &str, response: &Value) {
    let _ = write!(html, "<details><summary><b>{status}</b> {}</summary>", marked(&response["description"]),);
    for (media, content) in members(&response["content"]) {
        let _ = write!(html, "<p><code>{media}</code> {}</p>", kind(&content["schema"]));
        write_example(html, &content["example"]);
        let codes: Vec<String> = members(&content["examples"])
            .map(|(code, _)| format!("<a href=#code-{code}><code>{code}</code></a>"))
            .collect();
        if !codes.is_empty() {
            let _ = write!(html, "<p>Codes: {}</p>", codes.join(", "));
        }
    }
    let headers: Vec<&str> = members(&response["headers"]).map(|(name, _)| name).collect();
    if !headers.is_empty() {
        let _ = write!(html, "<p>Headers: <code>{}</code></p>", headers.join("</code>, <code>"));
    }
    html.push_str("</details>");
}

fn write_schema(html: &mut String, schema: &Value) {
    let _ = write!(html, "<p>{}</p>", marked(&schema["description"]));
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut fields = members(&schema["properties"]).peekable();
    if fields.peek().is_none() {
        let _ = write!(html, "<p>{}</p>", kind(schema));
        return;
    }
    html.push_str("<table><tr><th>field<th>type<th>meaning</tr>");
    for (name, field) in fields {
        let optional = if required.contains(&name) { "" } else { ", optional" };
        let _ = write!(
            html,
            "<tr><td><code>{name}</code><td>{}{optional}<td>{}</tr>",
            kind(field),
            marked(&field["description"]),
        );
    }
    html.push_str("</table>");
    for (name, field) in members(&schema["properties"]).filter(|(_, field)| field["properties"].is_object()) {
        let _ = write!(html, "<p>The fields of <code>{name}</code>:</p>");
        write_schema(html, field);
    }
}

/// The type of a schema in a few words, with links to the schemas that it refers to.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return format!("<a href=#schema-{name}>{name}</a>");
    }
    let alternatives = ["anyOf", "oneOf"].into_iter().find_map(|key| schema[key].as_array());
    if let Some(alternatives) = alternatives {
        return alternatives.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    if let Some(value) = schema.get("const") {
        return format!("<code>{}</code>", escaped(&value.to_string()));
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> =
            values.iter().map(|value| format!("<code>{}</code>", escaped(&value.to_string()))).collect();
        return values.join(" or ");
    }
    if schema["type"] == "array" {
        return format!("list of {}", kind(&schema["items"]));
    }
    let named = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        kind => kind.as_str().unwrap_or("any").to_owned(),
    };
    let detail = ["format", "pattern"].into_iter().find_map(|key| schema[key].as_str());
    detail.map_or(named.clone(), |detail| format!("{named}, <code>{}</code>", escaped(detail)))
}

fn write_example(html: &mut String, example: &Value) {
    if !example.is_null() {
        let _ = write!(html, "<pre>{}</pre>", escaped(&format!("{example:#}")));
    }
}

fn members(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter).map(|(name, member)| (name.as_str(), member))
}

fn text(value: &Value) -> String {
    escaped(value.as_str().unwrap_or_default())
}

/// Text in which backticks mark code.
fn marked(value: &Value) -> String {
    let mut html = String::new();
    for (at, part) in text(value).split('`').enumerate() {
        let _ = if at % 2 == 1 { write!(html, "<code>{part}</code>") } else { write!(html, "{part}") };
    }
    html
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
