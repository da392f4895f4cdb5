//! The OpenAPI documents: they are current, they describe every route, and their examples fit. Every answer that a test
//! gets is checked against them, in [`crate::support::http`].

mod compatible;
mod fits;

use std::collections::BTreeSet;
use std::path::Path;

use doorbuster::front::Api;
use serde_json::Value;

pub use fits::assert_fits;

use crate::support::run;

const APIS: [(Api, &str); 2] = [(Api::Buyers, "buyers"), (Api::Operations, "operations")];

fn read(path: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn the_committed_documents_are_those_of_this_build() {
    for (api, name) in APIS {
        assert!(
            read(&format!("docs/openapi/{name}.json")) == api.document(),
            "docs/openapi/{name}.json is out of date: doorbuster openapi {name} > docs/openapi/{name}.json"
        );
    }
}

#[tokio::test]
async fn the_command_prints_the_documents() {
    for (api, name) in APIS {
        let (code, out, err) = run(None, &["openapi", name]).await;
        assert_eq!(code, 0, "{err}");
        assert!(serde_json::from_str::<Value>(&out).expect("JSON") == api.document(), "{name}");
    }
}

#[test]
fn every_example_fits_its_schema() {
    let mut examples = 0;
    for (api, name) in APIS {
        let document = api.document();
        fits::each_media(&document, &mut |place, media| {
            let inline = media.get("example");
            let named = media["examples"].as_object().into_iter().flatten();
            let resolved = named.map(|(_, example)| match example["$ref"].as_str() {
                Some(path) => &document.pointer(&path[1..]).expect("an example")["value"],
                None => &example["value"],
            });
            for example in inline.into_iter().chain(resolved) {
                examples += 1;
                if let Err(why) = fits::fits(&document, &media["schema"], example) {
                    panic!("{name}: {place}: {why}\n{example:#}");
                }
            }
        });
    }
    assert!(examples > 200, "{examples} examples were found");
}

/// The routes, read from the sources: those of the routers that the listeners serve.
#[test]
fn every_route_is_described_and_every_description_has_a_route() {
    let mut routes = BTreeSet::new();
    for file in ["buyers/mod.rs", "admin/mod.rs", "webhooks.rs", "operations.rs"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/front").join(file);
        let source = std::fs::read_to_string(path).expect("the source");
        for line in source.split(".route(\"").skip(1) {
            let (path, methods) = line.split_once('"').expect("a path");
            let methods = methods.split(".route(").next().expect("methods").lines().next().expect("a line");
            for method in ["get", "post"] {
                if methods.contains(&format!("{method}(")) {
                    routes.insert((method.to_owned(), path.to_owned()));
                }
            }
        }
    }
    assert!(routes.len() > 20, "{routes:?}");
    let mut described = BTreeSet::new();
    for (api, _) in APIS {
        let document = api.document();
        for (path, methods) in document["paths"].as_object().expect("paths") {
            for (method, operation) in methods.as_object().expect("methods") {
                for parameter in operation["parameters"].as_array().into_iter().flatten() {
                    assert!(parameter["schema"].is_object(), "{path}: {parameter} is not described");
                }
                // The router takes the act with the parameter before it.
                let path = match path.rsplit_once("}:") {
                    Some((before, _)) => format!("{before}}}"),
                    None => path.clone(),
                };
                described.insert((method.clone(), path));
            }
        }
    }
    assert_eq!(described, routes);
}

#[test]
fn no_client_is_broken_by_what_has_changed_since_the_baseline() {
    for (api, name) in APIS {
        let baseline = read(&format!("tests/it/contract/{name}.json"));
        let broken = compatible::broken(&baseline, &api.document());
        assert!(broken.is_empty(), "{name}: {broken:#?}");
        // What a baseline does not have, it does not protect.
        let document = api.document();
        let known = operations(&baseline);
        let unprotected: Vec<_> =
            operations(&document).into_iter().filter(|it| !known.contains(it)).collect();
        assert!(unprotected.is_empty(), "cp docs/openapi/{name}.json tests/it/contract/: {unprotected:?}");
    }
}

/// The paths with their methods.
fn operations(document: &Value) -> BTreeSet<(&str, &str)> {
    let paths = document["paths"].as_object().into_iter().flatten();
    paths
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().into_iter().flatten();
            methods.map(move |(method, _)| (path.as_str(), method.as_str()))
        })
        .collect()
}
