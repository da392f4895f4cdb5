//! One multiplexed connection to Redis that reconnects by itself.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{
    Client, ErrorKind, FromRedisValue, IntoConnectionInfo as _, RedisError, Script, ServerErrorKind,
};

use super::channels::Channels;
use super::error::{Fault, InvalidUrl};

/// Where Redis is, and how long to wait for it.
#[derive(Debug, Clone)]
pub struct RedisSettings {
    /// `redis://` or `rediss://`, with credentials if the server requires them.
    pub url: String,
    /// How long one reply may take. A call, with connecting and a retry after NOSCRIPT, may take three times as long;
    /// then its outcome is unknown.
    pub timeout: Duration,
}

/// Minimum age of a connection that is replaced because of its replies.
const REPLACE_AFTER: Duration = Duration::from_millis(500);

/// How often a script is sent again because Redis did not know it, before the caller gets [`Fault::NoScript`].
pub const NO_SCRIPT_RETRIES: u32 = 5;

/// A connection to Redis. Cheap to clone; all clones share it.
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
    /// Returns at once. The connection is made at first use, and again when it is lost.
    ///
    /// # Errors
    /// [`Fault::Broken`] if the URL cannot be parsed.
    pub fn open(settings: &RedisSettings) -> Result<Self, Fault> {
        let broken = |error: RedisError| Fault::Broken(error.to_string());
        // Without TCP_NODELAY a small packet can wait 40 ms for the next one.
        let info = settings.url.as_str().into_connection_info().map_err(broken)?;
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        // Without a limit, TCP retries for a quarter of an hour when the peer has vanished.
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(settings.timeout * 3);
        let client = Client::open(info.set_tcp_settings(tcp)).map_err(broken)?;
        let connection = manager(&client, settings.timeout).map_err(broken)?;
        let manager = Arc::new(Mutex::new(Manager { connection, since: Instant::now() }));
        Ok(Self { client, manager, timeout: settings.timeout })
    }

    /// Opens a separate connection for channels, with no subscription yet.
    pub async fn channels(&self) -> Result<Channels, Fault> {
        let connection = self.within(self.client.get_async_pubsub()).await?;
        Ok(Channels::new(connection, self.timeout))
    }

    fn connection(&self) -> ConnectionManager {
        self.manager.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).connection.clone()
    }

    /// Runs a script, and loads it first if Redis does not know it. NOSCRIPT is an ordinary case: every restart of
    /// Redis clears its scripts.
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
        let mut retries = 0;
        loop {
            let mut connection = self.connection();
            match self.within(invocation.invoke_async(&mut connection)).await {
                // Redis forgot the script again between loading it and the call, so it has not run.
                Err(Fault::NoScript) if retries < NO_SCRIPT_RETRIES => retries += 1,
                done => return done,
            }
        }
    }

    /// Runs a script without loading it.
    ///
    /// # Errors
    /// [`Fault::NoScript`] if Redis does not know the script; then it has not run.
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

    /// Loads a script into Redis without running it.
    pub async fn load(&self, script: &Script) -> Result<(), Fault> {
        let mut connection = self.connection();
        let _hash: String = self.within(script.prepare_invoke().load_async(&mut connection)).await?;
        Ok(())
    }

    /// Whether Redis knows the script.
    pub async fn knows_script(&self, script: &Script) -> Result<bool, Fault> {
        let known: Vec<bool> = self.query(redis::cmd("SCRIPT").arg("EXISTS").arg(script.get_hash())).await?;
        Ok(known == [true])
    }

    /// Sends one command.
    pub async fn query<T: FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, Fault> {
        let mut connection = self.connection();
        self.within(command.query_async(&mut connection)).await
    }

    /// Replaces the connection manager, which reconnects only after I/O errors. It would keep a refused login
    /// although the password may have been corrected, and stay with a former master although the host name may lead
    /// to the new one. Limited by [`REPLACE_AFTER`].
    fn replace_connection(&self) {
        let mut current = self.manager.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if current.since.elapsed() >= REPLACE_AFTER
            && let Ok(connection) = manager(&self.client, self.timeout)
        {
            *current = Manager { connection, since: Instant::now() };
        }
    }

    /// Limits the whole call, including connecting and the retry after NOSCRIPT. The manager's own limit covers one
    /// command on an open connection.
    async fn within<T>(&self, work: impl Future<Output = Result<T, RedisError>>) -> Result<T, Fault> {
        match tokio::time::timeout(self.timeout * 3, work).await {
            Ok(result) => result.map_err(|error| {
                let wrong_server =
                    [ServerErrorKind::ReadOnly, ServerErrorKind::MasterDown].map(ErrorKind::Server);
                if error.kind() == ErrorKind::AuthenticationFailed || wrong_server.contains(&error.kind()) {
                    self.replace_connection();
                }
                Fault::from(error)
            }),
            Err(_) => Err(Fault::Late(format!("no reply within {:?}", self.timeout * 3))),
        }
    }
}

fn manager(client: &Client, timeout: Duration) -> Result<ConnectionManager, RedisError> {
    let config = ConnectionManagerConfig::new()
        .set_response_timeout(Some(timeout))
        .set_connection_timeout(Some(timeout))
        // One try per command: the caller decides whether to retry.
        .set_number_of_retries(0);
    ConnectionManager::new_lazy_with_config(client.clone(), config)
}

/// Checks that the URL can be parsed. Connects to nothing.
pub fn check_url(url: &str) -> Result<(), InvalidUrl> {
    url.into_connection_info().map(|_| ()).map_err(|error| InvalidUrl(error.to_string()))
}
