//! The HTTP API for machines and for readers: as an OpenAPI 3.1 document, and as a page.
//!
//! The schemas are those of the types that the routes read and write. [`buyers`] and [`operators`] list the operations;
//! the tests check every answer that they get against the document.

mod buyers;
mod document;
mod operation;
mod operators;
mod page;
mod parts;
mod webhooks;

use std::sync::OnceLock;

use axum::Router;
use axum::http::header;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use serde_json::Value;
use tokio::task::block_in_place;

use self::operation::Operation;

/// Where a listener serves its document, and the page.
const DOCUMENT: &str = "/openapi.json";
const PAGE: &str = "/docs";

/// The API of one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// What buyers and payment providers call.
    Buyers,
    /// What operators and monitoring call.
    Operations,
}

impl Api {
    /// Its OpenAPI 3.1 document.
    pub fn document(self) -> Value {
        match self {
            Self::Buyers => document::document(
                "Doorbuster: buyers and payment providers",
                "Places, follows and cancels orders of a flash sale, and receives payments.",
                &self.operations(),
            ),
            Self::Operations => document::document(
                "Doorbuster: operators and monitoring",
                "Creates, steers and audits sales, and shows how a process is.",
                &self.operations(),
            ),
        }
    }

    /// The paths that it has, each with a method, as often as it has methods. A path that takes GET takes HEAD.
    pub(super) fn methods(self) -> Vec<(&'static str, &'static str)> {
        let method = |operation: &Operation| match operation.method {
            "get" => (operation.path, "GET, HEAD"),
            _ => (operation.path, "POST"),
        };
        let described = [(DOCUMENT, "GET, HEAD"), (PAGE, "GET, HEAD")];
        self.operations().iter().map(method).chain(described).collect()
    }

    fn operations(self) -> Vec<Operation> {
        match self {
            Self::Buyers => buyers::operations(),
            Self::Operations => operators::operations(),
        }
    }

    /// Its document as text, made once.
    fn text(self) -> &'static str {
        static TEXTS: [OnceLock<String>; 2] = [const { OnceLock::new() }; 2];
        made_once(&TEXTS[self as usize], || self.document().to_string())
    }

    fn page(self) -> &'static str {
        static PAGES: [OnceLock<String>; 2] = [const { OnceLock::new() }; 2];
        made_once(&PAGES[self as usize], || page::page(&self.document()))
    }

    /// `/openapi.json`, and `/docs` for readers.
    pub(super) fn routes<S: Clone + Send + Sync + 'static>(self) -> Router<S> {
        Router::new()
            .route(DOCUMENT, get(move || async move { json_text(self.text()) }))
            .route(PAGE, get(move || async move { Html(self.page()) }))
    }
}

/// Made by the first request, which takes milliseconds and must hold nobody up.
fn made_once(text: &'static OnceLock<String>, make: impl FnOnce() -> String) -> &'static str {
    text.get().unwrap_or_else(|| block_in_place(|| text.get_or_init(make)))
}

fn json_text(text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}
