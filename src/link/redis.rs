//! One multiplexed connection to Redis that reconnects by itself, and the one judgement that
//! matters about its errors: may the command have run?

use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{
    Client, ErrorKind, FromRedisValue, IntoConnectionInfo as _, RedisError, Script, ServerErrorKind,
};

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
    /// Redis said something that no retry will mend.
    #[error("redis answered unexpectedly: {0}")]
    Broken(String),
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        let text = error.to_string();
        match error.kind() {
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
    manager: ConnectionManager,
    timeout: Duration,
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
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(settings.timeout))
            .set_connection_timeout(Some(settings.timeout))
            // The caller decides whether to try again; here, one try per command.
            .set_number_of_retries(0);
        let manager = ConnectionManager::new_lazy_with_config(client, config).map_err(broken)?;
        Ok(Self { manager, timeout: settings.timeout })
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
        let mut connection = self.manager.clone();
        self.within(invocation.invoke_async(&mut connection)).await
    }

    pub async fn query<T: FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, Fault> {
        let mut connection = self.manager.clone();
        self.within(command.query_async(&mut connection)).await
    }

    /// The manager's own limit covers one command on an open connection. This one covers
    /// everything, connecting and the second try after NOSCRIPT included.
    async fn within<T>(&self, work: impl Future<Output = Result<T, RedisError>>) -> Result<T, Fault> {
        match tokio::time::timeout(self.timeout * 3, work).await {
            Ok(result) => result.map_err(Fault::from),
            Err(_) => Err(Fault::Late(format!("no reply within {:?}", self.timeout * 3))),
        }
    }
}

/// Can the URL be read? Says nothing of whether anybody answers there.
pub fn check_url(url: &str) -> Result<(), String> {
    url.into_connection_info().map(|_| ()).map_err(|error| error.to_string())
}
