//! One front makes the deliveries and has each endpoint given its own, independently of the others.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::courier::Courier;
use super::sold_out::SoldOut;
use crate::gate::Gate;
use crate::lease::{Guard, Leases};
use crate::maintenance::MaintenanceError;
use crate::maintenance::leader::{Leader, keep_leading};
use crate::store::{Endpoint, EndpointState, Store, Undelivered};
use crate::webhook::{EndpointUrl, Secret, Sender};

const SCOPE: &str = "_webhooks";

/// Between two rounds.
const EVERY: Duration = Duration::from_millis(500);

/// The same while no endpoint is on: then only what was written down before that was known is left.
const REST: Duration = Duration::from_secs(10);

/// States that become deliveries in one transaction, and how many of these there are in one round.
const BATCH: u64 = 1_000;
const BATCHES: usize = 20;

/// How often what waits is counted.
const COUNT_EVERY: Duration = Duration::from_secs(10);

/// Gives endpoints what happened, on one front at a time.
pub struct Webhooks {
    /// Says which sales are sold out.
    pub gate: Gate,
    /// Has the endpoints, and what they are to be given.
    pub store: Store,
    /// Decides who leads.
    pub leases: Leases,
    /// Whether an endpoint may be on this host or in a private network.
    pub allow_private: bool,
}

/// The endpoints that are being given something, each with the URL and the secrets with which that began.
type UnderWay = HashMap<String, (String, Vec<String>, AbortOnDropHandle<()>)>;

/// What the leader knows from its earlier rounds.
#[derive(Default)]
struct Earlier {
    under_way: UnderWay,
    counted: Option<Instant>,
    sold_out: SoldOut,
    /// Orders and sales whose events a later build knows.
    unknown: u64,
    /// Whether the last round has failed.
    has_failed: bool,
}

impl Webhooks {
    /// Runs until `stop`. Errors are logged and retried in a later round. What is being sent when this process no longer
    /// leads is broken off, and the next leader sends it again.
    pub async fn run(self, stop: CancellationToken) {
        let sender = Sender::new(self.allow_private);
        let mut leader = Leader::new(&self.leases, SCOPE);
        let mut earlier = Earlier::default();
        let mut looked: Option<Instant> = None;
        while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
            let lead = leader.lead().await;
            let Ok(Some(lead)) = lead else {
                earlier = Earlier::default();
                if lead.is_ok() {
                    // Another process measures now.
                    show(0, 0, 0);
                }
                continue;
            };
            let may_rest = !self.store.announces_to_webhooks() && earlier.under_way.is_empty();
            if may_rest && looked.is_some_and(|at| at.elapsed() < REST) {
                continue;
            }
            looked = Some(Instant::now());
            let round = lead.until_lost(self.round(lead, &sender, &mut earlier));
            match stop.run_until_cancelled(round).await {
                Some(Ok(Ok(()))) => earlier.has_failed = false,
                Some(Ok(Err(error))) => {
                    if !std::mem::replace(&mut earlier.has_failed, true) {
                        tracing::warn!(%error, "webhooks wait");
                    }
                }
                Some(Err(error)) => tracing::warn!(%error, "webhooks are left to another front"),
                None => break,
            }
        }
        drop(earlier);
        leader.resign().await;
    }

    async fn round(
        &self,
        leader: &Guard,
        sender: &Sender,
        earlier: &mut Earlier,
    ) -> Result<(), MaintenanceError> {
        for _ in 0..BATCHES {
            keep_leading(leader).await;
            if self.store.make_deliveries(BATCH).await? < BATCH as usize {
                break;
            }
        }
        let endpoints = self.store.endpoints().await?;
        self.send_off(&endpoints, sender, &mut earlier.under_way).await?;
        // Last, because it asks Redis for each sale: what was written down before does not wait for it.
        earlier.sold_out.look(leader, &self.gate, &self.store).await;
        if earlier.counted.is_none_or(|at| at.elapsed() >= COUNT_EVERY) {
            earlier.counted = Some(Instant::now());
            let waiting = self.store.waiting_deliveries().await?;
            let off = endpoints.iter().filter(|endpoint| endpoint.state != EndpointState::On).count();
            let unknown = self.store.unknown_events().await?;
            if std::mem::replace(&mut earlier.unknown, unknown) != unknown && unknown > 0 {
                tracing::warn!(unknown, "orders and sales wait for a later build to deliver their webhooks");
            }
            let sum = |of: fn(&Undelivered) -> u64| waiting.values().map(of).sum::<u64>();
            show(sum(|of| of.waiting) + unknown, sum(|of| of.given_up), off);
        }
        Ok(())
    }

    /// Has every endpoint that is on be given what is due, and no other.
    async fn send_off(
        &self,
        endpoints: &[Endpoint],
        sender: &Sender,
        under_way: &mut UnderWay,
    ) -> Result<(), MaintenanceError> {
        // One that was switched off or removed gets nothing more, and a new secret counts at once.
        under_way.retain(|id, (url, secrets, courier)| {
            let mut on = endpoints.iter().filter(|endpoint| endpoint.state == EndpointState::On);
            let is_as_before = |endpoint: &Endpoint| {
                endpoint.id == *id && endpoint.url == *url && endpoint.secrets == *secrets
            };
            !courier.is_finished() && on.any(is_as_before)
        });
        for endpoint in endpoints.iter().filter(|endpoint| endpoint.state == EndpointState::On) {
            if under_way.contains_key(&endpoint.id) {
                continue;
            }
            let url = EndpointUrl::parse(&endpoint.url, self.allow_private);
            let secrets = endpoint.secrets.iter().map(|secret| Secret::parse(secret)).collect();
            let (Ok(url), Ok(secrets)) = (url, secrets) else {
                let why = "its URL or a secret is not allowed here";
                tracing::warn!(endpoint = endpoint.id, why, "a webhook endpoint is switched off");
                self.store.switch_endpoint(&endpoint.id, &EndpointState::Off(why.into())).await?;
                continue;
            };
            let courier = Courier {
                store: self.store.clone(),
                sender: sender.clone(),
                endpoint: endpoint.id.clone(),
                url,
                secrets,
                is_failing: endpoint.failing_since.is_some(),
            };
            let task = AbortOnDropHandle::new(tokio::spawn(courier.run()));
            let begun = (endpoint.url.clone(), endpoint.secrets.clone(), task);
            under_way.insert(endpoint.id.clone(), begun);
        }
        Ok(())
    }
}

fn show(waiting: u64, given_up: u64, off: usize) {
    metrics::gauge!("doorbuster_webhook_deliveries_waiting").set(waiting as f64);
    metrics::gauge!("doorbuster_webhook_deliveries_given_up").set(given_up as f64);
    metrics::gauge!("doorbuster_webhook_endpoints_off").set(off as f64);
}
