//! One connection with one channel and the topology declared. lapin's own recovery is not used: after a channel error
//! it leaves a consumer that stays silent, and it gives up after some attempts.

use std::sync::Once;
use std::time::Duration;

use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::topology::{self, Declares, Depths};
use super::{QueueError, QueueSettings};
use crate::link::{InstallationId, OtherInstallation, UNKNOWN_INSTALLATION};

/// Seconds between heartbeats. The broker and lapin count a peer as dead after two missed ones, so the broker's default
/// of 60 s would hide a dead peer for two minutes.
const HEARTBEAT: u16 = 10;

pub(super) struct Link {
    /// Kept because dropping the connection closes the channel.
    connection: Connection,
    pub(super) channel: Channel,
    /// As of when the link was opened.
    pub(super) depths: Depths,
    declares: Declares,
}

/// A link that is being opened, and what belongs to it. Opening continues even if nobody waits.
pub(super) struct Opening<T>(oneshot::Receiver<Result<(Link, T), QueueError>>);

impl<T> Opening<T> {
    /// Cancel-safe. Panics if it is called again after it has returned.
    pub(super) async fn done(&mut self) -> Result<(Link, T), QueueError> {
        (&mut self.0).await.unwrap_or_else(|_| Err(QueueError("opening the link has ended early".into())))
    }
}

impl Link {
    pub(super) async fn open(settings: &QueueSettings, purpose: &'static str) -> Result<Self, QueueError> {
        let (link, ()) = Self::opening(settings, purpose, |_| async { Ok(()) }).done().await?;
        Ok(link)
    }

    /// Opens a link and does `first` on its channel. Each has the timeout of the settings.
    ///
    /// In a task of its own: if the caller is gone when `basic.consume` is answered, lapin keeps the consumer and the
    /// connection, and the broker goes on lending it messages that nobody reads. So opening is never cancelled half way, and
    /// a link that failed, or that nobody waits for any more, is closed.
    pub(super) fn opening<T, Work>(
        settings: &QueueSettings,
        purpose: &'static str,
        first: impl FnOnce(Channel) -> Work + Send + 'static,
    ) -> Opening<T>
    where
        T: Send + 'static,
        Work: Future<Output = Result<T, QueueError>> + Send,
    {
        let (settings, (done, opening)) = (settings.clone(), oneshot::channel());
        tokio::spawn(async move {
            let link = match Self::connect(&settings, purpose).await {
                Ok(link) => link,
                Err(error) => return drop(done.send(Err(error))),
            };
            match within(settings.timeout, first(link.channel.clone())).await {
                Ok(first) => {
                    if let Err(Ok((link, _))) = done.send(Ok((link, first))) {
                        link.close().await;
                    }
                }
                Err(error) => {
                    drop(done.send(Err(error)));
                    link.close().await;
                }
            }
        });
        Opening(opening)
    }

    async fn connect(settings: &QueueSettings, purpose: &str) -> Result<Self, QueueError> {
        let installation = match settings.installation.is_checked() {
            true => Some(installation(settings).await?),
            false => None,
        };
        let until = Instant::now() + settings.timeout;
        let connection = connect_within(settings, purpose).await?;
        let prepared = timeout_at(until, prepare(&connection, settings, installation)).await;
        match prepared.unwrap_or_else(|_| Err(no_answer(settings.timeout))) {
            Ok((channel, depths, declares)) => Ok(Self { connection, channel, depths, declares }),
            Err(error) => {
                tokio::spawn(async move { close(&connection).await });
                Err(error)
            }
        }
    }

    /// Declares the topology again, in case somebody has deleted a part of it.
    pub(super) async fn declare(&self, settings: &QueueSettings) -> Result<Depths, QueueError> {
        topology::declare(&self.channel, settings, self.declares).await
    }

    pub(super) fn is_up(&self) -> bool {
        self.connection.status().connected() && self.channel.status().connected()
    }

    /// The broker is short of memory or disk: it reads nothing from this connection, and a publish would be sent some
    /// time later.
    pub(super) fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    pub(super) async fn close(self) {
        close(&self.connection).await;
    }
}

/// Closes a connection. Waits for a second at most; after that, lapin closes it when the broker answers.
async fn close(connection: &Connection) {
    let _ = tokio::time::timeout(Duration::from_secs(1), connection.close(200, "done".into())).await;
}

