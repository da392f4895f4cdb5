//! The stack under attack: private servers, two fronts and two workers as separate processes, and a proxy on every
//! connection between them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::SetOnce;
use tokio_util::sync::CancellationToken;

use super::error::ChaosError;
use super::layout::{Layout, PROCESSES, Route, Settings, address_in};
use super::missed::Missed;
use super::plan::ChaosPlan;
use super::proxy::Proxy;
use super::shop::Shop;
use crate::rehearsal::drill::payment_secret;
use crate::rehearsal::servers::{Child, Ending, FakeClock, Kind, Secret, Server, ServerError, start_program};

/// One of [`PROCESSES`].
pub(super) struct Slot {
    pub(super) child: Option<Child>,
    /// The nemesis has killed it or asked it to stop.
    pub(super) killed: bool,
    /// The build that it is started as; `None` for this one.
    program: Option<PathBuf>,
    /// The clock that it is started with; `None` for the host's.
    clock: Option<FakeClock>,
}

/// How long a server may take to start again on its data. A fault can leave data on which it never does.
const RESTARTS_WITHIN: Duration = Duration::from_secs(300);

#[derive(Clone)]
pub(super) struct Stack {
    shared: Arc<Shared>,
}

struct Shared {
    home: PathBuf,
    database: Kind,
    layout: Layout,
    secret: String,
    payment_secret: String,
    /// Takes webhooks. `None` if the processes begin as another build, which may know none.
    shop: Option<Shop>,
    slots: Mutex<Vec<Slot>>,
    redis: tokio::sync::Mutex<Option<Server>>,
    broker: tokio::sync::Mutex<Option<Server>>,
    data: tokio::sync::Mutex<Option<Server>>,
    /// Processes that ended without being killed or stopped.
    ended: Mutex<Vec<String>>,
    /// Why a server could not be started again.
    not_back: SetOnce<ServerError>,
    stop: CancellationToken,
}

impl Stack {
    /// Starts the servers. The caller creates the tables, starts the processes, and spawns the supervisor.
    pub(super) async fn start(home: &Path, plan: &ChaosPlan) -> Result<Self, ChaosError> {
        let database = plan.database;
        let secret = Secret::in_folder(home)?.0;
        let payment_secret = payment_secret(&secret);
        let (redis, broker, data) = tokio::try_join!(
            Server::start(Kind::Redis, home),
            Server::start(Kind::Rabbitmq, home),
            Server::start(database, home),
        )?;
        let shop = match plan.other {
            None => Some(Shop::open().await.map_err(ServerError::io("opening a shop"))?),
            Some(_) => None,
        };
        let (database_url, has_shop) = (data.url.as_str(), shop.is_some());
        let settings = Settings { database, database_url, has_shop, overrides: &plan.settings };
        let layout = Layout::plan(&settings).await?;
        let slot = || Slot { child: None, killed: false, program: plan.other.clone(), clock: None };
        let stack = Self {
            shared: Arc::new(Shared {
                home: home.to_owned(),
                database,
                layout,
                secret,
                payment_secret,
                shop,
                slots: Mutex::new(PROCESSES.iter().map(|_| slot()).collect()),
                redis: tokio::sync::Mutex::new(Some(redis)),
                broker: tokio::sync::Mutex::new(Some(broker)),
                data: tokio::sync::Mutex::new(Some(data)),
                ended: Mutex::default(),
                not_back: SetOnce::new(),
                stop: CancellationToken::new(),
            }),
        };
        for kind in stack.servers() {
            stack.point_routes_to(kind).await;
        }
        Ok(stack)
    }

    /// Starts every process. The tables must be there.
    pub(super) fn start_processes(&self) -> Result<(), ServerError> {
        (0..PROCESSES.len()).try_for_each(|nth| self.start_process(nth))
    }

    /// The secret that signs the tokens of buyers and operators.
    pub(super) fn secret(&self) -> &str {
        &self.shared.secret
    }

    pub(super) fn payment_secret(&self) -> &str {
        &self.shared.payment_secret
    }

    /// The shop that takes webhooks, if the processes know any.
    pub(super) fn shop(&self) -> Option<&Shop> {
        self.shared.shop.as_ref()
    }

    pub(super) fn buyers(&self) -> SocketAddr {
        self.proxy(Route::Buyers).address()
    }

    pub(super) fn operations(&self) -> SocketAddr {
        self.shared.layout.operations.address()
    }

