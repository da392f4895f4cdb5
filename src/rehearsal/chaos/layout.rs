//! The processes of the stack, the connections between its parts, and the arguments of each process.

use std::net::SocketAddr;

use super::error::ChaosError;
use super::proxy::Proxy;
use crate::rehearsal::servers::{Kind, ServerError, free_port};

/// The connections that can be disturbed. Each process has a way of its own to each server, so that one can be cut off and
/// the others not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// From the buyers to the fronts.
    Buyers,
    /// From one of [`PROCESSES`] to a server.
    From(usize, Kind),
}

impl Route {
    /// Every route of a stack with this database.
    pub(super) fn all(database: Kind) -> Vec<Self> {
        let processes = 0..PROCESSES.len();
        let routes = processes
            .flat_map(|nth| [Kind::Redis, Kind::Rabbitmq, database].map(|kind| Self::From(nth, kind)));
        [Self::Buyers].into_iter().chain(routes).collect()
    }

    /// The routes to a server.
    pub(super) fn to(kind: Kind) -> impl Iterator<Item = Self> {
        (0..PROCESSES.len()).map(move |nth| Self::From(nth, kind))
    }

    /// The routes of the workers to a server.
    pub(super) fn of_workers_to(kind: Kind) -> impl Iterator<Item = Self> {
        let workers = (0..PROCESSES.len()).filter(|nth| PROCESSES[*nth] == "worker");
        workers.map(move |nth| Self::From(nth, kind))
    }

    /// Its place among the proxies.
    fn nth(self) -> usize {
        match self {
            Self::Buyers => 0,
            Self::From(nth, kind) => {
                let server = match kind {
                    Kind::Redis => 0,
                    Kind::Rabbitmq => 1,
                    Kind::Postgres | Kind::Mariadb => 2,
                };
                1 + nth * 3 + server
            }
        }
    }
}

/// The processes of the stack: fronts first, then workers.
pub(super) const PROCESSES: [&str; 4] = ["front", "front", "worker", "worker"];

/// A proxy on every route, and the command line of every process.
pub(super) struct Layout {
    proxies: Vec<Proxy>,
    /// The drill's route to a front's operations listener. It is never disturbed.
    pub(super) operations: Proxy,
    /// For each of [`PROCESSES`], the arguments of `doorbuster`.
    pub(super) arguments: Vec<Vec<String>>,
}

/// The settings of the processes.
pub(super) struct Settings<'a> {
    /// Which database it is.
    pub(super) database: Kind,
    /// The database's real URL, not through a proxy.
    pub(super) database_url: &'a str,
    /// Whether a shop on this host takes webhooks.
    pub(super) has_shop: bool,
    /// Pairs of `section.key=value` from the command line.
    pub(super) overrides: &'a [String],
}

impl Layout {
    /// Opens the proxies and chooses the ports. The routes to servers have no target yet.
    pub(super) async fn plan(settings: &Settings<'_>) -> Result<Self, ChaosError> {
        let mut proxies = Vec::new();
        for _ in Route::all(settings.database) {
            proxies.push(Proxy::open().await.map_err(ServerError::io("opening a proxy"))?);
        }
        let operations = Proxy::open().await.map_err(ServerError::io("opening a proxy"))?;
        let mut layout = Self { proxies, operations, arguments: Vec::new() };
        let (mut fronts, mut admins) = (Vec::new(), Vec::new());
        for (nth, verb) in PROCESSES.into_iter().enumerate() {
            let (listen, admin) = (free_port()?, free_port()?);
            if verb == "front" {
                fronts.push(SocketAddr::from(([127, 0, 0, 1], listen)));
                admins.push(SocketAddr::from(([127, 0, 0, 1], admin)));
            }
            layout.arguments.push(layout.command_line(nth, (listen, admin), settings));
        }
        layout.proxy(Route::Buyers).point_to(fronts);
        layout.operations.point_to(admins);
        Ok(layout)
    }

    pub(super) fn proxy(&self, route: Route) -> &Proxy {
        &self.proxies[route.nth()]
    }

    fn command_line(&self, nth: usize, (listen, admin): (u16, u16), settings: &Settings<'_>) -> Vec<String> {
        let [to_redis, to_broker, to_database] = [Kind::Redis, Kind::Rabbitmq, settings.database]
            .map(|kind| self.proxy(Route::From(nth, kind)).address());
        let mut pairs = vec![
            format!("front.listen=127.0.0.1:{listen}"),
            format!("operations.listen=127.0.0.1:{admin}"),
            format!("redis.url=redis://{to_redis}"),
            format!("queue.url=amqp://{to_broker}"),
            format!("database.url={}", with_address(settings.database_url, to_database)),
            "log.format=json".to_owned(),
        ];
        if settings.has_shop {
            pairs.push("webhooks.allow_private=true".to_owned());
        }
        pairs.extend_from_slice(settings.overrides);
        let mut line = vec![PROCESSES[nth].to_owned()];
        line.extend(pairs.into_iter().flat_map(|pair| ["--set".to_owned(), pair]));
        line
    }
}

/// The address in a URL.
pub(super) fn address_in(url: &str) -> Option<SocketAddr> {
    url.split(['/', '@']).find_map(|part| part.parse().ok())
}

/// The same URL with another address.
fn with_address(url: &str, address: SocketAddr) -> String {
    match url.split(['/', '@']).find(|part| part.parse::<SocketAddr>().is_ok()) {
        Some(part) => url.replacen(part, &address.to_string(), 1),
        None => url.to_owned(),
    }
}
