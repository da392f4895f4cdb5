//! The exchanges and queues. Every process declares them on every connection: declaring one that exists changes
//! nothing, and one that somebody deleted is created again. A process whose user may not declare looks whether they are
//! there; then `doorbuster migrate` declares them, with a user who may.
//!
//! | exchange and queue | content |
//! | --- | --- |
//! | `P.orders` (direct) -> `P.orders` | orders that wait for a worker |
//! | `P.dead` (fanout) -> `P.dead` | messages that no worker could process; see `doorbuster dead-letters` |
//! | `P.unrouted` (fanout) -> `P.unrouted` | messages that no queue took; must be empty |
//! | `P.log` (fanout) -> `P.log` | the order log, a stream: changes of orders, sales and payments |
//! | `P.orders` -> `P.log` | every order too, by the same publish and under the same confirm |
//! | `P.installation` (fanout) | nothing: its alternate exchange names the installation that the broker belongs to |

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ExchangeKind, Queue};

use super::{QueueError, QueueSettings};
use crate::link::{BROKER, InstallationId, OtherInstallation};

/// The limits of a stream, which it keeps as it was declared with.
const LIMITS: [&str; 3] = [MAX_AGE, MAX_BYTES, MAX_SEGMENT];
const MAX_AGE: &str = "x-max-age";
const MAX_BYTES: &str = "x-max-length-bytes";
const MAX_SEGMENT: &str = "x-stream-max-segment-size-bytes";

pub(super) struct Names {
    pub(super) orders: String,
    pub(super) dead: String,
    pub(super) unrouted: String,
    pub(super) log: String,
    pub(super) installation: String,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            orders: format!("{prefix}.orders"),
            dead: format!("{prefix}.dead"),
            unrouted: format!("{prefix}.unrouted"),
            log: format!("{prefix}.log"),
            installation: format!("{prefix}.installation"),
        }
    }
}

fn table(pairs: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in pairs {
        table.insert((*name).into(), value.clone());
    }
    table
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// What the broker says about the queues. Its counts may be some seconds behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depths {
    /// Orders that wait for a worker.
    pub orders: u32,
    /// Dead letters.
    pub dead: u32,
    /// Messages that no queue took.
    pub unrouted: u32,
    /// Workers that take orders.
    pub workers: u32,
}

impl Depths {
    fn of(orders: &Queue, dead: &Queue, unrouted: &Queue) -> Self {
        Self {
            orders: orders.message_count(),
            dead: dead.message_count(),
            unrouted: unrouted.message_count(),
            workers: orders.consumer_count(),
        }
    }
}

/// An exchange and the queue of the same name that is bound to it.
pub(super) struct Declared {
    pub(super) name: String,
    kind: ExchangeKind,
    exchange: FieldTable,
    queue: FieldTable,
}

impl Declared {
    /// Declares and binds both.
    async fn declare(&self, channel: &Channel) -> Result<Queue, QueueError> {
        exchange(channel, &self.name, self.kind.clone(), self.exchange.clone()).await?;
        let declared = self.declare_queue(channel).await?;
        bind(channel, &self.name, &self.name, &self.name).await?;
        Ok(declared)
    }

    /// Declares nothing, and fails if one of them is missing.
    async fn look(&self, channel: &Channel) -> Result<Queue, QueueError> {
        let name = self.name.as_str();
        let missing = |error: lapin::Error| {
            QueueError(format!(
                "{name}: {error}: run `doorbuster migrate` with a user of the broker who may configure it"
            ))
        };
        let options = ExchangeDeclareOptions { passive: true, durable: true, ..Default::default() };
        let exchange =
            channel.exchange_declare(name.into(), self.kind.clone(), options, FieldTable::default());
        exchange.await.map_err(missing)?;
        let options = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
        let queue = channel.queue_declare(name.into(), options, FieldTable::default());
        queue.await.map_err(missing)
    }

    /// The queue alone.
    pub(super) async fn declare_queue(&self, channel: &Channel) -> Result<Queue, QueueError> {
        queue(channel, &self.name, self.queue.clone()).await
    }
}

/// What a connection declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Declares {
    /// Everything. If the order log was declared with other limits, the broker refuses.
    Everything,
    /// Everything but the order log, which keeps the limits that it was declared with.
    AllButLog,
    /// Nothing, because the user may not. Everything must exist.
    Nothing,
}