    pub(super) fn proxy(&self, route: Route) -> &Proxy {
        self.shared.layout.proxy(route)
    }

    /// The proxies between a process and its servers.
    pub(super) fn proxies_of(&self, process: usize) -> impl Iterator<Item = &Proxy> {
        self.servers().into_iter().map(move |kind| self.proxy(Route::From(process, kind)))
    }

    pub(super) fn database(&self) -> Kind {
        self.shared.database
    }

    /// Cancelled when the stack stops: nothing is started after that.
    pub(super) fn stopping(&self) -> &CancellationToken {
        &self.shared.stop
    }

    /// Redis, the broker and the database.
    pub(super) fn servers(&self) -> [Kind; 3] {
        [Kind::Redis, Kind::Rabbitmq, self.shared.database]
    }

    fn server(&self, kind: Kind) -> &tokio::sync::Mutex<Option<Server>> {
        match kind {
            Kind::Redis => &self.shared.redis,
            Kind::Rabbitmq => &self.shared.broker,
            Kind::Postgres | Kind::Mariadb => &self.shared.data,
        }
    }

    /// A server's real URL, not through a proxy.
    pub(super) async fn url(&self, kind: Kind) -> Result<String, Missed> {
        self.server(kind).lock().await.as_ref().map(|server| server.url.clone()).ok_or(Missed::Down)
    }

    pub(super) async fn pid(&self, kind: Kind) -> Result<Pid, Missed> {
        let pid = self.server(kind).lock().await.as_ref().map(Server::pid);
        pid.and_then(|pid| Pid::from_raw(pid.cast_signed())).ok_or(Missed::Down)
    }

    /// Runs the broker's control program.
    pub(super) async fn control_broker(&self, arguments: &[&str]) -> Result<(), ServerError> {
        match &*self.shared.broker.lock().await {
            Some(broker) => broker.control(arguments).await,
            None => Err(ServerError::Missing("rabbitmq-server")),
        }
    }

    /// Kills a server, and starts it again on the same data. Returns when it answers.
    pub(super) async fn kill_server(&self, kind: Kind) -> Result<(), Missed> {
        self.keep_down(kind, Duration::ZERO).await
    }

    /// Kills a server, and starts it again after this time. Returns when it answers.
    pub(super) async fn keep_down(&self, kind: Kind, lasts: Duration) -> Result<(), Missed> {
        self.stop_and_start(kind, Ending::AtOnce, tokio::time::sleep(lasts)).await
    }

    /// Stops a server in good order, and starts it again. Returns when it answers.
    pub(super) async fn restart_server(&self, kind: Kind) -> Result<(), Missed> {
        self.stop_and_start(kind, Ending::Orderly, std::future::ready(())).await
    }

    /// Kills a server, does `work` with the folder of its data, and starts it again. Returns when it answers.
    pub(super) async fn while_down(
        &self,
        kind: Kind,
        work: impl FnOnce(&Path) -> std::io::Result<()> + Send + 'static,
    ) -> Result<(), Missed> {
        let folder = self.shared.home.join(kind.name());
        let mut done = Ok(Ok(()));
        let working = async { done = tokio::task::spawn_blocking(move || work(&folder)).await };
        self.stop_and_start(kind, Ending::AtOnce, working).await?;
        Ok(done.map_err(std::io::Error::other)??)
    }

    /// Stops a server, waits for `meanwhile`, and starts it again.
    async fn stop_and_start(
        &self,
        kind: Kind,
        ending: Ending,
        meanwhile: impl Future<Output = ()>,
    ) -> Result<(), Missed> {
        let mut slot = self.server(kind).lock().await;
        let server = slot.take().ok_or(Missed::Down)?;
        server.stop(ending).await;
        self.stopping().run_until_cancelled(meanwhile).await;
        let until = Instant::now() + RESTARTS_WITHIN;
        while slot.is_none() && !self.stopping().is_cancelled() {
            match self.try_to_start(kind).await {
                Ok(server) => *slot = Some(server),
                Err(error) if Instant::now() > until => {
                    let _ = self.shared.not_back.set(error);
                    return Err(Missed::Down);
                }
                Err(_) => {}
            }
        }
        drop(slot);
        self.point_routes_to(kind).await;
        Ok(())
    }

