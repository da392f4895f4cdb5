//! What the order log adds: an order that only the gate holds may be lost rather than leaked.

use std::collections::{HashMap, HashSet};

use super::difference::{Difference, DifferenceKind};
use crate::audit::AuditError;
use crate::domain::{CLOCK_SKEW, Entry, Order, OrderId, SaleId};
use crate::queue::{LogFrom, OrderLog};
use crate::recovery::reach::log_begins_at;
use crate::store::Store;

/// Looks up every seemingly leaked order in the log. If the log has the accepted order, it is `Lost` and can be
/// published as it was; if the log has its row, the database is behind. If the log no longer has the time of the order,
/// or entries that this build cannot read, it may be any of these.
pub(super) async fn refine(
    log: &OrderLog,
    store: &Store,
    sale: &SaleId,
    differences: &mut [Difference],
) -> Result<(), AuditError> {
    let leaked = || differences.iter().filter(|difference| difference.why == DifferenceKind::Leaked);
    let Some(oldest) = leaked().filter_map(|difference| difference.order_id.generated_at()).min() else {
        return Ok(());
    };
    let wanted: HashSet<OrderId> = leaked().map(|difference| difference.order_id).collect();
    let mut accepted: HashMap<OrderId, Order> = HashMap::new();
    let mut recorded: HashSet<OrderId> = HashSet::new();
    let begins_at = log_begins_at(log, store).await?;
    let mut unreadable = 0;
    let mut reader = log.read(LogFrom::Time(oldest.minus(CLOCK_SKEW))).await?;
    while let Some(message) = reader.next().await? {
        for entry in message.entries {
            match entry {
                Err(_) => unreadable += 1,
                Ok(Entry::Accepted(order)) if order.sale == *sale && wanted.contains(&order.id) => {
                    accepted.insert(order.id, order);
                }
                Ok(Entry::Order(entry)) if wanted.contains(&entry.order.id) => {
                    recorded.insert(entry.order.id);
                }
                _ => {}
            }
        }
    }
    reader.close().await;
    let has_time_of = |id: OrderId| {
        begins_at.is_none_or(|begins_at| id.generated_at().is_some_and(|at| at > begins_at.plus(CLOCK_SKEW)))
    };
    for difference in differences.iter_mut().filter(|difference| difference.why == DifferenceKind::Leaked) {
        if recorded.contains(&difference.order_id) {
            difference.why = DifferenceKind::DatabaseBehind;
        } else if let Some(order) = accepted.remove(&difference.order_id) {
            (difference.why, difference.order) = (DifferenceKind::Lost, order);
        } else if unreadable > 0 || !has_time_of(difference.order_id) {
            difference.why = DifferenceKind::Unproven;
        }
    }
    Ok(())
}
