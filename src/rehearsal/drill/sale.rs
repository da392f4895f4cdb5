//! The drill's own sale: created and opened before the crowd comes, closed before the books are read.

use std::time::Duration;

use tokio::time::Instant;

use super::admin::Admin;
use super::error::DrillError;
use super::operator::insist;
use super::plan::Plan;
use crate::domain::{Invalid, Item, LatePayment, SaleId, Terms};

/// Creates and opens a sale under a new id. With `insists`, each act is repeated while a server is away.
pub(super) async fn open(admin: &Admin, plan: &Plan, insists: bool) -> Result<SaleId, DrillError> {
    let id = format!("{}-{:08x}", plan.name, rand::random::<u32>());
    let invalid =
        |error: Invalid| DrillError::Call { call: "naming the sale".into(), why: error.to_string() };
    let sale: SaleId = id.parse().map_err(invalid)?;
    let item = |(sku, stock): (String, i64)| {
        Ok(Item { sku: sku.parse().map_err(invalid)?, stock, limit_per_user: None })
    };
    let items = plan.stock().into_iter().map(item).collect::<Result<Vec<_>, DrillError>>()?;
    let body = serde_json::json!({
        "sale_id": sale,
        "name": format!("Drill: {}", plan.name),
        "limit_per_user": plan.limit,
        "rules": terms(plan),
        "items": items,
    });
    let opening = format!("/v1/admin/sales/{sale}:open");
    if !insists {
        admin.post("/v1/admin/sales", Some(body)).await?;
        admin.post(&opening, None).await?;
        return Ok(sale);
    }
    // Whose answer was lost may have been created.
    let (created, _) = insist(admin, "/v1/admin/sales", "create", &body).await;
    let opened = match created.as_str() {
        "done" | "sale_exists" => insist(admin, &opening, "open", &serde_json::json!({})).await.0,
        _ => created,
    };
    match opened.as_str() {
        "done" => Ok(sale),
        _ => Err(DrillError::Call { call: format!("creating and opening {sale}"), why: opened }),
    }
}

fn terms(plan: &Plan) -> Terms {
    match &plan.follow_up {
        None => Terms::default(),
        Some(follow_up) => Terms {
            pay_within_s: Some(follow_up.pay_within_s),
            rebuy: follow_up.rebuy,
            late_payment: if follow_up.rebuy { LatePayment::Retake } else { LatePayment::Refund },
            ..Terms::default()
        },
    }
}

/// Closes the sale before the books are read: an order admitted later would not be judged. With `retry`, tries again
/// until `plan.settle_within` has passed, in case a server is just coming back.
pub(super) async fn close(admin: &Admin, sale: &SaleId, plan: &Plan, retry: bool) -> Result<(), DrillError> {
    let until = Instant::now() + plan.settle_within;
    while let Err(error) = admin.post(&format!("/v1/admin/sales/{sale}:close"), None).await {
        if !retry || Instant::now() > until {
            return Err(error);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