    /// The server on its data; the reason, after a pause, if it did not start. A database may refuse to start until the
    /// last process of its predecessor is gone.
    async fn try_to_start(&self, kind: Kind) -> Result<Server, ServerError> {
        let started = Server::start(kind, &self.shared.home).await;
        if let Err(error) = &started {
            tracing::warn!(%error, server = kind.name(), "restarting a server failed, will retry");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        started
    }

    /// Returns, with the reason, once a server could not be started again for as long as a drill waits for that.
    pub(super) async fn until_one_is_not_back(&self) -> String {
        self.shared.not_back.wait().await.to_string()
    }

    /// Returns when every server answers its protocol and every process runs.
    pub(super) async fn until_healed(&self) {
        for kind in self.servers() {
            while self.server(kind).lock().await.is_none() && !self.stopping().is_cancelled() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        let all_run =
            || self.slots().iter().all(|slot| slot.child.as_ref().is_some_and(|child| !child.has_ended()));
        while !all_run() && !self.stopping().is_cancelled() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Points the routes for a server to its present address, which changes with each start.
    async fn point_routes_to(&self, kind: Kind) {
        let Ok(url) = self.url(kind).await else { return };
        for route in Route::to(kind) {
            self.proxy(route).point_to(address_in(&url).into_iter().collect());
        }
    }

    pub(super) fn start_process(&self, nth: usize) -> Result<(), ServerError> {
        let home = self.shared.home.join(format!("{}-{nth}", PROCESSES[nth]));
        let mut env = vec![
            ("DOORBUSTER__AUTH__SECRET", self.shared.secret.clone()),
            ("DOORBUSTER__PAYMENTS__SECRETS", format!("drill {}", self.payment_secret())),
        ];
        let (program, clock) = {
            let slot = &self.slots()[nth];
            (slot.program.clone(), slot.clock.clone())
        };
        env.extend(clock.iter().flat_map(FakeClock::env));
        let child = start_program(
            program.as_deref(),
            PROCESSES[nth],
            &self.shared.layout.arguments[nth],
            env,
            &home,
        )?;
        let mut slots = self.slots();
        (slots[nth].child, slots[nth].killed) = (Some(child), false);
        Ok(())
    }

    /// The folder of everything that the stack writes.
    pub(super) fn home(&self) -> &Path {
        &self.shared.home
    }

    /// Where the clock of a process is kept.
    pub(super) fn clock_file(&self, nth: usize) -> PathBuf {
        self.shared.home.join(format!("clock-{nth}"))
    }

    /// The process has this clock from its next start on; `None` for the host's.
    pub(super) fn give_clock(&self, nth: usize, clock: Option<FakeClock>) {
        self.slots()[nth].clock = clock;
    }

    /// The process is this build from its next start on.
    pub(super) fn upgrade(&self, nth: usize) {
        self.slots()[nth].program = None;
    }

    /// Kills a process, or asks it to stop. Returns when it runs again.
    pub(super) async fn restart(&self, nth: usize, signal: Signal) -> Result<(), Missed> {
        self.signal(nth, signal)?;
        let is_back = || {
            let slots = self.slots();
            !slots[nth].killed && slots[nth].child.as_ref().is_some_and(|child| !child.has_ended())
        };
        while !is_back() && !self.stopping().is_cancelled() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    pub(super) fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.shared.slots.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Sends a signal to a process. If the process ends, the supervisor restarts it.
    pub(super) fn signal(&self, nth: usize, signal: Signal) -> Result<(), Missed> {
        let mut slots = self.slots();
        let slot = &mut slots[nth];
        let child = slot.child.as_ref().filter(|child| !child.has_ended());
        let pid = child.and_then(|child| Pid::from_raw(child.pid().cast_signed())).ok_or(Missed::Down)?;
        slot.killed |= signal == Signal::KILL || signal == Signal::TERM;
        Ok(kill_process(pid, signal)?)
    }

    pub(super) fn record_unexpected_end(&self, what: String) {
        self.shared.ended.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(what);
    }

    /// Processes that ended without being killed or stopped.
    pub(super) fn unexpected_ends(&self) -> Vec<String> {
        self.shared.ended.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Kills everything. On return no process of the stack runs.
    pub(super) async fn stop(&self) {
        self.shared.stop.cancel();
        let children: Vec<Child> = self.slots().iter_mut().filter_map(|slot| slot.child.take()).collect();
        for child in children {
            child.stop(Ending::AtOnce).await;
        }
        for kind in self.servers() {
            if let Some(server) = self.server(kind).lock().await.take() {
                server.stop(Ending::AtOnce).await;
            }
        }
    }
}
