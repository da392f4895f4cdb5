//! `sale`: creates, shows and controls sales, directly on Redis and the database.

mod act;
mod args;
mod check;
mod create;
mod show;

pub(super) use self::args::Verb;
use super::ended::{Ended, Failed};
use crate::control::Control;
use crate::process::{Config, Parts};
use crate::settlement::{SettlementError, compare_places};
use crate::store::StoreError;

pub(super) async fn run(config: &Config, verb: Verb) -> Result<Ended, Failed> {
    let parts = Parts::open(config).await?;
    if matches!(verb, Verb::List(_) | Verb::Show { .. } | Verb::Acts { .. })
        && let Err(SettlementError::Store(behind @ StoreError::Behind(_))) =
            compare_places(&parts.gate, &parts.store).await
    {
        eprintln!("doorbuster: {behind}");
    }
    let control = Control::new(parts.gate, parts.store);
    match verb {
        Verb::Create(create) => create::create(&control, create).await,
        Verb::List(output) => show::list(&control, &output).await,
        Verb::Show { sale, output } => show::show(&control, &sale.parse()?, &output).await,
        Verb::Check { sale, output } => check::check(config, &control, &sale.parse()?, &output).await,
        Verb::Acts { sale, output } => show::acts(&control, &sale.parse()?, &output).await,
        Verb::Act(verb) => act::act(&control, verb).await,
    }
}
