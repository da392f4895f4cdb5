//! Makes a drill's plan from the options.

use std::time::Duration;

use super::args::{Args, Which};
use crate::cli::ended::Failed;
use crate::rehearsal::drill::{Arrival, Plan, Preset, Steering};

pub(super) fn plan(args: &Args) -> Result<Plan, Failed> {
    let mut plan = match args.drill {
        Which::Oversell => Preset::Oversell,
        Which::Duplicate => Preset::Duplicate,
        // The chaos drill has a separate plan, and the judge needs none.
        Which::Rush | Which::Chaos | Which::Judge => Preset::Rush,
        Which::Returns => Preset::Returns,
    }
    .plan();
    match (args.pay_within, &mut plan.follow_up) {
        (Some(seconds), Some(follow_up)) => follow_up.pay_within_s = seconds,
        (Some(_), None) => {
            return Err(Failed::Usage("--pay-within belongs to drill returns: leave it out".into()));
        }
        (None, _) => {}
    }
    if args.live_control {
        if !matches!(args.drill, Which::Rush) {
            return Err(Failed::Usage("--live-control belongs to drill rush: leave it out".into()));
        }
        plan.steering = Some(Steering::EachActOnce { pause: Duration::from_millis(400) });
    }
    if matches!(args.drill, Which::Duplicate) && args.buyers.is_some() {
        return Err(Failed::Usage("drill duplicate always has two buyers: leave out --buyers".into()));
    }
    plan.units = args.units.unwrap_or(plan.units);
    plan.buyers = args.buyers.unwrap_or(plan.buyers);
    plan.arrival = args.rate.map_or(plan.arrival, |rate| Arrival::PerSecond(f64::from(rate)));
    plan.connections = args.connections.map_or(plan.connections, |connections| connections as usize);
    if let Some(seconds) = args.settle_within {
        plan.settle_within = Duration::from_secs(u64::from(seconds));
    }
    Ok(plan)
}
