//! `sale`: creating and steering sales, straight on Redis and the database.

use super::{Ended, Failed};
use crate::control::{Control, SaleStatus};
use crate::domain::{Item, Millis, Sale, SaleId, Sku, Window};
use crate::process::Parts;
use crate::process::config::Config;

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
    /// Load a draft into the gate and let it sell inside its window.
    Open { sale: String },
    /// Take no orders until it is resumed.
    Pause { sale: String },
    /// Go on after a pause.
    Resume { sale: String },
    /// End it for good.
    Close { sale: String },
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
    /// RFC 3339; now, if it is left out.
    #[arg(long)]
    opens_at: Option<Millis>,
    /// RFC 3339; open until it is closed, if it is left out.
    #[arg(long)]
    closes_at: Option<Millis>,
    /// Units per buyer.
    #[arg(long, default_value_t = 1)]
    limit: u32,
}

#[derive(Debug, clap::Args)]
pub(super) struct Output {
    #[arg(long, default_value = "text", value_parser = ["text", "json"])]
    output: String,
}

pub(super) async fn run(config: &Config, verb: Verb) -> Result<Ended, Failed> {
    let parts = Parts::open(config).await?;
    let control = Control::new(parts.gate, parts.store);
    let (sale, done) = match verb {
        Verb::Create(create) => return self::create(&control, create).await,
        Verb::List(output) => return list(&control, &output).await,
        Verb::Show { sale, output } => return show(&control, &sale.parse()?, &output).await,
        Verb::Open { sale } => (sale.clone(), control.open(&sale.parse()?).await),
        Verb::Pause { sale } => (sale.clone(), control.pause(&sale.parse()?).await),
        Verb::Resume { sale } => (sale.clone(), control.resume(&sale.parse()?).await),
        Verb::Close { sale } => (sale.clone(), control.close(&sale.parse()?).await),
    };
    done?;
    let status = control.show(&sale.parse()?).await?;
    println!("{sale} is {}", status.state());
    Ok(Ended::Done)
}

async fn create(control: &Control, create: Create) -> Result<Ended, Failed> {
    let id: SaleId = create.sale.parse()?;
    let mut items = Vec::with_capacity(create.items.len());
    for item in &create.items {
        let wrong = || Failed::Usage(format!("--item {item}: write it as SKU=STOCK, such as shoe=500"));
        let (sku, stock) = item.split_once('=').ok_or_else(wrong)?;
        items.push(Item { sku: sku.parse()?, stock: stock.parse().map_err(|_| wrong())? });
    }
    let sale = Sale {
        name: create.name.unwrap_or_else(|| id.to_string()),
        window: Window { opens_at: create.opens_at.unwrap_or_else(Millis::now), closes_at: create.closes_at },
        limit_per_user: create.limit,
        items,
        id,
    };
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
    if let Some(gate) = &status.gate {
        println!("in flight       {}", gate.waiting);
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
        "in_flight": status.gate.as_ref().map(|gate| gate.waiting),
        "items": row.items.iter().map(|item| serde_json::json!({
            "sku": item.sku, "stock": item.stock, "sold": item.sold,
            "left": gate_item(&item.sku).map(|held| held.left),
        })).collect::<Vec<_>>(),
    })
}