impl Declares {
    /// What to declare instead, after the broker has refused to declare everything. `None` if that would not help.
    pub(super) fn instead(error: &QueueError, settings: &QueueSettings) -> Option<Self> {
        let log = Names::new(&settings.prefix).log;
        if names_limit(&error.0) && error.0.contains(&format!("for queue '{log}'")) {
            return Some(Self::AllButLog);
        }
        error.0.contains("ACCESS_REFUSED").then_some(Self::Nothing)
    }
}

/// On return, a message published to `P.orders` goes to a replicated, durable queue and to the log. With
/// [`Declares::Nothing`] that depends on the bindings that another process has made.
pub(super) async fn declare(
    channel: &Channel,
    settings: &QueueSettings,
    declares: Declares,
) -> Result<Depths, QueueError> {
    let names = Names::new(&settings.prefix);
    let [dead, unrouted, orders, log] = topology(settings);
    if declares == Declares::Nothing {
        log.look(channel).await?;
        let (dead, unrouted) = (dead.look(channel).await?, unrouted.look(channel).await?);
        return Ok(Depths::of(&orders.look(channel).await?, &dead, &unrouted));
    }
    let dead = dead.declare(channel).await?;
    let unrouted = unrouted.declare(channel).await?;
    let orders = orders.declare(channel).await?;
    match declares {
        // It exists, and so does its exchange: another process has declared both.
        Declares::AllButLog => bind(channel, &names.log, &names.log, &names.log).await?,
        _ => log.declare(channel).await.map(drop)?,
    }
    bind(channel, &names.log, &names.orders, &names.orders).await?;
    Ok(Depths::of(&orders, &dead, &unrouted))
}

/// Gives the broker this id if it has none. An [`OtherInstallation`] if it has another one.
///
/// AMQP has no key-value store, but a broker compares the arguments of an exchange that exists with those of its
/// declaration, and shows both if they differ.
pub(super) async fn claim(
    channel: &Channel,
    settings: &QueueSettings,
    id: InstallationId,
) -> Result<Result<(), OtherInstallation>, QueueError> {
    let name = Names::new(&settings.prefix).installation;
    // Without dashes, because the broker cuts its words off at 255 bytes.
    let ours = id.simple();
    let alternate = table(&[("alternate-exchange", text(&ours))]);
    match exchange(channel, &name, ExchangeKind::Fanout, alternate).await {
        Ok(()) => Ok(settings.installation.meet(BROKER, id)),
        Err(error) => match other_id(&error, id) {
            Some(theirs) => {
                Ok(Err(OtherInstallation { server: BROKER, theirs, other: "this process", ours: id }))
            }
            None if error.0.contains("PRECONDITION") => Err(QueueError(format!(
                "the broker belongs to another installation than this process, which belongs to {id}: {error}"
            ))),
            None => Err(error),
        },
    }
}

/// Whether the broker has the id of an installation. Changes nothing.
pub(super) async fn is_claimed(channel: &Channel, settings: &QueueSettings) -> bool {
    let name = Names::new(&settings.prefix).installation;
    let options = ExchangeDeclareOptions { passive: true, ..Default::default() };
    let asked =
        channel.exchange_declare(name.as_str().into(), ExchangeKind::Fanout, options, FieldTable::default());
    asked.await.is_ok()
}

/// The id in the broker's words that is not `ours`.
fn other_id(error: &QueueError, ours: InstallationId) -> Option<InstallationId> {
    error.0.split('\'').filter_map(|word| word.parse().ok()).find(|id| *id != ours)
}

