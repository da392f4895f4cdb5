//! An operator's acts on the endpoints of webhooks.

use schemars::JsonSchema;
use serde::Serialize;

use super::operator_acts::recorded;
use crate::domain::{ActRequest, EventTypes, Invalid, Millis, SaleId};
use crate::store::{Endpoint, EndpointState, Store, StoreError, Undelivered};
use crate::webhook::{BadUrl, EndpointUrl, Secret};

/// Secrets that an endpoint may have at a time.
const MOST_SECRETS: usize = 2;

/// Why an endpoint was not changed, or may not have been.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The id breaks a rule; nothing changed.
    #[error("the id of an endpoint must be {0}")]
    Id(&'static str),
    /// The URL cannot be an endpoint's; nothing changed.
    #[error("{url:?} cannot be an endpoint: {why}")]
    Url {
        /// The URL.
        url: String,
        /// Why.
        why: BadUrl,
    },
    /// There is one with this id; nothing changed.
    #[error("there is an endpoint {0}; remove it first, or choose another id")]
    Exists(String),
    /// There is none with this id; nothing changed.
    #[error("there is no endpoint {0}; `doorbuster webhook list` shows them")]
    Unknown(String),
    /// The old secret is still valid; nothing changed.
    #[error("{0} has two secrets already; retire the old one first, with `--retire`")]
    Rotating(String),
    /// Somebody else changed the secrets meanwhile; nothing changed here.
    #[error("somebody else has just changed the secrets of {0}: look at them, and then try again")]
    Changed(String),
    /// The system gave no random bytes; nothing changed.
    #[error("this host has no source of random bytes")]
    NoRandom,
    /// The request breaks a rule; nothing changed.
    #[error(transparent)]
    Request(#[from] Invalid),
    /// The database failed or did not answer. The change may have been made: list the endpoints.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An endpoint, without its secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct EndpointStatus {
    /// Its id.
    pub id: String,
    /// Where it is.
    pub url: String,
    /// The types of events that it is given.
    pub events: Vec<String>,
    /// Whether it is given anything.
    pub is_on: bool,
    /// Why it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub off_because: Option<String>,
    /// Since when nothing could be delivered. Missing if that is not so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failing_since: Option<Millis>,
    /// How many secrets its deliveries are signed with.
    pub secrets: usize,
    /// Deliveries that wait.
    pub waiting: u64,
    /// Deliveries that were given up.
    pub given_up: u64,
    /// Why one of them was not taken when it was tried last. Missing if none was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// An operator's acts on endpoints. Cheap to clone.
#[derive(Clone)]
pub struct WebhookActs {
    store: Store,
    allow_private: bool,
}

impl WebhookActs {
    /// Does not connect yet.
    pub fn new(store: Store, allow_private: bool) -> Self {
        Self { store, allow_private }
    }

    /// All endpoints, by id.
    pub async fn list(&self) -> Result<Vec<EndpointStatus>, WebhookError> {
        let waiting = self.store.waiting_deliveries().await?;
        let status = |endpoint: Endpoint| {
            let Undelivered { waiting, given_up, error } =
                waiting.get(&endpoint.id).cloned().unwrap_or_default();
            let off_because = match endpoint.state {
                EndpointState::On => None,
                EndpointState::Off(why) => Some(why),
            };
            EndpointStatus {
                id: endpoint.id,
                url: endpoint.url,
                events: endpoint.types.names(),
                is_on: off_because.is_none(),
                off_because,
                failing_since: endpoint.failing_since,
                secrets: endpoint.secrets.len(),
                waiting,
                given_up,
                error,
            }
        };
        Ok(self.store.endpoints().await?.into_iter().map(status).collect())
    }

    /// Adds an endpoint, and returns the secret that its deliveries are signed with. On return that is durable, and every
    /// process follows within two seconds.
    pub async fn add(
        &self,
        id: &str,
        url: &str,
        events: &EventTypes,
        request: &ActRequest,
    ) -> Result<String, WebhookError> {
        id.parse::<SaleId>().map_err(|invalid| WebhookError::Id(invalid.rule))?;
        EndpointUrl::parse(url, self.allow_private)
            .map_err(|why| WebhookError::Url { url: url.to_owned(), why })?;
        request.check()?;
        let adding = async {
            let secret = Secret::generate().ok_or(WebhookError::NoRandom)?;
            if !self.store.add_endpoint(id, url, &secret, events).await? {
                return Err(WebhookError::Exists(id.to_owned()));
            }
            Ok(secret)
        };
        recorded(&self.store, ("webhook add", id), request, adding, |_| url.to_owned()).await
    }

    /// Chooses what an endpoint is given from now on. What waits already stays.
    pub async fn choose(
        &self,
        id: &str,
        events: &EventTypes,
        request: &ActRequest,
    ) -> Result<(), WebhookError> {
        request.check()?;
        let choosing = async { self.known(id, self.store.set_endpoint_types(id, events).await?) };
        let describe = |(): &()| if events.are_all() { "all".to_owned() } else { events.names().join(" ") };
        recorded(&self.store, ("webhook events", id), request, choosing, describe).await
    }

    /// Removes an endpoint with all that waits for it.
    pub async fn remove(&self, id: &str, request: &ActRequest) -> Result<(), WebhookError> {
        let removing = async { self.known(id, self.store.remove_endpoint(id).await?) };
        self.act("webhook remove", id, request, removing).await
    }

    /// Switches an endpoint on or off.
    pub async fn switch(&self, id: &str, on: bool, request: &ActRequest) -> Result<(), WebhookError> {
        let (kind, state) = match on {
            true => ("webhook on", EndpointState::On),
            false => ("webhook off", EndpointState::Off(format!("switched off by {}", request.by))),
        };
        let switching = async { self.known(id, self.store.switch_endpoint(id, &state).await?) };
        self.act(kind, id, request, switching).await
    }

    /// Gives an endpoint a new secret, and returns it. Deliveries are signed with both until [`WebhookActs::retire`].
    pub async fn rotate(&self, id: &str, request: &ActRequest) -> Result<String, WebhookError> {
        request.check()?;
        let rotating = async {
            let before = self.secrets(id).await?;
            if before.len() >= MOST_SECRETS {
                return Err(WebhookError::Rotating(id.to_owned()));
            }
            let secret = Secret::generate().ok_or(WebhookError::NoRandom)?;
            let mut secrets = before.clone();
            secrets.insert(0, secret.clone());
            let is_set = self.store.set_endpoint_secrets(id, &before, &secrets).await?;
            if is_set { Ok(secret) } else { Err(WebhookError::Changed(id.to_owned())) }
        };
        recorded(&self.store, ("webhook rotate", id), request, rotating, |_| "done".to_owned()).await
    }

    /// Removes all secrets but the newest. May be repeated.
    pub async fn retire(&self, id: &str, request: &ActRequest) -> Result<(), WebhookError> {
        let retiring = async {
            let before = self.secrets(id).await?;
            let newest = &before[..before.len().min(1)];
            let is_set = self.store.set_endpoint_secrets(id, &before, newest).await?;
            if is_set { Ok(()) } else { Err(WebhookError::Changed(id.to_owned())) }
        };
        self.act("webhook retire", id, request, retiring).await
    }

    /// Has an endpoint be given at once what failed or was given up. Returns how many deliveries.
    pub async fn redeliver(&self, id: &str, request: &ActRequest) -> Result<u64, WebhookError> {
        request.check()?;
        let redelivering = async {
            self.secrets(id).await?;
            Ok::<_, WebhookError>(self.store.redeliver(id).await?)
        };
        let describe = |count: &u64| format!("{count} deliveries");
        recorded(&self.store, ("webhook redeliver", id), request, redelivering, describe).await
    }

    async fn act(
        &self,
        kind: &str,
        id: &str,
        request: &ActRequest,
        work: impl Future<Output = Result<(), WebhookError>>,
    ) -> Result<(), WebhookError> {
        request.check()?;
        recorded(&self.store, (kind, id), request, work, |()| "done".to_owned()).await
    }

    async fn secrets(&self, id: &str) -> Result<Vec<String>, WebhookError> {
        let endpoints = self.store.endpoints().await?;
        let found = endpoints.into_iter().find(|endpoint| endpoint.id == id);
        found.map(|endpoint| endpoint.secrets).ok_or_else(|| WebhookError::Unknown(id.to_owned()))
    }

    fn known(&self, id: &str, is_known: bool) -> Result<(), WebhookError> {
        if is_known { Ok(()) } else { Err(WebhookError::Unknown(id.to_owned())) }
    }
}
