//! The configuration in the form each module takes. Values are in range: [`Config::load`] has checked them.

use std::time::Duration;

use hyper::Uri;

use super::sections::Config;
use crate::domain::{Invalid, Rate};
use crate::front::{
    AuthSettings, FrontSettings, JwkSetSource, LiveFrontValues, Providers, ServerSettings, StreamRoom,
    ThrottleSettings, TrustedProxies,
};
use crate::gate::GateSettings;
use crate::intake::IntakeSettings;
use crate::link::{Member, RedisSettings};
use crate::maintenance::{MaintenanceSettings, SweepSettings};
use crate::queue::QueueSettings;
use crate::store::StoreSettings;
use crate::trace::Sampling;
#[cfg(feature = "traces")]
use crate::trace::{Collector, read_headers};
use crate::worker::{WorkerPace, WorkerSettings};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// `None` for an empty text.
fn rate(text: &str) -> Result<Option<Rate>, Invalid> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
}

/// Lossless on a 64-bit machine, and the ranges are smaller anyway.
fn count(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

impl Config {
    /// How to reach Redis.
    pub fn redis(&self) -> RedisSettings {
        let prefix = &self.redis.prefix;
        RedisSettings {
            url: self.redis.url.clone(),
            timeout: ms(self.redis.timeout_ms),
            member: Some(Member {
                of: self.installation.clone(),
                id_key: format!("{prefix}:installation"),
                data_key: format!("{prefix}:sales"),
            }),
        }
    }

    /// Settings of the gate.
    pub fn gate(&self) -> GateSettings {
        GateSettings {
            redis: self.redis(),
            prefix: self.redis.prefix.clone(),
            outbox_bound: self.gate.outbox_bound,
            outbox_bound_in_all: self.gate.outbox_bound_in_all,
            batch: count(self.gate.batch),
            backlog: count(self.gate.backlog),
            sweep_grace: ms(self.sweep.grace_ms),
            overtaken_after: ms(self.sweep.overtaken_after_ms),
            parked_after: ms(self.sweep.parked_after_ms),
        }
    }

    /// Settings of the broker, its queues and the order log.
    pub fn queue(&self) -> QueueSettings {
        QueueSettings {
            url: self.queue.url.clone(),
            prefix: self.queue.prefix.clone(),
            timeout: ms(self.queue.timeout_ms),
            window: count(self.queue.window),
            delivery_limit: u32::try_from(self.queue.delivery_limit).unwrap_or(u32::MAX),
            log_hours: self.queue.log_hours,
            log_bytes: self.queue.log_mb * 1024 * 1024,
            installation: self.installation.clone(),
        }
    }

    /// Settings of the database.
    pub fn store(&self) -> StoreSettings {
        StoreSettings {
            url: self.database.url.clone(),
            connections: u32::try_from(self.database.connections).unwrap_or(u32::MAX),
            timeout: ms(self.database.timeout_ms),
            installation: self.installation.clone(),
        }
    }

    /// How tokens are signed and verified.
    pub fn auth(&self) -> AuthSettings {
        AuthSettings {
            secret: self.auth.secret.clone(),
            public_key: self.auth.public_key.clone(),
            // A value that cannot be parsed was refused when the configuration was loaded.
            jwks: JwkSetSource::parse(&self.auth.jwks).unwrap_or_default(),
            jwks_every: secs(self.auth.jwks_every_s),
            issuer: self.auth.issuer.clone(),
            audience: self.auth.audience.clone(),
            operators_audience: self.auth.operators_audience.clone(),
            role_claim: self.auth.role_claim.clone(),
            longest_life: secs(self.auth.longest_life_s),
            leeway: secs(self.auth.leeway_s),
        }
    }

    /// Settings of the HTTP routes.
    pub fn front(&self) -> FrontSettings {
        FrontSettings {
            body_limit: count(self.front.body_limit_bytes),
            body_within: ms(self.front.body_within_ms),
            // Leaves time to send the answer `accepted`.
            longest_wait: ms(self.front.request_within_ms.saturating_sub(1_000).min(10_000)),
        }
    }

    /// The streams of events that a front may have.
    pub fn stream_room(&self) -> StreamRoom {
        StreamRoom::new(count(self.front.event_streams))
    }

    /// Settings of a listener.
    pub fn server(&self) -> ServerSettings {
        ServerSettings {
            name: "buyers",
            connections: count(self.front.connections),
            of_address: (self.front.address_connections > 0).then(|| count(self.front.address_connections)),
            proxies: self.trusted_proxies(),
            body_limit: count(self.front.body_limit_bytes),
            header_within: ms(self.front.header_within_ms),
            request_within: ms(self.front.request_within_ms),
            drain: ms(self.process.drain_ms),
        }
    }

    /// Settings of the intake.
    pub fn intake(&self) -> IntakeSettings {
        IntakeSettings {
            durability: self.intake.durability,
            confirm_within: ms(self.intake.confirm_within_ms),
            sale_cache: ms(self.intake.sale_cache_ms),
            watch_every: ms(self.intake.watch_every_ms),
        }
    }

    /// Settings of the sweep.
    pub fn sweep(&self) -> SweepSettings {
        SweepSettings {
            every: ms(self.sweep.every_ms),
            batch: count(self.sweep.batch),
            spacing: ms(self.sweep.spacing_ms),
            parked_after: ms(self.sweep.parked_after_ms),
        }
    }

    /// Where the collector takes traces; `None` if there is none, or its URL is not one.
    pub(super) fn collector_url(&self) -> Option<Uri> {
        let url: Uri = self.traces.url.parse().ok()?;
        let is_whole = matches!(url.scheme_str(), Some("http" | "https"))
            && url.host().is_some_and(|host| !host.is_empty());
        let names_nobody = url.authority().is_some_and(|authority| !authority.as_str().contains('@'));
        (is_whole && names_nobody).then_some(url)
    }

    /// What takes traces; `None` if nothing does, or if its URL or its headers cannot be used.
    #[cfg(feature = "traces")]
    pub fn collector(&self) -> Option<Collector> {
        let (url, headers) = (self.collector_url()?, read_headers(&self.traces.headers).ok()?);
        Some(Collector { url, headers })
    }

    /// Which requests are recorded.
    pub fn sampling(&self) -> Sampling {
        Sampling { one_in: self.traces.one_in, slow: ms(self.traces.slow_ms) }
    }

    /// Settings of the worker.
    pub fn worker(&self) -> WorkerSettings {
        WorkerSettings {
            batch: count(self.worker.batch),
            linger: ms(self.worker.linger_ms),
            hold: ms(self.worker.hold_ms),
            put_off_every: ms(self.sweep.overtaken_after_ms) / 3,
        }
    }

    /// What may change while a worker runs.
    pub fn pace(&self) -> WorkerPace {
        WorkerPace {
            lanes: count(self.worker.lanes),
            lease: ms(self.worker.lease_ms),
            persist: self.worker.persist,
        }
    }

    /// What may change while a front runs. A value that cannot be parsed was refused when the configuration was loaded.
    pub fn live_front(&self) -> LiveFrontValues {
        LiveFrontValues {
            address_rate: self.address_rate().unwrap_or_default(),
            suspected_rate: self.suspected_rate().unwrap_or_default(),
            buyer_rate: self.buyer_rate().unwrap_or_default(),
            read_only: self.front.read_only,
            shed_reads_percent: u32::try_from(self.front.shed_reads_percent).unwrap_or(100),
        }
    }

    /// Settings of the rounds of maintenance.
    pub fn maintenance(&self) -> MaintenanceSettings {
        MaintenanceSettings { every: ms(self.maintenance.every_ms), batch: self.maintenance.batch }
    }

    /// How long the orders of archived sales are kept; `None` for ever.
    pub fn purge_after(&self) -> Option<Duration> {
        let days = self.maintenance.purge_after_days;
        (days > 0).then(|| secs(days * 86_400))
    }

    pub(super) fn address_rate(&self) -> Result<Option<Rate>, Invalid> {
        rate(&self.front.address_rate)
    }

    /// How many tokens of suspected addresses are verified.
    pub(super) fn suspected_rate(&self) -> Result<Option<Rate>, Invalid> {
        rate(&self.front.suspected_rate)
    }

    /// How often one buyer may read and cancel.
    pub(super) fn buyer_rate(&self) -> Result<Option<Rate>, Invalid> {
        rate(&self.front.buyer_rate)
    }

    /// A value that cannot be parsed was refused when the configuration was loaded.
    fn trusted_proxies(&self) -> TrustedProxies {
        TrustedProxies::parse(&self.front.trusted_proxies).unwrap_or_default()
    }

    /// Where the address of a request is read from.
    pub fn throttle(&self) -> ThrottleSettings {
        let header = Some(self.front.address_header.to_lowercase()).filter(|header| !header.is_empty());
        ThrottleSettings { proxies: self.trusted_proxies(), header }
    }

    /// Who may send payment events. A value that cannot be parsed was refused when the configuration was loaded.
    pub fn providers(&self) -> Providers {
        Providers::parse(&self.payments.secrets).unwrap_or_default()
    }

    /// How many orders the broker lends this process, about.
    pub fn prefetch(&self) -> usize {
        match self.worker.prefetch {
            0 => count(2 * self.worker.lanes * self.worker.batch),
            prefetch => count(prefetch),
        }
    }

    /// How long work in progress may take to finish after SIGTERM.
    pub fn drain(&self) -> Duration {
        ms(self.process.drain_ms)
    }
}
