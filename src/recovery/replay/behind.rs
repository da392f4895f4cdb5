//! A database that went back in time: where a replay of the log begins, and when the database is up to date.

use super::error::ReplayError;
use super::parts::Replay;
use super::request::{Filter, ReplayRequest, Source};
use super::survey::Survey;
use super::work::Work;
use crate::domain::{Millis, Place};
use crate::fault::fault;
use crate::gate::GateError;
use crate::recovery::reach::log_needed_from;
use crate::settlement::{SettlementError, compare_places, give_back_pending};
use crate::store::StoreError;

/// Pending returns in one call.
const RETURNS: u64 = 500;

impl Replay {
    /// The request with its beginning: a replay of the log that names none begins where the database's own position
    /// says. Without a position it begins at the head of the log.
    pub(super) async fn with_beginning(&self, request: &ReplayRequest) -> Result<ReplayRequest, ReplayError> {
        let mut request = request.clone();
        let filter = &mut request.filter;
        if request.source == Source::Log && filter.since.is_none() && filter.offset.is_none() {
            filter.since = log_needed_from(&self.store).await?;
        }
        Ok(request)
    }
}

impl Work<'_> {
    /// Compares the database with the gate and with what the log witnesses, before anything is written: a database that
    /// is behind keeps its places while it is restored.
    pub(super) async fn compare_with_witnesses(&mut self, survey: &Survey) -> Result<(), ReplayError> {
        let (gate, store) = (&self.replay.gate, &self.replay.store);
        for (sale, place) in &survey.places {
            store.observe_place(sale, *place);
        }
        let compared = self.retrying(async || match compare_places(gate, store).await {
            Ok(()) => Ok(false),
            Err(SettlementError::Store(StoreError::Behind(_))) => Ok(true),
            Err(SettlementError::Store(error)) => Err(error.into()),
            Err(SettlementError::Gate(error)) => Err(error.into()),
        });
        self.report.was_behind = compared.await?.unwrap_or(false);
        if self.report.was_behind {
            // The reading begins earlier than the position, by what clocks may differ: without that part nothing is missing.
            let position = self.retrying(async || Ok(store.replay_from().await?)).await?.flatten();
            if self.reaches_back_to(position) {
                self.report.begins_at = None;
            }
        }
        if let Some(begins_at) = self.report.begins_at {
            (self.progress.say)(&format!(
                "the log begins at {begins_at}: it does not reach back to the database's position, and changes before \
                 that time are in doubt"
            ));
            self.say_what_redis_has().await?;
        }
        Ok(())
    }

    /// What an operator can still hope for when the log is gone.
    async fn say_what_redis_has(&self) -> Result<(), ReplayError> {
        let (gate, store) = (&self.replay.gate, &self.replay.store);
        let Some(lost) = self.retrying(async || Ok(store.places_lost().await?)).await? else { return Ok(()) };
        for (sale, _) in lost {
            let held = self.retrying(async || Ok(gate.describe(&sale).await?)).await?.flatten();
            (self.progress.say)(&match held {
                Some(held) => format!(
                    "{sale}: Redis still has {} orders without a row (`doorbuster replay run outbox`), and who holds \
                     the others, but not their rows, payments and changes",
                    held.waiting
                ),
                None => format!("{sale}: Redis does not have it"),
            });
        }
        Ok(())
    }

    /// Has every gate that Redis knows hear of the line that will begin, before it is asked which orders have ended: from
    /// now on it takes back no unit of an end from before, so what it says stays true. If the replay stops before the line
    /// begins, the database is as far behind as it was.
    pub(super) async fn announce_line(&self) -> Result<(), ReplayError> {
        if self.run.is_none() || !self.report.was_behind {
            return Ok(());
        }
        let (gate, store) = (&self.replay.gate, &self.replay.store);
        let place = Place { line: store.next_line(), number: 0 };
        let Some(sales) = self.retrying(async || Ok(gate.sales().await?)).await? else { return Ok(()) };
        for sale in sales {
            store.observe_place(&sale, place);
            let heard = self.retrying(async || match gate.witness(&sale, place).await {
                Ok(_) | Err(GateError::NotLoaded) => Ok(()),
                Err(error) => Err(error.into()),
            });
            heard.await?;
        }
        Ok(())
    }

    /// Called after the last pass. Begins a new line if the database was behind and now has everything that the log
    /// says, or if the request accepts the loss of the rest.
    pub(super) async fn begin_line(&mut self) -> Result<(), ReplayError> {
        if self.run.is_none() || !self.report.was_behind || self.stop.is_cancelled() {
            return Ok(());
        }
        self.name_unknown_sales().await?;
        fault!("line.before", return Ok(()));
        let store = &self.replay.store;
        let position = self.retrying(async || Ok(store.replay_from().await?)).await?.flatten();
        if self.request.source == Source::Log {
            // The log may have been lost or cut since the replay began, and then no pass has read what it had.
            let begins = self.retrying(async || self.log_begins_after(&self.request.filter).await).await?;
            self.report.begins_at = begins.flatten().max(self.report.begins_at);
        }
        let everything = self.report.counts.left() == 0 && self.reaches_back_to(position);
        if !(everything || self.request.accept_loss) {
            return Ok(());
        }
        self.report.loss_accepted = !everything;
        let begun = self.retrying(async || Ok(store.begin_line().await?)).await?;
        let Some(line) = begun else { return Ok(()) };
        self.report.line = Some(line.ok_or(ReplayError::RestoredMeanwhile)?);
        // The other processes learn it from the database within a second, and maintenance does what fails here.
        if let Err(error) = compare_places(&self.replay.gate, store).await {
            tracing::debug!(%error, "the gate learns of the new line later");
        }
        self.finish_returns().await;
        Ok(())
    }

    /// A sale that the gate has witnessed, and neither the log nor the database knows, is lost with all its orders.
    async fn name_unknown_sales(&mut self) -> Result<(), ReplayError> {
        let store = &self.replay.store;
        let Some(lost) = self.retrying(async || Ok(store.places_lost().await?)).await? else { return Ok(()) };
        for (sale, _) in lost {
            let known = self.retrying(async || Ok(store.sale(&sale).await?.is_some())).await?;
            if known == Some(false) && !self.report.sales.contains(&sale) {
                self.report.counts.refused += 1;
                self.report.trouble(format!("{sale}: neither the log nor the database knows this sale"));
            }
        }
        Ok(())
    }

    /// The gate has taken most units of ended orders back before the database lost their ends. Until the database knows
    /// that, the books count them twice.
    async fn finish_returns(&self) {
        let mut unavailable = Vec::new();
        loop {
            let (gate, store) = (&self.replay.gate, &self.replay.store);
            match give_back_pending(gate, store, RETURNS, &mut unavailable, &|| Box::pin(async {})).await {
                Ok(given) if given.more && !self.stop.is_cancelled() => {}
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!(%error, "returning units left to maintenance");
                    return;
                }
            }
        }
    }

    /// Whether the replay has read everything from the database's position on.
    fn reaches_back_to(&self, position: Option<Millis>) -> bool {
        let filter = &self.request.filter;
        let not_later = |at: Millis| position.is_some_and(|position| at <= position);
        filter.is_whole()
            && filter.offset.is_none()
            && filter.since.is_none_or(not_later)
            && self.report.begins_at.is_none_or(not_later)
    }
}

impl Filter {
    /// Whether the filter lets everything pass from its beginning on.
    pub(super) fn is_whole(&self) -> bool {
        let Self { sale, user, order, reason, since: _, offset: _, until, limit } = self;
        sale.is_none()
            && user.is_none()
            && order.is_none()
            && reason.is_none()
            && until.is_none()
            && limit.is_none()
    }
}
