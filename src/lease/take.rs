//! One call that takes leases. It runs to its end in the background, so a caller that stops waiting leaves nothing
//! behind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::LeaseError;
use super::core::{Core, joined};
use super::guard::Guard;
use super::held::Acquisition;
use super::request::Request;
use super::wire::NameReply;
use crate::link::Fault;

/// How long a request without a reply may still be on its way: connections are given up long before.
const IN_TRANSIT: Duration = Duration::from_secs(60);

/// The reply to one call.
pub(super) struct TakeReply {
    /// In the order of the request's names: whether it was taken.
    pub(super) held: Vec<bool>,
    /// In the same order: how long someone else may still hold it, unless the lease is renewed.
    pub(super) busy_for: Vec<Option<Duration>>,
    /// Of the names that were taken. `None` if there were none.
    pub(super) guard: Option<Guard>,
}

/// Calls the script once. If the caller drops this future, the call still runs to its end, and the leases that it took
/// are released.
pub(super) async fn take(core: &Arc<Core>, request: Request) -> Result<TakeReply, LeaseError> {
    core.record_scope(&request.scope);
    // Counts as a task until the caller has the reply: see `Leases::wait_until_idle`.
    let counted = core.tasks.token();
    let background = core.clone();
    let taking = core.in_background(async move { (call(&background, request).await, counted) });
    let (reply, _counted) = joined(taking.await)?;
    let reply = reply?;
    Ok(TakeReply { guard: reply.guard.map(Guard::handed_over), ..reply })
}

async fn call(core: &Arc<Core>, request: Request) -> Result<TakeReply, LeaseError> {
    let owner = format!("{:032x}", rand::random::<u128>());
    // Taken before the request: Redis starts counting later than this.
    let sent = Instant::now();
    let ended = core.sightings.ended(&request, sent);
    match core.wire.take(&request, (&owner, &core.holder), &ended).await {
        Ok(names) => {
            let busy_for = see(core, &request, &names);
            let held = names.iter().map(|reply| matches!(reply, NameReply::Taken(_))).collect();
            let guard = taken(request, &names).map(|(taken, token)| {
                core.sightings.forget(&taken.scope, taken.names.iter());
                let held = Arc::new(Acquisition::new(taken, owner, token, sent));
                Guard::new(core, held)
            });
            Ok(TakeReply { held, busy_for, guard })
        }
        Err(fault) => {
            if may_have_run(&fault) {
                release_unseen(core, request, owner, sent);
            }
            Err(fault.into())
        }
    }
}

/// For each name that someone else holds: how long, as far as this process knows.
fn see(core: &Core, request: &Request, replies: &[NameReply]) -> Vec<Option<Duration>> {
    let now = Instant::now();
    let left = |(name, reply): (&String, &NameReply)| match reply {
        NameReply::Busy(held) => Some(core.sightings.see(&request.scope, name, *held, now)),
        NameReply::Taken(_) | NameReply::Free => None,
    };
    request.names.iter().zip(replies).map(left).collect()
}

/// The request reduced to the names that were taken, and their token.
fn taken(request: Request, replies: &[NameReply]) -> Option<(Request, i64)> {
    let token = replies.iter().find_map(|reply| match reply {
        NameReply::Taken(token) => Some(*token),
        NameReply::Free | NameReply::Busy(_) => None,
    })?;
    let is_taken = |reply: &NameReply| matches!(reply, NameReply::Taken(_));
    let names = request.names.into_iter().zip(replies).filter(|(_, reply)| is_taken(reply));
    Some((Request { names: names.map(|(name, _)| name).collect(), ..request }, token))
}

fn may_have_run(fault: &Fault) -> bool {
    !matches!(fault, Fault::Unavailable(_) | Fault::Full(_) | Fault::NoScript)
}

/// The names may have been taken. Nobody has a guard for them, so nobody else would release them.
fn release_unseen(core: &Arc<Core>, request: Request, owner: String, sent: Instant) {
    let request = Request { options: request.options.without_min_hold(), ..request };
    let held = Acquisition::new(request, owner, 0, sent);
    // Retried until it has found one of them, or until the request can no longer be on its way.
    let until = sent + held.options.initial_duration().min(IN_TRANSIT);
    core.release_in_background(held.into(), Duration::ZERO, until, |released| released.contains(&true));
}
