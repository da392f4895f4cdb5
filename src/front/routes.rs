//! The routes by their paths: which methods they take, and how long their requests take, by route, method and status.

use std::cell::RefCell;
use std::sync::LazyLock;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use metrics::Histogram;

use super::openapi::Api;

/// The route of a request that matches none.
const NO_ROUTE: &str = "none";

/// The route of a request, by its path. Found before the router looks: a layer of the router that noted what it has
/// matched cost each request an allocation and a boxed future, and a sold-out answer a twentieth of its rate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route(Option<&'static Template>);

impl Route {
    pub(super) fn of(path: &str) -> Self {
        let slashes = path.bytes().filter(|byte| *byte == b'/').count();
        let routes = ROUTES.get(slashes).map(Vec::as_slice).unwrap_or_default();
        Self(routes.iter().find(|route| route.matches(path)))
    }

    /// Counts a request of this route that took `took`.
    pub(super) fn record(self, method: &Method, status: StatusCode, took: Duration) {
        HANDLES.with_borrow_mut(|handles| handles.of(self, method_label(method), status).record(took));
    }

    /// The methods that it takes, as the header `Allow` has them. The router itself would name those of every act on one
    /// thing.
    pub(super) fn allows(self) -> Option<&'static str> {
        self.0.map(|route| route.methods.as_str())
    }

    pub(super) fn label(self) -> &'static str {
        self.0.map_or(NO_ROUTE, |route| route.path)
    }
}

/// The paths that the listeners serve, by their number of slashes. Those of the buyers come first, because they are asked for
/// most; then one with an act before the same without, and a literal before a parameter.
static ROUTES: LazyLock<Vec<Vec<Template>>> = LazyLock::new(|| {
    let mut routes: Vec<Template> = Vec::new();
    let buyers = Api::Buyers.methods();
    let is_buyers = |path: &str| buyers.iter().any(|(known, _)| *known == path);
    for (path, method) in [buyers.clone(), Api::Operations.methods()].concat() {
        match routes.iter_mut().find(|route| route.path == path) {
            Some(known) if known.methods.contains(method) => {}
            Some(known) => known.methods = format!("{}, {method}", known.methods),
            None => routes.push(Template::new(path, method)),
        }
    }
    routes.sort_by_key(|route| {
        (!is_buyers(route.path), route.path.matches('{').count(), !route.path.contains("}:"))
    });
    let mut by_slashes = Vec::new();
    for (nth, mut route) in routes.into_iter().enumerate() {
        route.nth = nth;
        let slashes = route.path.matches('/').count();
        by_slashes.resize_with(by_slashes.len().max(slashes + 1), Vec::new);
        by_slashes[slashes].push(route);
    }
    by_slashes
});

#[derive(Debug)]
struct Template {
    /// Its place among all of them.
    nth: usize,
    path: &'static str,
    methods: String,
    /// What comes before the first parameter.
    prefix: &'static str,
    segments: Vec<Segment>,
}

/// A part of a path after its prefix.
#[derive(Debug)]
enum Segment {
    Literal(&'static str),
    Parameter,
    /// A parameter with this after it, such as `:cancel`.
    Act(&'static str),
}

impl Template {
    fn new(path: &'static str, methods: &str) -> Self {
        let segment = |segment: &'static str| match (segment.starts_with('{'), segment.find("}:")) {
            (false, _) => Segment::Literal(segment),
            (true, None) => Segment::Parameter,
            (true, Some(end)) => Segment::Act(&segment[end + 1..]),
        };
        let (prefix, rest) = path.split_at(path.find('{').unwrap_or(path.len()));
        let segments = rest.split('/').map(segment).collect();
        Self { nth: 0, path, methods: methods.to_owned(), prefix, segments }
    }

    fn matches(&self, path: &str) -> bool {
        // Almost all that does not match differs here, and comparing is cheaper than splitting.
        let Some(rest) = path.strip_prefix(self.prefix) else { return false };
        let mut parts = rest.split('/');
        let all = self.segments.iter().all(|segment| match (segment, parts.next()) {
            (_, None) => false,
            (Segment::Literal(literal), Some(part)) => *literal == part,
            (Segment::Parameter, Some(part)) => !part.is_empty(),
            (Segment::Act(act), Some(part)) => part.ends_with(act),
        });
        all && parts.next().is_none()
    }
}

/// Anybody can make up a method, so those that no route takes are one.
pub(super) fn method_label(method: &Method) -> &'static str {
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

/// The histograms that this thread has used, by route; without one first. To have the recorder look one up costs more.
#[derive(Default)]
struct Handles(Vec<OfRoute>);

/// By method and status.
type OfRoute = Vec<(&'static str, StatusCode, Histogram)>;

impl Handles {
    fn of(&mut self, route: Route, method: &'static str, status: StatusCode) -> &Histogram {
        let at = route.0.map_or(0, |route| route.nth + 1);
        if self.0.len() <= at {
            self.0.resize_with(at + 1, Vec::new);
        }
        let used = &mut self.0[at];
        let at = used.iter().position(|used| (used.0, used.1) == (method, status)).unwrap_or_else(|| {
            let histogram = metrics::histogram!(
                "doorbuster_http_request_duration_seconds",
                "route" => route.label(), "method" => method, "status" => status.as_u16().to_string(),
            );
            used.push((method, status, histogram));
            used.len() - 1
        });
        &used[at].2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_act_takes_post_alone() {
        for (path, methods) in [
            ("/v1/admin/sales/shoes:open", Some("POST")),
            ("/v1/admin/sales/shoes", Some("GET, HEAD")),
            ("/v1/admin/sales", Some("POST, GET, HEAD")),
            ("/nowhere", None),
        ] {
            assert_eq!(Route::of(path).allows(), methods, "{path}");
        }
    }

    #[test]
    fn a_path_has_the_label_of_its_route() {
        for (path, label) in [
            ("/v1/sales/shoes", "/v1/sales/{sale}"),
            ("/v1/sales/shoes/orders", "/v1/sales/{sale}/orders"),
            ("/v1/sales/shoes/orders/mine", "/v1/sales/{sale}/orders/mine"),
            ("/v1/sales/shoes/orders/0190c7a1", "/v1/sales/{sale}/orders/{id}"),
            ("/v1/sales/shoes/orders/0190c7a1:cancel", "/v1/sales/{sale}/orders/{id}:cancel"),
            ("/v1/admin/sales/shoes:open", "/v1/admin/sales/{sale}:open"),
            ("/v1/admin/dead-letters:replay", "/v1/admin/dead-letters:replay"),
            ("/openapi.json", "/openapi.json"),
            ("/", "none"),
            ("/v1/sales/", "none"),
            ("/v1/sales/shoes/orders/0190c7a1/more", "none"),
        ] {
            assert_eq!(Route::of(path).label(), label, "{path}");
        }
    }
}
