//! One multiplexed connection to Redis that reconnects by itself.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, FromRedisValue, IntoConnectionInfo as _, RedisError,
    ServerErrorKind,
};

use super::channels::Channels;
use super::error::{Fault, InvalidUrl};
use super::installation::{Installation, InstallationId, REDIS, UNKNOWN_INSTALLATION};
use super::pinned::Pinned;
use super::script::Script;

/// Where Redis is, and how long to wait for it.
#[derive(Debug, Clone)]
pub struct RedisSettings {
    /// `redis://` or `rediss://`, with credentials if the server requires them.
    pub url: String,
    /// How long one reply may take. A call, with connecting and a retry after NOSCRIPT, may take three times as long;
    /// then its outcome is unknown.
    pub timeout: Duration,
    /// The installation that Redis must belong to; `None`: any Redis will do.
    pub member: Option<Member>,
}

/// What makes a Redis part of an installation.
#[derive(Debug, Clone)]
pub struct Member {
    /// The installation.
    pub of: Installation,
    /// The key that holds its id.
    pub id_key: String,
    /// A key that exists if Redis holds anything that matters. Without it, a Redis that has no id gets this
    /// installation's.
    pub data_key: String,
}

/// Minimum age of a connection that is replaced because of its replies.
const REPLACE_AFTER: Duration = Duration::from_millis(500);

/// How often a script is sent again because Redis did not know it, before the caller gets [`Fault::NoScript`].
pub const NO_SCRIPT_RETRIES: u32 = 5;

