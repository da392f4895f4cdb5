//! How long requests take, by route, method and status: their rate, their errors and their duration in one histogram.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use metrics::Histogram;

/// The route of a request that matches none.
const NO_ROUTE: &str = "none";

/// Where the router leaves the route of a request: the request may end without a response from it.
#[derive(Debug, Clone, Default)]
pub(super) struct RouteSlot(Arc<OnceLock<MatchedPath>>);

impl RouteSlot {
    /// Counts a request of this route that took `took`.
    pub(super) fn record(&self, method: &Method, status: StatusCode, took: Duration) {
        let route = self.0.get().map_or(NO_ROUTE, MatchedPath::as_str);
        HANDLES.with_borrow_mut(|handles| handles.of(route, method_label(method), status).record(took));
    }
}

/// The router, which notes the route of each request in its [`RouteSlot`].
pub(super) fn noting_routes(router: Router) -> Router {
    router.layer(from_fn(note_route))
}

async fn note_route(request: Request, next: Next) -> Response {
    let extensions = request.extensions();
    if let (Some(slot), Some(route)) = (extensions.get::<RouteSlot>(), extensions.get::<MatchedPath>()) {
        let _ = slot.0.set(route.clone());
    }
    next.run(request).await
}

/// Anybody can make up a method, so those that no route takes are one.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        _ => "other",
    }
}

thread_local! {
    static HANDLES: RefCell<Handles> = RefCell::default();
}

/// The histograms that this thread has used, by route: some twenty, and to have the recorder look one up costs more.
#[derive(Default)]
struct Handles(Vec<(String, OfRoute)>);

/// By method and status.
type OfRoute = Vec<(&'static str, StatusCode, Histogram)>;

impl Handles {
    fn of(&mut self, route: &str, method: &'static str, status: StatusCode) -> &Histogram {
        let at = self.0.iter().position(|known| known.0 == route).unwrap_or_else(|| {
            self.0.push((route.to_owned(), Vec::new()));
            self.0.len() - 1
        });
        let (_, used) = &mut self.0[at];
        let at = used.iter().position(|used| (used.0, used.1) == (method, status)).unwrap_or_else(|| {
            let histogram = metrics::histogram!(
                "doorbuster_http_request_duration_seconds",
                "route" => route.to_owned(), "method" => method, "status" => status.as_u16().to_string(),
            );
            used.push((method, status, histogram));
            used.len() - 1
        });
        &used[at].2
    }
}
