//! An operator's acts on a sale, directly on Redis and the database.

use super::args::ActVerb;
use crate::cli::ended::{Ended, Failed};
use crate::control::{Control, ControlError};
use crate::domain::{ActRequest, IdempotencyKey, SaleId, Sku};
use crate::store::SaleAct;

pub(super) async fn act(control: &Control, verb: ActVerb) -> Result<Ended, Failed> {
    let done = apply(control, verb).await?;
    let status = control.show(&done.sale).await?;
    match done.kind.as_str() {
        "purge" => say!("{}: its orders are deleted", done.sale),
        "restock" | "change" => say!("{}: {}", done.sale, done.result.unwrap_or_default()),
        _ => say!("{} is {}", done.sale, status.state()),
    }
    Ok(Ended::Done)
}

async fn apply(control: &Control, verb: ActVerb) -> Result<SaleAct, Failed> {
    let done = match verb {
        ActVerb::Open(act) => {
            let (sale, request) = act.read()?;
            control.open(&sale, &request).await
        }
        ActVerb::Pause { act, message } => {
            let (sale, request) = act.read()?;
            control.pause(&sale, message, &request).await
        }
        ActVerb::Resume(act) => {
            let (sale, request) = act.read()?;
            control.resume(&sale, &request).await
        }
        ActVerb::Close(act) => {
            let (sale, request) = act.read()?;
            control.close(&sale, &request).await
        }
        ActVerb::Archive(act) => {
            let (sale, request) = act.read()?;
            control.archive(&sale, &request).await
        }
        ActVerb::Purge { yes: false, .. } => {
            return Err(Failed::Usage("this cannot be undone: add --yes".into()));
        }
        ActVerb::Purge { act, .. } => {
            let (sale, request) = act.read()?;
            control.purge(&sale, &request).await
        }
        ActVerb::Restock { act, sku, units } => {
            let (sale, request) = act.read()?;
            restock(control, &sale, (&sku.parse()?, units), request).await
        }
        ActVerb::Change { act, terms } => {
            let (sale, request) = act.read()?;
            control.change_terms(&sale, &terms.change()?, &request).await
        }
    };
    Ok(done?)
}

/// Always uses a key, so that a restock whose outcome is unknown can be repeated safely.
async fn restock(
    control: &Control,
    sale: &SaleId,
    (sku, units): (&Sku, i64),
    request: ActRequest,
) -> Result<SaleAct, ControlError> {
    let key = request.key.clone().unwrap_or_else(IdempotencyKey::generate);
    let request = ActRequest { key: Some(key.clone()), ..request };
    let done = control.restock(sale, sku, units, &request).await;
    if matches!(done, Err(ControlError::Gate(_) | ControlError::Store(_) | ControlError::Busy)) {
        eprintln!("it may have been done: to be sure, repeat it with --key {key}");
    }
    done
}
