//! Gathers the orders without a row from the outbox, the order log and the dead-letter queue.

use std::collections::{BTreeMap, HashMap};

use super::error::RebuildError;
use super::freeze::{Rebuild, Rebuilding};
use crate::domain::{CLOCK_SKEW, Entry, Millis, Number, Order, OrderId, Place, SaleId, UserId};
use crate::fault::fault;
use crate::queue::LogFrom;
use crate::recovery::reach::{log_begins_at, log_needed_from};
use crate::settlement::{compare_places, mark_recorded};

/// At most this many dead letters are read.
const DEAD_LETTERS: usize = 10_000;

/// Gathered orders are looked up in the database this many at a time, so that those that have a row, which may be all
/// of the log, do not fill the memory.
const AT_ONCE: usize = 1_000;

/// What the outbox, the log and the dead-letter queue know of a sale.
pub struct Gathered {
    /// Accepted orders that had no row when they were looked up, by user. They may have one when the rows are read.
    pub(super) waiting: BTreeMap<UserId, BTreeMap<OrderId, Waiting>>,
    /// The highest number that the gate has given.
    pub(super) highest: Number,
    /// From when on the log is needed: every order that was accepted earlier had its row.
    log_needed_from: Millis,
    /// When the log begins, if it lacks entries that the database may need.
    pub begins_at: Option<Millis>,
    /// Log entries and dead letters that this build cannot read.
    pub(super) unreadable: usize,
    /// Accepted orders that have not been looked up yet.
    accepted: HashMap<OrderId, Waiting>,
    /// The highest version of each row in the log that has not been looked up yet.
    versions: HashMap<OrderId, i32>,
}

/// An accepted order without a row.
pub(super) struct Waiting {
    pub(super) order: Order,
    /// It is on the dead-letter queue.
    pub(super) parked: bool,
}

impl Gathered {
    fn nothing_yet(log_needed_from: Millis) -> Self {
        Self {
            waiting: BTreeMap::new(),
            highest: Number::default(),
            log_needed_from,
            begins_at: None,
            unreadable: 0,
            accepted: HashMap::new(),
            versions: HashMap::new(),
        }
    }

    fn accept(&mut self, order: Order, parked: bool) {
        self.highest = self.highest.max(order.number);
        let known = self.accepted.entry(order.id).or_insert(Waiting { order, parked });
        known.parked |= parked;
    }

    fn add_logged(&mut self, entry: Entry) {
        match entry {
            Entry::Accepted(order) => self.accept(order, false),
            Entry::Order(entry) => {
                self.highest = self.highest.max(entry.order.number);
                let version = self.versions.entry(entry.order.id).or_insert(0);
                *version = entry.version.max(*version);
            }
            Entry::Sale(entry) => self.highest = self.highest.max(entry.number),
            Entry::Act(_) | Entry::Payment(_) => {}
        }
    }

    /// From when on the log is read, since clocks may differ.
    pub fn read_from(&self) -> Millis {
        self.log_needed_from.minus(CLOCK_SKEW)
    }

    fn unknown(&self) -> usize {
        self.accepted.len() + self.versions.len()
    }
}

impl Rebuild {
    /// Fails if the database has lost commits that the gate or the order log has witnessed. The log is read only if the
    /// gate is no witness, because it has lost the sale: a process that has just started would not hear of the loss, and
    /// each of its commits brings the database nearer to the place that reveals it.
    pub(super) async fn compare_with_log(&self, sale: &SaleId) -> Result<(), RebuildError> {
        let witness = self.gate.describe(sale).await?.filter(|held| held.place != Place::default());
        if witness.is_some() {
            // Nothing must be frozen while the log cannot be read.
            self.log.head().await?;
        } else {
            let from = self.log_from(sale).await?;
            let mut reader = self.log.read(LogFrom::Time(from.minus(CLOCK_SKEW))).await?;
            while let Some(message) = reader.next().await? {
                for (sale, place) in &message.places {
                    self.store.observe_place(sale, *place);
                }
            }
            reader.close().await;
        }
        Ok(compare_places(&self.gate, &self.store).await?)
    }

