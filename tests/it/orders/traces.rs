//! Traces, from the click to its row, as a collector gets them.

use std::time::Duration;

use doorbuster::domain::Sale;
use doorbuster::front::Signer;
use tempfile::NamedTempFile;

use crate::support::{
    Answer, Buyer, Collected, Collector, Database, Doorbuster, World, request, run, sale, until,
};

const LONG: Duration = Duration::from_secs(60);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const KEY: &str = "Bearer 5fb1c0";
const CALLER: &str = "00f067aa0ba902b7";
const DROPPED: &str = "doorbuster_trace_spans_total{result=\"dropped\"}";

struct Stack {
    world: World,
    collector: Collector,
    sale: Sale,
    front: Doorbuster,
    _worker: Doorbuster,
    _headers: NamedTempFile,
}

/// A front and a worker that record one in so many requests.
async fn stack(one_in: u32) -> Stack {
    stack_with(one_in, 1_000).await
}

/// The same, that also record what takes as many milliseconds.
async fn stack_with(one_in: u32, slow_ms: u32) -> Stack {
    let mut world = World::new(Database::Postgres).await;
    let collector = Collector::start().await;
    world.set(&format!("traces.url={}", collector.url())).set(&format!("traces.one_in={one_in}"));
    world.set(&format!("traces.slow_ms={slow_ms}"));
    let headers = NamedTempFile::new().unwrap();
    std::fs::write(headers.path(), format!("Authorization: {KEY}\n")).unwrap();
    world.set(&format!("traces.headers_file={}", headers.path().display()));
    let (parts, sale) = (world.parts().await, sale(&world.name, 1_000, 1));
    world.open_sale(&parts, &sale).await;
    world.compare_books(&parts).await;
    let front = Doorbuster::start(&world, "front").await;
    let worker = Doorbuster::start(&world, "worker").await;
    let stack = Stack { world, collector, sale, front, _worker: worker, _headers: headers };
    // Not recorded: what it refuses until it has compared the books is none of the tests' business.
    let unsampled = traceparent(TRACE, "00");
    let sells = async || (stack.buy("first", &unsampled).await.status == 202).then_some(());
    until("the front sells", LONG, sells).await;
    stack
}

impl Stack {
    fn buyer(&self, user: &str) -> Buyer {
        let tokens = Signer::new(self.world.config().auth());
        Buyer::with(self.front.buyers.unwrap(), &tokens, user, None)
    }

    async fn buy(&self, user: &str, traceparent: &str) -> Answer {
        let path = format!("/v1/sales/{}/orders", self.sale.id);
        let headers = [("idempotency-key", "k"), ("traceparent", traceparent)];
        self.buyer(user).post(&path, &headers, "").await
    }

    /// Buys, and waits until the collector has what the worker did.
    async fn spans_of_a_new_order(&self) {
        let answer = self.buy("ada", "").await;
        let order = ("doorbuster.order_id".to_owned(), answer.order_id().to_owned());
        until("it gets the next ones", LONG, async || {
            let spans = self.collector.spans();
            spans.iter().any(|span| span.name == "persist" && span.attributes.contains(&order)).then_some(())
        })
        .await;
    }

    /// The spans of a trace, once there are so many: each process sends its own.
    async fn spans(&self, trace: &str, count: usize) -> Vec<Collected> {
        until(&format!("{count} spans of {trace}"), LONG, async || {
            let spans = self.collector.spans_of(trace);
            (spans.len() >= count).then_some(spans)
        })
        .await
    }
}

fn traceparent(trace: &str, flags: &str) -> String {
    format!("00-{trace}-{CALLER}-{flags}")
}

