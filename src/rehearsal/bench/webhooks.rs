//! What webhooks cost a worker: it empties a backlog while an endpoint never answers, and while there is none. And how fast
//! an endpoint that answers at once is given what happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use http_body_util::Full;
use hyper::{Method, Request};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::error::{BenchError, broken};
use super::orders::{publish, until_persisted};
use super::persist::{BACKLOG, first_batches};
use super::report::{Figure, Wanted};
use super::sample::{PLENTY, open_sale, sale};
use super::world::World;
use crate::domain::{EventTypes, Sale};
use crate::gate::Gate;
use crate::link::{Poster, Reach};
use crate::queue::Publisher;
use crate::rehearsal::servers::Kind;
use crate::store::{EndpointState, Store};
use crate::webhook::Secret;

const ROUNDS: u64 = 3;
const ENDPOINT: &str = "silent";
/// Until every process follows an endpoint that was switched.
const FOLLOWED: Duration = Duration::from_secs(3);

/// A front makes the deliveries and tries to send them meanwhile.
pub(super) async fn webhooks(world: &mut World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let (gate, store) = (world.gate()?, world.store(Kind::Postgres).await?);
    let publisher = Publisher::open(world.queue()?);
    publisher.wait_until_up().await;
    let (url, _silent) = silent().await?;
    let secret = Secret::generate().ok_or_else(|| broken("this host has no source of random bytes"))?;
    store.add_endpoint(ENDPOINT, &url, &secret, &EventTypes::all()).await.map_err(broken)?;
    let _front = world.process("front", &["webhooks.allow_private=true"]).await?;
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        announce(&format!("a backlog of {BACKLOG} with a silent endpoint, round {} of {ROUNDS}", round + 1));
        let mut rates = Vec::new();
        for state in [EndpointState::On, EndpointState::Off("the benchmark".into())] {
            store.switch_endpoint(ENDPOINT, &state).await.map_err(broken)?;
            let with = if state == EndpointState::On { "with" } else { "without" };
            let sale = sale(&format!("webhooks-{round}-{with}"), PLENTY)?;
            open_sale(&gate, &store, &sale).await?;
            publish(&gate, &publisher, &sale, 0..BACKLOG).await?;
            tokio::time::sleep(FOLLOWED).await;
            rates.push(empty(world, &gate, &sale).await?);
            // What is left to deliver must not weigh on the next measurement.
            store
                .switch_endpoint(ENDPOINT, &EndpointState::Off("the benchmark".into()))
                .await
                .map_err(broken)?;
            while store.make_deliveries(1_000).await.map_err(broken)? > 0 {}
        }
        rounds.push((rates[0], rates[1]));
    }
    let what = "persisted, an endpoint that never answers; no endpoint";
    let costs = Figure::beside(what, "orders/s", rounds, Wanted::Ratio(0.6));
    announce(&format!("{EVENTS} events for an endpoint that answers at once"));
    let given = given(world, &gate, &store, &publisher).await?;
    let what = "events given to an endpoint that answers at once; bare posts";
    Ok(vec![costs, Figure::beside(what, "events/s", vec![given], Wanted::Informational)])
}

/// Orders that are confirmed for an endpoint that answers at once.
const EVENTS: u64 = 10_000;
/// How long it may take to be given all.
const GIVEN_WITHIN: Duration = Duration::from_secs(180);
/// Bare posts at the same time: as many as a front has open to one endpoint.
const AT_ONCE: usize = 16;

/// The events a second that an endpoint is given once a worker has written a backlog, and the posts a second that it takes
/// without a database.
async fn given(
    world: &mut World,
    gate: &Gate,
    store: &Store,
    publisher: &Publisher,
) -> Result<(f64, f64), BenchError> {
    let (url, taken, _shop) = shop().await?;
    let secret = Secret::generate().ok_or_else(|| broken("this host has no source of random bytes"))?;
    store.add_endpoint("shop", &url, &secret, &EventTypes::all()).await.map_err(broken)?;
    let sale = sale("webhooks-given", PLENTY)?;
    open_sale(gate, store, &sale).await?;
    publish(gate, publisher, &sale, 0..EVENTS).await?;
    tokio::time::sleep(FOLLOWED).await;
    let (before, worker) = (taken.load(Ordering::Relaxed), world.process("worker", &[]).await?);
    until_persisted(gate, &sale).await?;
    let (first, begun) = (taken.load(Ordering::Relaxed), Instant::now());
    while taken.load(Ordering::Relaxed) - before < EVENTS {
        if begun.elapsed() > GIVEN_WITHIN {
            return Err(broken("the endpoint was not given everything in time"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let given = (before + EVENTS - first) as f64 / begun.elapsed().as_secs_f64();
    world.end(worker).await;
    Ok((given, bare_posts(&url).await?))
}

async fn bare_posts(url: &str) -> Result<f64, BenchError> {
    let (poster, begun) = (Poster::new(Reach::EVERYWHERE), Instant::now());
    let posts = stream::iter(0..EVENTS).map(|_| {
        let poster = poster.clone();
        async move {
            let body = Full::from(vec![b'x'; 300]);
            let request = Request::builder().method(Method::POST).uri(url).body(body).map_err(broken)?;
            poster.send(request, Duration::from_secs(10)).await.map_err(broken)
        }
    });
    posts.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    Ok(EVENTS as f64 / begun.elapsed().as_secs_f64())
}

/// Takes everything at once, and counts it.
async fn shop() -> Result<(String, Arc<AtomicU64>, AbortOnDropHandle<()>), BenchError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(broken)?;
    let url = format!("http://{}/webhooks", listener.local_addr().map_err(broken)?);
    let taken = Arc::new(AtomicU64::new(0));
    let counter = taken.clone();
    let take = move || {
        counter.fetch_add(1, Ordering::Relaxed);
        std::future::ready(StatusCode::NO_CONTENT)
    };
    let routes = Router::new().route("/webhooks", post(take));
    let task = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, routes).await {
            tracing::warn!(%error, "the shop has ended");
        }
    });
    Ok((url, taken, AbortOnDropHandle::new(task)))
}

/// The orders per second of a worker from its first batch on.
async fn empty(world: &mut World, gate: &Gate, sale: &Sale) -> Result<f64, BenchError> {
    let (worker, (left, begun)) = tokio::try_join!(world.process("worker", &[]), first_batches(gate, sale))?;
    until_persisted(gate, sale).await?;
    let rate = left as f64 / begun.elapsed().as_secs_f64();
    world.end(worker).await;
    Ok(rate)
}

/// Accepts connections, and answers nothing.
async fn silent() -> Result<(String, AbortOnDropHandle<()>), BenchError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(broken)?;
    let url = format!("http://{}/webhooks", listener.local_addr().map_err(broken)?);
    let task = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.push(stream);
        }
    });
    Ok((url, AbortOnDropHandle::new(task)))
}