/// A connection to Redis. Cheap to clone; all clones share it.
#[derive(Clone)]
pub struct RedisLink {
    client: Client,
    /// The server's host and port, for messages.
    address: Arc<str>,
    manager: Arc<Mutex<Manager>>,
    timeout: Duration,
    member: Option<Member>,
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
        let address = client.get_connection_info().addr().to_string().into();
        Ok(Self { client, address, manager, timeout: settings.timeout, member: settings.member.clone() })
    }

    /// Opens a separate connection for channels, with no subscription yet.
    pub async fn channels(&self) -> Result<Channels, Fault> {
        let connection = self.within(self.client.get_async_pubsub()).await?;
        Ok(Channels::new(connection, self.timeout))
    }

    /// How long a call may take before its caller is given an error.
    pub fn longest_call(&self) -> Duration {
        self.timeout * 3
    }

    /// Opens a separate connection that is never replaced.
    pub async fn pin(&self) -> Result<Pinned, Fault> {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(self.timeout))
            .set_connection_timeout(Some(self.timeout));
        let connect = self.client.get_multiplexed_async_connection_with_config(&config);
        Ok(Pinned::new(self.within(connect).await?, self.address.clone(), self.timeout))
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
        let work = async {
            let mut retries = 0;
            loop {
                match self.run_known(script, keys, args).await {
                    // Redis may forget the script again before the next call.
                    Err(Fault::NoScript) if retries < NO_SCRIPT_RETRIES => {
                        retries += 1;
                        self.load(script).await?;
                    }
                    done => return done,
                }
            }
        };
        let limit = self.timeout * 3;
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(self.no_reply(limit)))
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
        let hash = script.of(self.installation().await?).get_hash();
        command.arg(hash).arg(keys.len()).arg(keys).arg(args);
        self.query(&command).await
    }

    /// Loads a script into Redis without running it, once this Redis is recognised.
    async fn load(&self, script: &Script) -> Result<(), Fault> {
        let script = self.of_installation(script).await?;
        let _hash: String = self.within(script.load_async(&mut self.connection())).await?;
        Ok(())
    }

    /// The same on a connection that is never replaced, so that no Redis that has started since gets the script.
    pub async fn load_on(&self, connection: &Pinned, script: &Script) -> Result<(), Fault> {
        connection.load(self.of_installation(script).await?).await
    }

    async fn of_installation<'a>(&self, script: &'a Script) -> Result<&'a redis::Script, Fault> {
        self.recognise().await?;
        Ok(script.of(self.installation().await?))
    }

    /// Whether Redis knows the script.
    pub async fn knows_script(&self, script: &Script) -> Result<bool, Fault> {
        let known: Vec<bool> = self.query(&self.ask_for_script(script).await?).await?;
        Ok(known == [true])
    }

    /// The command whose reply is a list with 1 if Redis knows the script, and with 0 otherwise.
    pub async fn ask_for_script(&self, script: &Script) -> Result<redis::Cmd, Fault> {
        let hash = script.of(self.installation().await?).get_hash();
        Ok(redis::cmd("SCRIPT").arg("EXISTS").arg(hash).to_owned())
    }

    /// The installation that Redis must belong to; `None` if that is not checked.
    async fn installation(&self) -> Result<Option<InstallationId>, Fault> {
        let Some(member) = self.member.as_ref().filter(|member| member.of.is_checked()) else {
            return Ok(None);
        };
        if member.of.id().is_none() {
            self.recognise().await?;
        }
        Ok(member.of.id())
    }

    /// Fails if this Redis belongs to another installation. One that is empty and has no id gets this installation's.
    /// Scripts do this by themselves; call it before any other command that writes.
    pub async fn recognise(&self) -> Result<(), Fault> {
        let Some(member) = self.member.as_ref().filter(|member| member.of.is_checked()) else {
            return Ok(());
        };
        if let Some(id) = self.installation_of(&member.id_key).await? {
            return member.of.meet(REDIS, id).map_err(|other| Fault::Unavailable(other.to_string()));
        }
        let ours = member.of.id().ok_or_else(|| Fault::Unavailable(UNKNOWN_INSTALLATION.into()))?;
        if self.query::<bool>(redis::cmd("EXISTS").arg(&member.data_key)).await? {
            return Err(Fault::Unavailable(format!(
                "redis holds data, but not the id of an installation ({}): if the data is yours, run `doorbuster migrate`",
                member.id_key
            )));
        }
        self.claim(member, ours).await
    }

    /// Gives Redis the id `ours` unless it has one. Fails if it has another.
    async fn claim(&self, member: &Member, ours: InstallationId) -> Result<(), Fault> {
        let claim = redis::cmd("SET").arg(&member.id_key).arg(ours.to_string()).arg("NX").to_owned();
        let _: Option<String> = self.query(&claim).await?;
        match self.installation_of(&member.id_key).await? {
            Some(id) => member.of.meet(REDIS, id).map_err(|other| Fault::Unavailable(other.to_string())),
            None => Err(Fault::Unavailable(format!("redis has lost {}", member.id_key))),
        }
    }

    /// The id that Redis carries under `key`.
    async fn installation_of(&self, key: &str) -> Result<Option<InstallationId>, Fault> {
        let text: Option<String> = self.query(redis::cmd("GET").arg(key)).await?;
        let id = text.map(|text| text.parse()).transpose();
        id.map_err(|error| Fault::Broken(format!("{key}: {error}")))
    }

    /// The id that Redis carries, if it has one. Checks nothing.
    pub async fn installation_found(&self) -> Result<Option<InstallationId>, Fault> {
        match &self.member {
            Some(member) => self.installation_of(&member.id_key).await,
            None => Ok(None),
        }
    }

    /// Gives Redis the id of the installation, even if it holds data. Fails if it has another id.
    pub async fn join_installation(&self, id: InstallationId) -> Result<(), Fault> {
        match &self.member {
            Some(member) => self.claim(member, id).await,
            None => Ok(()),
        }
    }

    /// Sends one command.
    pub async fn query<T: FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, Fault> {
        let mut connection = self.connection();
        self.within(command.query_async(&mut connection)).await
    }

    /// Sends several commands that see one moment of one Redis.
    pub async fn query_at_once<T: FromRedisValue>(&self, commands: &redis::Pipeline) -> Result<T, Fault> {
        let mut connection = self.connection();
        self.within(commands.query_async(&mut connection)).await
    }

    /// Replaces the connection manager, which reconnects only after I/O errors. It would keep a refused login
    /// although the password may have been corrected, and stay with a former master although the host name may lead
    /// to the new one. Limited by [`REPLACE_AFTER`].
    pub fn replace_connection(&self) {
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
                // A transaction is aborted if the server refuses one of its commands.
                let wrong_server =
                    [ServerErrorKind::ReadOnly, ServerErrorKind::MasterDown, ServerErrorKind::ExecAbort]
                        .map(ErrorKind::Server);
                if error.kind() == ErrorKind::AuthenticationFailed || wrong_server.contains(&error.kind()) {
                    self.replace_connection();
                }
                Fault::from(error).at(&self.address)
            }),
            Err(_) => Err(self.no_reply(self.timeout * 3)),
        }
    }

    fn no_reply(&self, limit: Duration) -> Fault {
        Fault::Late(format!("no reply within {limit:?}")).at(&self.address)
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