    /// From when on the log may have orders of the sale without a row.
    async fn log_from(&self, sale: &SaleId) -> Result<Millis, RebuildError> {
        let created = self.row(sale).await?.created_at;
        Ok(log_needed_from(&self.store).await?.map_or(created, |from| from.max(created)))
    }

    /// Reads all sources of orders without a row. Each order that was accepted before the sale was frozen is in one
    /// of these sources, or has a row when the database is read afterwards. Fails if the database lacks a row of the
    /// log, or has an older version of it.
    pub async fn gather(&self, rebuilding: &Rebuilding) -> Result<Gathered, RebuildError> {
        let sale = &rebuilding.sale;
        let mut gathered = Gathered::nothing_yet(self.log_from(sale).await?);
        // Of the entries that Redis had before it lost its last writes. Those that the rebuild adds are marked at its end.
        mark_recorded(&self.gate, &self.store, sale).await?;
        for ticket in self.gate.in_flight(sale).await? {
            gathered.accept(ticket.order, ticket.parked);
        }
        let log = self.gather_log(sale, &mut gathered);
        let (logged, letters) = tokio::join!(log, self.dead_letters.list(DEAD_LETTERS));
        logged?;
        for letter in letters? {
            gathered.unreadable += usize::from(letter.orders.is_err());
            for order in letter.orders.into_iter().flatten().filter(|order| order.sale == *sale) {
                gathered.accept(order, true);
            }
        }
        self.look_up(&mut gathered).await?;
        fault!("rebuild.gathered", return Err(crate::gate::GateError::Unavailable("injected".into()).into()));
        Ok(gathered)
    }

    async fn gather_log(&self, sale: &SaleId, gathered: &mut Gathered) -> Result<(), RebuildError> {
        let begins_at = log_begins_at(&self.log, &self.store).await?;
        gathered.begins_at = begins_at.filter(|at| *at > gathered.log_needed_from.plus(CLOCK_SKEW));
        let mut reader = self.log.read(LogFrom::Time(gathered.read_from())).await?;
        while let Some(message) = reader.next().await? {
            for (sale, place) in &message.places {
                self.store.observe_place(sale, *place);
            }
            for entry in message.entries {
                match entry {
                    Ok(entry) if entry.sale() == sale => gathered.add_logged(entry),
                    Ok(_) => {}
                    Err(_) => gathered.unreadable += 1,
                }
            }
            if gathered.unknown() >= AT_ONCE {
                self.look_up(gathered).await?;
            }
        }
        reader.close().await;
        // A gate must not be rebuilt from a database that has lost commits.
        Ok(self.store.check_places().await?)
    }

    /// Forgets the gathered orders that have a row. No row is ever deleted, so reading the rows will find them.
    async fn look_up(&self, gathered: &mut Gathered) -> Result<(), RebuildError> {
        let ids: Vec<OrderId> = gathered.accepted.keys().chain(gathered.versions.keys()).copied().collect();
        for ids in ids.chunks(AT_ONCE) {
            for (id, version) in self.store.row_versions(ids).await? {
                gathered.accepted.remove(&id);
                if gathered.versions.remove(&id).is_some_and(|logged| logged > version) {
                    return Err(RebuildError::DatabaseBehind(id));
                }
            }
        }
        // The log has a row that the database lacks.
        if let Some(id) = gathered.versions.keys().next() {
            return Err(RebuildError::DatabaseBehind(*id));
        }
        for (id, found) in gathered.accepted.drain() {
            let of_user = gathered.waiting.entry(found.order.user.clone()).or_default();
            let parked = found.parked || of_user.get(&id).is_some_and(|known| known.parked);
            of_user.insert(id, Waiting { parked, ..found });
        }
        Ok(())
    }
}