/// In the order in which they are declared: dead letters, unrouted, orders, log.
pub(super) fn topology(settings: &QueueSettings) -> [Declared; 4] {
    let names = Names::new(&settings.prefix);
    // Reading a dead letter counts as a delivery, and RabbitMQ 4 has a default limit of 20: without a higher limit, the
    // 20th look would delete it.
    let kept = table(&[
        ("x-queue-type", text("quorum")),
        ("x-overflow", text("reject-publish")),
        ("x-delivery-limit", AMQPValue::LongInt(i32::MAX)),
    ]);
    // Without a dead-letter exchange, a queue with a delivery limit deletes messages that exceed it. The broker's
    // dead-lettering is at most once, on purpose: an order that it loses is still in the outbox and is published
    // again, and workers write their dead letters themselves, with a confirm. At least once would cost more than it
    // gives: when such a queue is deleted, the broker's supervisor of dead-lettering may end for good, and no queue
    // that relies on it starts again before the broker does (rabbitmq-server issue 16652; seen with 3.10.8).
    let orders = table(&[
        ("x-queue-type", text("quorum")),
        ("x-overflow", text("reject-publish")),
        ("x-delivery-limit", AMQPValue::LongInt(i32::try_from(settings.delivery_limit).unwrap_or(i32::MAX))),
        ("x-dead-letter-exchange", text(&names.dead)),
    ]);
    let alternate = table(&[("alternate-exchange", text(&names.unrouted))]);
    // A stream deletes by age and size, never because a message was read.
    let hours = settings.log_hours;
    let log = table(&[
        ("x-queue-type", text("stream")),
        (MAX_AGE, text(&format!("{hours}h"))),
        (MAX_BYTES, AMQPValue::LongLongInt(i64::try_from(settings.log_bytes).unwrap_or(i64::MAX))),
        (MAX_SEGMENT, AMQPValue::LongLongInt(segment(settings.log_bytes))),
    ]);
    let fanout =
        |name, queue| Declared { name, kind: ExchangeKind::Fanout, exchange: FieldTable::default(), queue };
    let direct =
        Declared { name: names.orders, kind: ExchangeKind::Direct, exchange: alternate, queue: orders };
    [fanout(names.dead, kept.clone()), fanout(names.unrouted, kept), direct, fanout(names.log, log)]
}

/// The size of a segment: a tenth of the log, within the broker's bounds. Only whole segments are deleted.
fn segment(bytes: u64) -> i64 {
    const MIB: u64 = 1024 * 1024;
    i64::try_from((bytes / 10).clamp(MIB, 500 * MIB)).unwrap_or(i64::MAX)
}

/// Whether the broker's words say that a queue has another limit.
fn names_limit(error: &str) -> bool {
    LIMITS.iter().any(|limit| error.contains(&format!("inequivalent arg '{limit}'")))
}

/// The number of messages that wait in the queue of orders.
pub(super) async fn waiting(channel: &Channel, settings: &QueueSettings) -> Result<u32, QueueError> {
    let name = Names::new(&settings.prefix).orders;
    let options = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
    let queue = channel.queue_declare(name.as_str().into(), options, FieldTable::default()).await?;
    Ok(queue.message_count())
}

/// Deletes the queue of orders and declares it again, unless the broker counts messages in it. Returns whether it did. Nothing
/// is lost: an order without a row is also in the outbox, and the sweep publishes it again.
pub(super) async fn remake_orders(channel: &Channel, settings: &QueueSettings) -> Result<bool, QueueError> {
    if waiting(channel, settings).await? > 0 {
        return Ok(false);
    }
    let name = Names::new(&settings.prefix).orders;
    channel.queue_delete(name.as_str().into(), QueueDeleteOptions::default()).await?;
    declare(channel, settings, Declares::AllButLog).await?;
    Ok(true)
}

async fn exchange(
    channel: &Channel,
    name: &str,
    kind: ExchangeKind,
    arguments: FieldTable,
) -> Result<(), QueueError> {
    let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
    channel
        .exchange_declare(name.into(), kind, options, arguments)
        .await
        .map_err(|error| QueueError(format!("declaring the exchange {name}: {error}")))
}

async fn queue(channel: &Channel, name: &str, arguments: FieldTable) -> Result<Queue, QueueError> {
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(name.into(), options, arguments).await.map_err(|error| {
        let error = error.to_string();
        let hint = match error.contains("PRECONDITION") && !names_limit(&error) {
            true => {
                "; it was declared with other settings, by another build or with another queue.delivery_limit: delete \
                 it while no sale is on. Orders that wait in it come again from the outbox"
            }
            false => "",
        };
        QueueError(format!("declaring the queue {name}: {error}{hint}"))
    })
}

async fn bind(channel: &Channel, queue: &str, exchange: &str, key: &str) -> Result<(), QueueError> {
    channel
        .queue_bind(
            queue.into(),
            exchange.into(),
            key.into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        )
        .await
        .map_err(|error| QueueError(format!("binding the queue {queue} to {exchange}: {error}")))
}