/// Makes a channel and declares the topology on it.
async fn prepare(
    connection: &Connection,
    settings: &QueueSettings,
    installation: Option<InstallationId>,
) -> Result<(Channel, Depths, Declares), QueueError> {
    let mut channel = connection.create_channel().await?;
    if let Some(id) = installation {
        let claimed = topology::claim(&channel, settings, id).await?;
        claimed.map_err(|other| QueueError(other.to_string()))?;
    }
    let mut declares = Declares::Everything;
    let mut declared = topology::declare(&channel, settings, declares).await;
    if let Err(error) = &declared
        && let Some(instead) = Declares::instead(error, settings)
    {
        if instead == Declares::AllButLog {
            warn_of_limits(error);
        }
        declares = instead;
        // The broker closes a channel with its refusal.
        channel = connection.create_channel().await?;
        declared = topology::declare(&channel, settings, declares).await;
    }
    Ok((channel, declared?, declares))
}

/// Once per process, because each reading of the log opens a connection.
fn warn_of_limits(error: &QueueError) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::warn!(%error, "the order log keeps the limits that it was declared with: see docs/operating.md");
    });
}

/// The id that the broker must carry, once redis or the database has shown it.
async fn installation(settings: &QueueSettings) -> Result<InstallationId, QueueError> {
    let known = settings.installation.id_within(settings.timeout).await;
    known.ok_or_else(|| QueueError(UNKNOWN_INSTALLATION.into()))
}

/// Gives the broker this id if it has none. An [`OtherInstallation`] if it has another one.
pub async fn join_installation(
    settings: &QueueSettings,
    id: InstallationId,
) -> Result<Result<(), OtherInstallation>, QueueError> {
    let claim = async {
        let connection = connect_within(settings, "migrate").await?;
        let channel = connection.create_channel().await?;
        Ok((topology::claim(&channel, settings, id).await?, connection))
    };
    let (claimed, connection) = within(settings.timeout, claim).await?;
    close(&connection).await;
    Ok(claimed)
}

/// Declares the exchanges and queues, for processes whose user may not. Repeating it is harmless.
pub async fn declare_topology(settings: &QueueSettings) -> Result<(), QueueError> {
    Link::open(settings, "migrate").await?.close().await;
    Ok(())
}

/// A connection without a channel; declares nothing. An error names the server.
pub(super) async fn connect_within(
    settings: &QueueSettings,
    purpose: &str,
) -> Result<Connection, QueueError> {
    let connected = within(settings.timeout, connect(settings, purpose)).await;
    connected.map_err(|QueueError(why)| match uri(settings) {
        Ok(AMQPUri { authority, .. }) => QueueError(format!(
            "{}:{}: {why}; is it running, and is queue.url right?",
            authority.host, authority.port
        )),
        Err(mistyped) => mistyped,
    })
}

async fn connect(settings: &QueueSettings, purpose: &str) -> Result<Connection, QueueError> {
    let mut uri = uri(settings)?;
    uri.query.heartbeat.get_or_insert(HEARTBEAT);
    let properties =
        ConnectionProperties::default().with_connection_name(format!("doorbuster {purpose}").into());
    Ok(Connection::connect_uri(uri, properties).await?)
}

pub(super) fn uri(settings: &QueueSettings) -> Result<AMQPUri, QueueError> {
    settings.url.parse().map_err(|error| QueueError(format!("queue.url: {error}")))
}

/// Adds a timeout: lapin has none.
pub(super) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, QueueError>>,
) -> Result<T, QueueError> {
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(no_answer(limit)))
}

/// How long to wait until an ack is sent. If the broker dies meanwhile, that may never be known, and the caller may hold the
/// leases of users. An ack that was given up is sent all the same if the connection still can.
const ACK_WITHIN: Duration = Duration::from_secs(1);

/// Waits until an ack or its opposite is sent.
pub(super) async fn acknowledged<T>(ack: impl Future<Output = lapin::Result<T>>) -> Result<T, QueueError> {
    within(ACK_WITHIN, async { Ok(ack.await?) }).await
}

fn no_answer(limit: Duration) -> QueueError {
    QueueError(format!("no answer within {limit:?}"))
}
