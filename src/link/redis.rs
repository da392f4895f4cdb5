//! One multiplexed connection to Redis that reconnects by itself, and the one judgement that
//! matters about its errors: may the command have run?

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{
    Client, ErrorKind, FromRedisValue, IntoConnectionInfo as _, RedisError, Script, ServerErrorKind,
};

use super::Channels;

#[derive(Debug, Clone)]
pub struct RedisSettings {
    pub url: String,
    /// How long a reply may take before the outcome counts as unknown.
    pub timeout: Duration,
}

/// What a caller can do about a failed command.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Fault {
    /// The command did not run. It may be sent again.
    #[error("redis is not available: {0}")]
    Unavailable(String),
    /// The command may have run: no answer came.
    #[error("redis did not answer: {0}")]
    Late(String),
    /// The command did not run, because Redis is at `maxmemory`.
    #[error("redis is full: {0}")]
    Full(String),
    /// The script did not run, because Redis does not know it: it was started anew, or was told to
    /// forget all scripts.
    #[error("redis does not know the script")]
    NoScript,
    /// Redis said something that no retry will mend.
    #[error("redis answered unexpectedly: {0}")]
    Broken(String),
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        let text = error.to_string();
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::NoScript) => Fault::NoScript,
            ErrorKind::Server(ServerErrorKind::ResponseError) if text.contains("OOM ") => Fault::Full(text),
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ReadOnly,
            )
            | ErrorKind::AuthenticationFailed => Fault::Unavailable(text),
            _ if matches!(error.code(), Some("OOM")) => Fault::Full(text),
            _ if matches!(error.code(), Some("MISCONF" | "NOAUTH" | "NOPERM" | "NOREPLICAS")) => {
                Fault::Unavailable(text)
            }
            // A name that is not found was looked up before anything was sent.
            _ if error.is_connection_refusal() || text.contains("lookup address") => Fault::Unavailable(text),
            _ if error.is_timeout() || error.is_connection_dropped() || error.is_io_error() => {
                Fault::Late(text)
            }
            _ => Fault::Broken(text),
        }
    }
}

/// Cheap to clone; all clones share the connection.
#[derive(Clone)]
pub struct RedisLink {
    client: Client,
    manager: Arc<Mutex<Manager>>,
    timeout: Duration,
}

struct Manager {
    connection: ConnectionManager,
    since: Instant,
}

impl RedisLink {
    /// Returns at once: the connection is made at first use, and again whenever it is lost.
    /// Only a URL that makes no sense is an error here.
    pub fn open(settings: &RedisSettings) -> Result<Self, Fault> {
        let broken = |error: RedisError| Fault::Broken(error.to_string());
        // Without TCP_NODELAY a small reply can wait 40 ms for the next one.
        let info = settings.url.as_str().into_connection_info().map_err(broken)?;
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        // A peer that is gone without a word would be waited for a quarter of an hour.
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(settings.timeout * 3);
        let client = Client::open(info.set_tcp_settings(tcp)).map_err(broken)?;
        let connection = manager(&client, settings.timeout).map_err(broken)?;
        let manager = Arc::new(Mutex::new(Manager { connection, since: Instant::now() }));
        Ok(Self { client, manager, timeout: settings.timeout })
    }

    /// A connection of its own that hears channels, so far none.
    pub async fn channels(&self) -> Result<Channels, Fault> {
        let connection = self.within(self.client.get_async_pubsub()).await?;
        Ok(Channels::new(connection, self.timeout))
    }

    fn connection(&self) -> ConnectionManager {
        self.manager.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).connection.clone()
    }

    /// Runs a script; loads it first where Redis does not know it (NOSCRIPT is an ordinary case:
    /// every restart of Redis forgets all scripts).
    pub async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[String],
        args: &[String],
    ) -> Result<T, Fault> {
        let mut invocation = script.prepare_invoke();
        for key in keys {
            invocation.key(key);
        }
        for arg in args {
            invocation.arg(arg);
        }
        let mut tries = 0;
        loop {
            let mut connection = self.connection();
            match self.within(invocation.invoke_async(&mut connection)).await {
                // It was forgotten again between the loading and the call: it has not run.
                Err(Fault::NoScript) if tries < NO_SCRIPT_RETRIES => tries += 1,
                done => return done,
            }
        }
    }

    /// Runs a script that Redis must know already; [`Fault::NoScript`] where it does not.
    pub async fn run_known<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[String],
        args: &[String],
    ) -> Result<T, Fault> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.get_hash()).arg(keys.len()).arg(keys).arg(args);
        self.query(&command).await
    }

    /// On return Redis knows the script.
    pub async fn load(&self, script: &Script) -> Result<(), Fault> {
        let mut connection = self.connection();
        let _hash: String = self.within(script.prepare_invoke().load_async(&mut connection)).await?;
        Ok(())
    }

    pub async fn knows_script(&self, script: &Script) -> Result<bool, Fault> {
        let known: Vec<bool> = self.query(redis::cmd("SCRIPT").arg("EXISTS").arg(script.get_hash())).await?;
        Ok(known == [true])
    }

    pub async fn query<T: FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, Fault> {
        let mut connection = self.connection();
        self.within(command.query_async(&mut connection)).await
    }

    /// The manager connects anew after I/O errors alone: it would repeat a refused login for ever,
    /// though the password may be right by now, and stay with a master that has become a replica,
    /// though the name leads to another by now. Not more often than is useful.
    fn begin_anew(&self) {
        let mut known = self.manager.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if known.since.elapsed() >= ANEW_AFTER
            && let Ok(connection) = manager(&self.client, self.timeout)
        {
            *known = Manager { connection, since: Instant::now() };
        }
    }

    /// The manager's own limit covers one command on an open connection. This one covers
    /// everything, connecting and the second try after NOSCRIPT included.
    async fn within<T>(&self, work: impl Future<Output = Result<T, RedisError>>) -> Result<T, Fault> {
        match tokio::time::timeout(self.timeout * 3, work).await {
            Ok(result) => result.map_err(|error| {
                let elsewhere =
                    [ServerErrorKind::ReadOnly, ServerErrorKind::MasterDown].map(ErrorKind::Server);
                if error.kind() == ErrorKind::AuthenticationFailed || elsewhere.contains(&error.kind()) {
                    self.begin_anew();
                }
                Fault::from(error)
            }),
            Err(_) => Err(Fault::Late(format!("no reply within {:?}", self.timeout * 3))),
        }
    }
}

/// Between two connections that were made anew for what was answered on the one before.
const ANEW_AFTER: Duration = Duration::from_millis(500);

/// Times that Redis may forget a script before the caller is told. It has not run then.
pub const NO_SCRIPT_RETRIES: u32 = 5;

fn manager(client: &Client, timeout: Duration) -> Result<ConnectionManager, RedisError> {
    let config = ConnectionManagerConfig::new()
        .set_response_timeout(Some(timeout))
        .set_connection_timeout(Some(timeout))
        // The caller decides whether to try again; here, one try per command.
        .set_number_of_retries(0);
    ConnectionManager::new_lazy_with_config(client.clone(), config)
}

/// The URL of a Redis that cannot be parsed. The caller corrects the configuration.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidUrl(String);

/// Checks that the URL can be parsed. Connects to nothing.
pub fn check_url(url: &str) -> Result<(), InvalidUrl> {
    url.into_connection_info().map(|_| ()).map_err(|error| InvalidUrl(error.to_string()))
}