/// Draws the spans of a trace, each below its parent.
fn draw(spans: &[Collected], parent: &str, depth: usize) {
    let first = spans.iter().map(|span| span.begun).min().unwrap_or_default();
    for span in spans.iter().filter(|span| span.parent == parent) {
        let [begun, took] = [span.begun - first, span.ended - span.begun].map(|nanos| nanos as f64 / 1e6);
        let name = format!("{:indent$}{}", "", span.name, indent = depth * 2);
        println!("{begun:>8.2} ms {took:>8.2} ms  {:<17} {name}", span.service);
        draw(spans, &span.id, depth + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_goes_from_the_click_to_the_row() {
    let stack = stack(0).await;
    let answer = stack.buy("victor", &traceparent(TRACE, "01")).await;
    assert_eq!(answer.status, 202, "{}", answer.text);
    let spans = stack.spans(TRACE, 9).await;
    draw(&spans, CALLER, 0);
    let span = |name: &str| {
        let found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
        assert_eq!(found.len(), 1, "{name}: {spans:#?}");
        found[0]
    };
    let request = span("/v1/sales/{sale}/orders");
    assert_eq!((request.parent.as_str(), request.service.as_str()), (CALLER, "doorbuster-front"));
    assert!(request.attributes.contains(&("http.response.status_code".into(), "202".into())), "{request:?}");
    let (publish, persist) = (span("publish"), span("persist"));
    for (child, parent) in [("admit", request), ("publish", request), ("persist", publish)] {
        assert_eq!(span(child).parent, parent.id, "{child}");
    }
    let steps = ["lease", "transaction", "acknowledge", "release", "settle"];
    for (step, next) in steps.iter().zip(steps.iter().skip(1)) {
        assert_eq!((span(step).parent.as_str(), span(step).ended), (persist.id.as_str(), span(next).begun));
    }
    assert_eq!(persist.service, "doorbuster-worker");
    let order = ("doorbuster.order_id".to_owned(), answer.order_id().to_owned());
    assert!(persist.attributes.contains(&order) && span("admit").attributes.contains(&order), "{spans:#?}");
    assert!(spans.iter().all(|span| span.begun <= span.ended && !span.failed), "{spans:#?}");
    assert!(!format!("{spans:?}").contains("victor"), "no buyer is named");
    assert_eq!(spans.len(), 9, "{spans:#?}");
    let keys = stack.collector.keys();
    assert!(keys.iter().all(|key| key.as_deref() == Some(KEY)), "front and worker show the key: {keys:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_sampled_is_recorded_and_a_refusal_names_its_trace() {
    let stack = stack(0).await;
    let [unsampled, other] = ["a", "b"].map(|digit| digit.repeat(32));
    let broken = format!("00-{TRACE}-{CALLER}");
    for (user, traceparent) in
        [("ada", traceparent(&unsampled, "00")), ("bob", broken), ("eve", "x".repeat(4_000))]
    {
        assert_eq!(stack.buy(user, &traceparent).await.status, 202, "{traceparent}");
    }
    let headers = [("traceparent", &*traceparent(&other, "01"))];
    let refused = stack.buyer("ada").post("/v1/sales/nothing/orders", &headers, "").await;
    assert_eq!((refused.status, refused.json["trace_id"].as_str()), (404, Some(other.as_str())));
    stack.spans(&other, 1).await;
    let path = format!("/v1/sales/{}/orders", stack.sale.id);
    let buyers = stack.front.buyers.unwrap();
    let logged = "c".repeat(32);
    let forged = [("authorization", "Bearer x.y.z"), ("traceparent", &*traceparent(&logged, "01"))];
    assert_eq!(request(buyers, "POST", &path, &forged, b"").await.status, 401);
    until("the log names its trace", LONG, async || stack.front.has_logged(&logged).then_some(())).await;
    stack.spans(&logged, 1).await;
    // What failed before the front sold is recorded anyway.
    let spans = stack.collector.spans();
    assert!(spans.iter().all(|span| [&other, &logged].contains(&&span.trace) || span.failed), "{spans:#?}");
    let nobody = Buyer::with(buyers, &Signer::new(stack.world.config().auth()), "ada", None);
    let untraced = nobody.post(&path, &[("idempotency-key", "")], "").await;
    assert_eq!((untraced.status, untraced.json.get("trace_id")), (400, None), "{}", untraced.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_a_collector_and_what_it_does_not_take_is_counted() {
    let stack = stack(1).await;
    stack.collector.refuse(true);
    let mut orders = Vec::new();
    for nth in 0..20 {
        let answer = stack.buy(&format!("user{nth}"), "").await;
        assert_eq!(answer.status, 202, "{}", answer.text);
        orders.push(("doorbuster.order_id".to_owned(), answer.order_id().to_owned()));
    }
    // Each of the twenty requests has a span at least.
    let dropped = async || (stack.front.metric(DROPPED).await >= 20.0).then_some(());
    until("spans are dropped", LONG, dropped).await;
    // The line is written after the spans are counted, and read later still.
    let said = async || stack.front.has_logged("the collector takes no traces").then_some(());
    until("the front says so", LONG, said).await;
    // What was refused before the front sold may be there.
    let spans = stack.collector.spans();
    let of_an_order = spans.iter().find(|span| span.attributes.iter().any(|pair| orders.contains(pair)));
    assert_eq!(of_an_order, None);
    stack.collector.refuse(false);
    stack.spans_of_a_new_order().await;
}

/// Each order would wait for as long as the collector does.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_hangs_holds_nobody_up() {
    let stack = stack(1).await;
    stack.collector.hang(true);
    let buying = async {
        for nth in 0..20 {
            let answer = stack.buy(&format!("user{nth}"), "").await;
            assert_eq!(answer.status, 202, "{}", answer.text);
        }
    };
    // Each waits for the disks of Redis and of the broker, and for the collector it would wait five seconds.
    tokio::time::timeout(Duration::from_secs(60), buying).await.expect("nobody waits");
    let dropped = async || (stack.front.metric(DROPPED).await > 0.0).then_some(());
    until("the spans are given up", LONG, dropped).await;
    stack.collector.hang(false);
    stack.spans_of_a_new_order().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_or_is_slow_is_recorded_by_its_first_span_though_nobody_sampled_it() {
    // Each order waits for the disks of Redis and the broker for longer than this.
    let slow = stack_with(0, 1).await;
    let order = slow.buy("ada", "").await;
    assert_eq!(order.status, 202, "{}", order.text);
    // What made sure that the front sells may be there as well, in the trace of its caller.
    let recorded = async |stack: &Stack| {
        until("it is recorded", LONG, async || {
            let spans = stack.collector.spans();
            spans.iter().any(|span| span.parent.is_empty()).then_some(spans)
        })
        .await
    };
    let route = "/v1/sales/{sale}/orders";
    let spans = recorded(&slow).await;
    assert!(spans.iter().all(|span| span.name == route && !span.failed), "{spans:#?}");
    assert!(spans.iter().all(|span| span.ended - span.begun >= 1_000_000), "{spans:#?}");

    let stack = stack(0).await;
    let set = ["settings", "set", "front.read_only", "true"];
    let (code, out, err) = run(Some(&stack.world), &set).await;
    assert_eq!(code, 0, "{out}{err}");
    let refused = until("the front refuses", LONG, async || {
        Some(stack.buy("bob", "").await).filter(|answer| answer.status == 503)
    })
    .await;
    let spans = recorded(&stack).await;
    assert!(spans.iter().all(|span| span.name == route && span.failed), "{spans:#?}");
    assert_eq!(refused.json.get("trace_id"), None, "the answer was on its way before anybody knew");
}
