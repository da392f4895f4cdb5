//! `sale`: creating and steering sales, straight on Redis and the database.

use super::terms::{TermsArgs, Why};
use super::{Ended, Failed};
use crate::control::{Check, Control, ControlError, SaleStatus};
use crate::domain::{ActRequest, IdempotencyKey, Item, Millis, Sale, SaleId, Sku, Terms, Window};
use crate::process::Parts;
use crate::process::config::Config;
use crate::store::ActState;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Create a draft.
    Create(Create),
    /// List the sales, the newest first.
    List(Output),
    /// Show one sale, as gate and database see it.
    Show {
        sale: String,
        #[command(flatten)]
        output: Output,
    },
    /// Look whether a sale is ready for its buyers: servers, clocks, settings, keys and stock.
    Check {
        sale: String,
        #[command(flatten)]
        output: Output,
    },
    /// Load a draft into the gate and let it sell inside its window.
    Open(Act),
    /// Take no orders until it is resumed.
    Pause {
        #[command(flatten)]
        act: Act,
        /// Told to buyers meanwhile.
        #[arg(long)]
        message: Option<String>,
    },
    /// Go on after a pause.
    Resume(Act),
    /// Add units of an item, or take away such as are neither sold nor in flight.
    Restock {
        #[command(flatten)]
        act: Act,
        sku: String,
        /// Such as +50 or -20.
        #[arg(allow_negative_numbers = true)]
        units: i64,
    },
    /// Change window, limits and rules, while it sells too.
    Change {
        #[command(flatten)]
        act: Act,
        #[command(flatten)]
        terms: TermsArgs,
    },
    /// End it for good.
    Close(Act),
    /// List what was done to it, the newest first.
    Acts {
        sale: String,
        #[command(flatten)]
        output: Output,
    },
    /// Take a closed sale whose books balance out of Redis. Its rows stay.
    Archive(Act),
    /// Forget the orders of an archived sale, and who placed them.
    Purge {
        #[command(flatten)]
        act: Act,
        /// It cannot be undone.
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Act {
    sale: String,
    #[command(flatten)]
    why: Why,
    /// What is asked for again with the same key is done once.
    #[arg(long)]
    key: Option<IdempotencyKey>,
}

impl Act {
    fn read(self) -> Result<(SaleId, ActRequest), Failed> {
        let asked = ActRequest { key: self.key, ..self.why.asked() };
        Ok((self.sale.parse()?, asked))
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct Create {
    /// The sale's id: a-z, 0-9 and '-'.
    sale: String,
    /// What is sold, and how many units. May be repeated.
    #[arg(long = "item", required = true, value_name = "SKU=STOCK")]
    items: Vec<String>,
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    terms: TermsArgs,
}

/// Acts in one listing.
const LISTED: u64 = 1_000;

#[derive(Debug, clap::Args)]
pub(super) struct Output {
    #[arg(long, default_value = "text", value_parser = ["text", "json"])]
    output: String,
}

pub(super) async fn run(config: &Config, verb: Verb) -> Result<Ended, Failed> {
    let parts = Parts::open(config).await?;
    let control = Control::new(parts.gate, parts.store);
    let done = match verb {
        Verb::Create(create) => return self::create(&control, create).await,
        Verb::List(output) => return list(&control, &output).await,
        Verb::Show { sale, output } => return show(&control, &sale.parse()?, &output).await,
        Verb::Check { sale, output } => return check(config, &control, &sale.parse()?, &output).await,
        Verb::Acts { sale, output } => return acts(&control, &sale.parse()?, &output).await,
        Verb::Open(act) => {
            let (sale, asked) = act.read()?;
            control.open(&sale, &asked).await?
        }
        Verb::Pause { act, message } => {
            let (sale, asked) = act.read()?;
            control.pause(&sale, message, &asked).await?
        }
        Verb::Resume(act) => {
            let (sale, asked) = act.read()?;
            control.resume(&sale, &asked).await?
        }
        Verb::Close(act) => {
            let (sale, asked) = act.read()?;
            control.close(&sale, &asked).await?
        }
        Verb::Purge { yes: false, .. } => {
            return Err(Failed::Usage("this cannot be undone: say --yes".into()));
        }
        Verb::Purge { act, .. } => {
            let (sale, asked) = act.read()?;
            control.purge(&sale, &asked).await?
        }
        Verb::Archive(act) => {
            let (sale, asked) = act.read()?;
            control.archive(&sale, &asked).await?
        }
        Verb::Restock { act, sku, units } => {
            let (sale, asked) = act.read()?;
            // A key of its own, so that what fails half way can be asked for again.
            let key = asked.key.clone().unwrap_or_else(IdempotencyKey::generate);
            let asked = ActRequest { key: Some(key.clone()), ..asked };
            let done = control.restock(&sale, &sku.parse()?, units, &asked).await;
            if matches!(done, Err(ControlError::Gate(_) | ControlError::Store(_) | ControlError::Busy)) {
                eprintln!("it may be done: to be sure, do it again with --key {key}");
            }
            done?
        }
        Verb::Change { act, terms } => {
            let (sale, asked) = act.read()?;
            control.change_terms(&sale, &terms.amendment()?, &asked).await?
        }
    };
    let status = control.show(&done.sale).await?;
    match done.kind.as_str() {
        "purge" => println!("{}: its orders are forgotten", done.sale),
        "restock" | "change" => println!("{}: {}", done.sale, done.result.unwrap_or_default()),
        _ => println!("{} is {}", done.sale, status.state()),
    }
    Ok(Ended::Done)
}

async fn acts(control: &Control, sale: &SaleId, output: &Output) -> Result<Ended, Failed> {
    let acts = control.acts(sale, LISTED).await?;
    if output.output == "json" {
        println!("{}", serde_json::json!({ "acts": acts }));
        return Ok(Ended::Done);
    }
    println!("{:<25} {:<9} {:<8} {:<20} WHAT", "AT", "ACT", "STATE", "BY");
    for act in acts {
        let what = if act.args == "{}" { String::new() } else { format!("{} ", act.args) };
        let result = act.result.unwrap_or_else(|| "not known to be done; ask again with the same key".into());
        let reason = act.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        let state = match act.state {
            ActState::Pending => "pending",
            ActState::Done => "done",
            ActState::Refused => "refused",
        };
        println!("{:<25} {:<9} {:<8} {:<20} {what}{result}{reason}", act.at, act.kind, state, act.by);
    }
    Ok(Ended::Done)
}

async fn check(config: &Config, control: &Control, sale: &SaleId, output: &Output) -> Result<Ended, Failed> {
    let mut checks = control.check(sale).await?;
    checks.push(broker(config).await);
    let ready = checks.iter().all(|check| check.good);
    if output.output == "json" {
        println!("{}", serde_json::json!({ "sale_id": sale, "ready": ready, "checks": checks }));
    } else {
        for check in &checks {
            println!("{:<5} {:<16} {}", if check.good { "ok" } else { "WRONG" }, check.what, check.said);
        }
        println!("{sale} is {}", if ready { "ready" } else { "not ready" });
    }
    Ok(if ready { Ended::Done } else { Ended::ItemsLeft })
}

/// Connects as a front does, which declares and compares exchanges and queues.
async fn broker(config: &Config) -> Check {
    let publisher = crate::queue::Publisher::open(config.queue());
    let up = tokio::time::timeout(BROKER_WITHIN, publisher.wait_until_up()).await.is_ok();
    let said = match up {
        true => "answers, and its exchanges and queues are as they must be".to_owned(),
        false => {
            format!("could not be used within {BROKER_WITHIN:?}; is it running, and is queue.url right?")
        }
    };
    Check { what: "broker", good: up, said }
}

const BROKER_WITHIN: std::time::Duration = std::time::Duration::from_secs(10);

async fn create(control: &Control, create: Create) -> Result<Ended, Failed> {
    let id: SaleId = create.sale.parse()?;
    let mut items = Vec::with_capacity(create.items.len());
    for item in &create.items {
        let wrong = || Failed::Usage(format!("--item {item}: write it as SKU=STOCK, such as shoe=500"));
        let (sku, stock) = item.split_once('=').ok_or_else(wrong)?;
        let stock = stock.parse().map_err(|_| wrong())?;
        items.push(Item { sku: sku.parse()?, stock, limit_per_user: None });
    }
    let now = Millis::now();
    let plain = Sale {
        name: create.name.unwrap_or_else(|| id.to_string()),
        window: Window { opens_at: create.terms.opens_at().unwrap_or(now), closes_at: None },
        limit_per_user: 1,
        terms: Terms::default(),
        items,
        id,
    };
    let sale = create.terms.amendment()?.apply(&plain, now)?;
    control.create(&sale).await?;
    println!("created {}; open it with: doorbuster sale open {}", sale.id, sale.id);
    Ok(Ended::Done)
}

async fn list(control: &Control, output: &Output) -> Result<Ended, Failed> {
    let listed = control.list().await?;
    if output.output == "json" {
        let sales: Vec<_> = listed.iter().map(json).collect();
        println!("{}", serde_json::json!({ "sales": sales }));
        return Ok(Ended::Done);
    }
    if listed.is_empty() {
        println!("no sales yet; create one with: doorbuster sale create shoes --item shoe=500");
        return Ok(Ended::Done);
    }
    println!("{:<24} {:<8} {:<25} {:>10} {:>10}", "SALE", "STATE", "OPENS AT", "STOCK", "SOLD");
    for status in &listed {
        let row = &status.row;
        let (stock, sold) =
            row.items.iter().fold((0, 0), |(stock, sold), item| (stock + item.stock, sold + item.sold));
        println!(
            "{:<24} {:<8} {:<25} {stock:>10} {sold:>10}",
            row.sale.id,
            status.state(),
            row.sale.window.opens_at
        );
    }
    Ok(Ended::Done)
}

async fn show(control: &Control, sale: &SaleId, output: &Output) -> Result<Ended, Failed> {
    let status = control.show(sale).await?;
    if output.output == "json" {
        println!("{}", json(&status));
        return Ok(Ended::Done);
    }
    let row = &status.row;
    println!("sale            {}", row.sale.id);
    println!("name            {}", row.sale.name);
    println!("state           {}", status.state());
    println!("opens at        {}", row.sale.window.opens_at);
    println!(
        "closes at       {}",
        row.sale.window.closes_at.map_or("when it is closed".into(), |at| at.to_string())
    );
    println!("limit per user  {}", row.sale.limit_per_user);
    for (name, rule) in rules(&row.sale.terms) {
        println!("{name:<15} {rule}");
    }
    if let Some(gate) = &status.gate {
        println!("in flight       {}", gate.waiting);
    }
    for item in &row.sale.items {
        if let Some(limit) = item.limit_per_user {
            println!("limit of item   {limit} of {} per user", item.sku);
        }
    }
    println!("\n{:<24} {:>10} {:>10} {:>10}", "ITEM", "STOCK", "LEFT", "SOLD");
    for item in &row.items {
        let left = status.gate.iter().flat_map(|gate| &gate.items).find(|held| held.sku == item.sku);
        let left = left.map_or("-".into(), |held| held.left.to_string());
        println!("{:<24} {:>10} {left:>10} {:>10}", item.sku, item.stock, item.sold);
    }
    Ok(Ended::Done)
}

fn json(status: &SaleStatus) -> serde_json::Value {
    let row = &status.row;
    let gate_item = |sku: &Sku| status.gate.iter().flat_map(|gate| &gate.items).find(|held| held.sku == *sku);
    serde_json::json!({
        "sale_id": row.sale.id,
        "name": row.sale.name,
        "state": status.state(),
        "opens_at": row.sale.window.opens_at,
        "closes_at": row.sale.window.closes_at,
        "limit_per_user": row.sale.limit_per_user,
        "rules": row.sale.terms,
        "in_flight": status.gate.as_ref().map(|gate| gate.waiting),
        "items": row.items.iter().map(|item| serde_json::json!({
            "sku": item.sku, "stock": item.stock, "sold": item.sold,
            "left": gate_item(&item.sku).map(|held| held.left),
        })).collect::<Vec<_>>(),
    })
}

/// Those that are not as they are by default.
fn rules(rules: &Terms) -> Vec<(&'static str, String)> {
    let mut said = Vec::new();
    if let Some(seconds) = rules.pay_within_s {
        let late = rules.late_payment.as_str();
        said.push(("to be paid", format!("within {seconds} s of the confirmation; later: {late}")));
    }
    if !rules.rebuy {
        said.push(("buying again", "not after an order has ended".into()));
    }
    for (name, rate) in [("rate per user", rules.user_rate), ("rate of sale", rules.sale_rate)] {
        said.extend(rate.map(|rate| (name, rate.to_string())));
    }
    said.extend(rules.message.clone().map(|message| ("while paused", message)));
    said.extend(rules.retry_after_s.map(|seconds| ("try again after", format!("{seconds} s"))));
    said
}
