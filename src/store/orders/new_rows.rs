//! The first row of an order, for each way that an order can begin.

use sea_orm::ActiveValue::Set;
use uuid::Uuid;

use super::claim::Claim;
use crate::domain::{Failure, Millis, OrderStatus};
use crate::store::entities::order;

/// The version of a row that was just inserted.
pub(in crate::store) const FIRST_VERSION: i32 = 1;

/// The row of an order that a worker records.
pub(in crate::store) fn confirmed_row(
    claim: &Claim,
    attempt: Uuid,
    now: Millis,
    pay_by: Option<Millis>,
) -> order::ActiveModel {
    let order = &claim.order;
    order::ActiveModel {
        id: Set(order.id.uuid()),
        sale_id: Set(order.sale.to_string()),
        user_id: Set(order.user.to_string()),
        sku: Set(order.sku.to_string()),
        quantity: Set(i32::try_from(order.quantity).unwrap_or(i32::MAX)),
        status: Set(OrderStatus::Confirmed.as_str().into()),
        failure: Set(None),
        // Epochs begin at 1: epoch 0 means that the number is unknown.
        epoch: Set((order.number.epoch > 0).then_some(order.number.epoch)),
        seq: Set((order.number.epoch > 0).then_some(order.number.seq)),
        limit_per_user: Set(i32::try_from(order.limit).unwrap_or(i32::MAX)),
        fence: Set(claim.fence),
        attempt_id: Set(Some(attempt)),
        key_digest: Set(order.key.to_string()),
        live_key: Set(Some(order.key.to_string())),
        fingerprint: Set(order.fingerprint.to_string()),
        version: Set(FIRST_VERSION),
        accepted_at_ms: Set(order.accepted_at.0),
        recorded_at_ms: Set(now.0),
        updated_at_ms: Set(now.0),
        pay_by_ms: Set(pay_by.map(|pay_by| pay_by.0)),
    }
}

/// The row of an order that ended before a worker wrote its row. It keeps its number.
pub(in crate::store) fn ended_row(claim: &Claim, status: OrderStatus, attempt: Uuid) -> order::ActiveModel {
    let mut row = confirmed_row(claim, attempt, Millis::now(), None);
    row.status = Set(status.as_str().into());
    row.live_key = Set(None);
    row
}

/// The row of an order that the database refused.
pub(in crate::store) fn failed_row(claim: &Claim, failure: Failure, attempt: Uuid) -> order::ActiveModel {
    let mut row = confirmed_row(claim, attempt, Millis::now(), None);
    row.status = Set(OrderStatus::Failed.as_str().into());
    row.failure = Set(Some(failure.as_str().into()));
    row.live_key = Set(None);
    if failure == Failure::NumberReused {
        // The other order has its number, which is unique.
        row.epoch = Set(None);
        row.seq = Set(None);
    }
    row
}
