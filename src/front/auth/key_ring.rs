//! The keys that verify tokens: those of the configuration, and those that the login publishes, which it replaces from
//! time to time.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jsonwebtoken::{Algorithm, DecodingKey};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::AuthSettings;
use super::jwk_set::JwkSetSource;
use super::key::{Key, public_key};

/// The published keys are read at most this often, whatever unknown keys strangers name.
const APART: Duration = Duration::from_secs(1);

/// The keys of one moment.
pub(super) struct Keys {
    /// Changes whenever a key is added or removed.
    pub(super) version: u64,
    pub(super) keys: Vec<Key>,
    /// The set that the login published, as it was read. `None` if it has not been read yet: then a token that fits no
    /// key may be valid.
    published: Option<Vec<u8>>,
}

/// The keys that verify tokens. Clones share them.
#[derive(Clone)]
pub struct KeyRing(Arc<Inner>);

struct Inner {
    configured: Vec<Key>,
    source: Option<JwkSetSource>,
    every: Duration,
    current: RwLock<Arc<Keys>>,
    /// When the last reading began; locked until it has ended.
    reading: Arc<Mutex<Option<Instant>>>,
}

impl KeyRing {
    /// The configured keys, and the login's once they have been read. A public key that is invalid verifies nothing;
    /// check it with `check_public_key` first.
    pub fn new(settings: &AuthSettings) -> Self {
        let mut configured = Vec::new();
        if !settings.secret.is_empty() {
            let key = DecodingKey::from_secret(settings.secret.as_bytes());
            configured.push(Key { id: None, algorithm: Algorithm::HS256, key });
        }
        if let Ok(Some(key)) = public_key(&settings.public_key) {
            configured.push(Key { id: None, algorithm: Algorithm::EdDSA, key });
        }
        let keys = Keys { version: 0, keys: configured.clone(), published: None };
        Self(Arc::new(Inner {
            configured,
            source: settings.jwks.clone(),
            every: settings.jwks_every,
            current: RwLock::new(Arc::new(keys)),
            reading: Arc::default(),
        }))
    }

    pub(super) fn current(&self) -> Arc<Keys> {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the login's keys have been read, if there are any to read.
    pub fn is_complete(&self) -> bool {
        self.0.source.is_none() || self.current().published.is_some()
    }

    /// Reads the login's keys at once, and again and again until `stop`. If a reading fails, the keys stay as they are.
    pub async fn keep_current(self, stop: CancellationToken) {
        if self.0.source.is_none() {
            return stop.cancelled().await;
        }
        while !stop.is_cancelled() {
            stop.run_until_cancelled(self.read_after(Instant::now())).await;
            let pause = if self.is_complete() { self.0.every } else { APART };
            stop.run_until_cancelled(tokio::time::sleep(pause)).await;
        }
    }

    /// Returns once a reading has ended that began after `asked`: a token names a key that is not known, and the login
    /// may have begun to sign with it. `false` without published keys.
    pub(super) async fn read_again(&self, asked: Instant) -> bool {
        let is_published = self.0.source.is_some();
        if is_published {
            self.read_after(asked).await;
        }
        is_published
    }

    /// All who wait for the same reading share it. It goes on if its caller does not wait: a client that hangs up must not
    /// let the others believe that it has ended.
    async fn read_after(&self, asked: Instant) {
        let mut began = self.0.reading.clone().lock_owned().await;
        if began.is_some_and(|began| began > asked) {
            return;
        }
        if let Some(began) = *began {
            tokio::time::sleep_until(began + APART).await;
        }
        *began = Some(Instant::now());
        let ring = self.clone();
        let reading = tokio::spawn(async move {
            ring.read().await;
            drop(began);
        });
        let _ = reading.await;
    }

    async fn read(&self) {
        let Some(source) = &self.0.source else { return };
        match source.read().await {
            Ok((text, published)) => self.replace(text, published),
            Err(error) => {
                metrics::counter!("doorbuster_front_jwks_failures_total").increment(1);
                tracing::warn!(%error, "the login's keys could not be read; those known before stay in use");
            }
        }
    }

    fn replace(&self, text: Vec<u8>, published: Vec<Key>) {
        let mut current = self.0.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.published.as_ref() == Some(&text) {
            return;
        }
        let keys: Vec<Key> = self.0.configured.iter().cloned().chain(published).collect();
        let ids: Vec<&str> = keys.iter().filter_map(|key| key.id.as_deref()).collect();
        tracing::info!(keys = keys.len(), kids = ids.join(" "), "read the login's keys");
        *current = Arc::new(Keys { version: current.version + 1, keys, published: Some(text) });
    }
}
