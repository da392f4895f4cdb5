//! Facts about the broker that an operator needs before a sale: its version, and whether its queues are as they must
//! be. Changes nothing.

use std::time::Duration;

use futures_util::{AsyncReadExt as _, AsyncWriteExt as _};
use lapin::options::{BasicGetOptions, BasicNackOptions, QueueDeclareOptions};
use lapin::tcp::AMQPUriTcpExt as _;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection};

use super::link::{connect_within, uri, within};
use super::topology::{Declared, Declares, claim, is_claimed, topology};
use super::{QueueError, QueueSettings};
use crate::link::{InstallationId, OtherInstallation};

/// RabbitMQ, as `doorbuster doctor` sees it.
#[derive(Debug, Clone)]
pub struct BrokerFacts {
    /// Such as `3.10.8`; `None` if the broker does not say.
    pub version: Option<String>,
    /// Each queue with its name.
    pub queues: Vec<(String, QueueFacts)>,
    /// Whether it belongs to the installation of the other servers; `None` if it belongs to none yet, or if no other
    /// server has shown an id.
    pub installation: Option<Result<InstallationId, OtherInstallation>>,
}

/// The state of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueFacts {
    /// It is there, with the right settings.
    Declared {
        /// Messages that wait in it.
        waiting: u32,
    },
    /// The broker knows it and cannot serve it, as after a crash while it was deleted: in the broker's words.
    Unserved(String),
    /// It is not there, and may be declared: the first front or worker does so.
    Declarable,
    /// It is the order log, and works, but keeps other limits than the configured ones: in the broker's words.
    OtherLimits(String),
    /// It has other settings, or this user may not declare it: in the broker's words.
    Refused(String),
}

/// Connects and looks at each queue, within the timeout of the settings.
pub async fn examine(settings: &QueueSettings) -> Result<BrokerFacts, QueueError> {
    let look = async {
        let connection = connect_within(settings, "doctor").await?;
        let mut queues = Vec::new();
        for declared in topology(settings) {
            let mut facts = look_at(&connection, settings, &declared).await?;
            if facts == (QueueFacts::Declared { waiting: 0 })
                && let Some(why) = unserved(settings, &declared.name).await?
            {
                facts = QueueFacts::Unserved(why);
            }
            queues.push((declared.name, facts));
        }
        let installation = installation(&connection, settings).await?;
        let _ = tokio::time::timeout(Duration::from_secs(1), connection.close(200, "done".into())).await;
        // This comes last, because a broker with an unusual greeting must still be examined.
        let version = version(settings).await.unwrap_or_default();
        Ok(BrokerFacts { version, queues, installation })
    };
    within(settings.timeout, look).await
}

/// Compares the broker's id with that of the other servers, if both have one.
async fn installation(
    connection: &Connection,
    settings: &QueueSettings,
) -> Result<Option<Result<InstallationId, OtherInstallation>>, QueueError> {
    let Some(id) = settings.installation.id_within(settings.timeout / 2).await else { return Ok(None) };
    if !is_claimed(&connection.create_channel().await?, settings).await {
        return Ok(None);
    }
    let claimed = claim(&connection.create_channel().await?, settings, id).await?;
    Ok(Some(claimed.map(|()| id)))
}

async fn look_at(
    connection: &Connection,
    settings: &QueueSettings,
    declared: &Declared,
) -> Result<QueueFacts, QueueError> {
    // One channel per question, because the broker closes the channel when it refuses.
    let channel = connection.create_channel().await?;
    let passive = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
    match channel.queue_declare(declared.name.as_str().into(), passive, FieldTable::default()).await {
        // Declaring a queue that exists changes nothing; different settings are refused. Who may not declare it uses it as
        // it is.
        Ok(found) => Ok(match declared.declare_queue(&channel).await {
            Ok(queue) => QueueFacts::Declared { waiting: queue.message_count() },
            Err(error) => match Declares::instead(&error, settings) {
                Some(Declares::Nothing) => QueueFacts::Declared { waiting: found.message_count() },
                Some(_) => QueueFacts::OtherLimits(error.to_string()),
                None => QueueFacts::Refused(error.to_string()),
            },
        }),
        Err(error) if error.to_string().contains("NOT_FOUND") => {
            may_declare(&connection.create_channel().await?, &declared.name).await
        }
        Err(error) => Ok(QueueFacts::Refused(error.to_string())),
    }
}

/// Why the broker does not serve a queue in which it counts nothing; `None` if it does. On a connection of its own, because
/// the broker ends it with the error.
async fn unserved(settings: &QueueSettings, name: &str) -> Result<Option<String>, QueueError> {
    let connection = connect_within(settings, "doctor").await?;
    let channel = connection.create_channel().await?;
    let why = match channel.basic_get(name.into(), BasicGetOptions::default()).await {
        // It came just now.
        Ok(Some(message)) => {
            message.nack(BasicNackOptions { requeue: true, ..Default::default() }).await?;
            None
        }
        Ok(None) => None,
        // Streams know no such question, and not every user may read.
        Err(error) => Some(error.to_string()).filter(|error| error.contains("INTERNAL")),
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), connection.close(200, "done".into())).await;
    Ok(why)
}

/// Asks for a type of queue that does not exist. The broker checks the right to declare first, so it refuses either
/// way, and the kind of refusal shows whether the right is there.
async fn may_declare(channel: &Channel, name: &str) -> Result<QueueFacts, QueueError> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("no such type".into()));
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    match channel.queue_declare(name.into(), options, arguments).await {
        Err(error) if error.to_string().contains("PRECONDITION") => Ok(QueueFacts::Declarable),
        Err(error) => Ok(QueueFacts::Refused(format!("declaring the queue {name}: {error}"))),
        Ok(_) => Err(QueueError(format!("the broker declared {name} as a queue of no such type"))),
    }
}

/// The broker introduces itself when a client connects, but lapin does not pass that on. The greeting is a table of
/// fields; a field is the length of its name, the name, the letter S for a text, the text's length and the text
/// (AMQP 0-9-1, 4.2.5.5).
async fn version(settings: &QueueSettings) -> Result<Option<String>, QueueError> {
    const FIELD: &[u8] = b"\x07versionS";
    let failed = |error: std::io::Error| QueueError(error.to_string());
    let runtime = lapin::runtime::default_runtime()?;
    let mut stream = uri(settings)?.connect_async(&runtime).await.map_err(failed)?;
    stream.write_all(b"AMQP\x00\x00\x09\x01").await.map_err(failed)?;
    // The type, the channel and the length of the frame.
    let mut head = [0; 7];
    stream.read_exact(&mut head).await.map_err(failed)?;
    let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]).min(64 * 1024);
    let mut greeting = vec![0; length as usize];
    stream.read_exact(&mut greeting).await.map_err(failed)?;
    let Some(at) = greeting.windows(FIELD.len()).position(|bytes| bytes == FIELD) else { return Ok(None) };
    let rest = &greeting[at + FIELD.len()..];
    let Some((length, text)) = rest.split_first_chunk::<4>() else { return Ok(None) };
    let text = text.get(..u32::from_be_bytes(*length) as usize);
    Ok(text.map(|text| String::from_utf8_lossy(text).into_owned()))
}
