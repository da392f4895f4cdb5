//! `GET /v1/admin/sales/{sale}/events`: a frame a second, with what an operator looks at while a sale sells.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use tokio::time::Instant;

use super::errors::control_problem;
use super::views::AdminSaleJson;
use crate::control::SaleStatus;
use crate::domain::{Millis, SaleId, SaleState};
use crate::front::auth::Role;
use crate::front::events::{Client, Frame, Frames, answer, ends_at, follow, no_room};
use crate::front::problem::{Answered, respond_to_operator};
use crate::front::request::{PathOf, in_path, sale_id};
use crate::front::state::Operations;
use crate::queue::Depths;

/// A sale as it is now, and what moves.
#[derive(Serialize)]
struct SaleFrame<'a> {
    /// When it was read, by the clock of this process.
    at: Millis,
    sale: AdminSaleJson<'a>,
    /// Units that Redis sold since the frame before, per second; negative if more came back. Not in the first frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    sold_per_second: Option<f64>,
    /// Units whose rows were written since the frame before, per second; negative if more orders ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded_per_second: Option<f64>,
    /// What waits at the broker, of all sales; a few seconds old, and not there while the broker is away.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<Waiting>,
    /// How many workers take orders, of all sales; as old as `queue`, and not there either while the broker is away.
    #[serde(skip_serializing_if = "Option::is_none")]
    workers: Option<u32>,
    /// What a person has to look at.
    attention: Vec<Attention>,
}

/// Messages at the broker.
#[derive(Serialize)]
struct Waiting {
    /// On the queue of orders.
    orders: u32,
    /// On the dead-letter queue.
    dead: u32,
}

/// What a person has to look at.
#[derive(Serialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Attention {
    /// The sale sells nothing until it is rebuilt.
    NeedsRebuild,
    /// The database has lost commits: a replay of the order log brings it up to date.
    DatabaseBehind,
    /// Messages that no worker could process.
    DeadLetters,
    /// The broker is away, or its queues could not be counted.
    QueueUnknown,
    /// The sale is open, and no worker takes its orders.
    NoWorker,
    /// More orders hold units than there are.
    Oversold,
}

pub(super) async fn sale_events(
    State(app): State<Arc<Operations>>,
    path: PathOf<String>,
    headers: HeaderMap,
) -> Response {
    respond_to_operator(open(app, path, &headers).await, &headers)
}

async fn open(app: Arc<Operations>, path: PathOf<String>, headers: &HeaderMap) -> Answered {
    app.tokens.operator(headers, Role::Viewer).await?;
    let sale = sale_id(&in_path(path)?)?;
    let client = Client::new(headers, app.room.for_operator().map_err(no_room)?, app.stop.clone());
    let client = client.until(ends_at());
    let frames = ForOperators { app: app.clone(), sale: sale.clone(), before: None };
    Ok(answer(follow(&app.streams, sale, frames, client).await?, "no-store"))
}

/// The sale as an operator reads it.
struct ForOperators {
    app: Arc<Operations>,
    sale: SaleId,
    before: Option<Counts>,
}

impl Frames for ForOperators {
    async fn read(&mut self) -> Answered<Frame> {
        let status = match self.app.control.show(&self.sale).await {
            Ok(status) => status,
            // The stream goes on, and says why there is no frame.
            Err(error) if self.before.is_some() => return Ok(unreadable(&error.to_string())),
            Err(error) => return Err(control_problem(error)),
        };
        let counts = Counts::of(&status);
        let before = self.before.replace(counts);
        let depths = (self.app.depths)();
        let attention = attention(&status, depths, self.app.store.ensure_current().await.is_err());
        let at = Millis::now();
        let frame = SaleFrame {
            at,
            sale: AdminSaleJson::of(&status),
            sold_per_second: before.and_then(|before| counts.sold_since(&before)),
            recorded_per_second: before.map(|before| counts.recorded_since(&before)),
            queue: depths.map(|depths| Waiting { orders: depths.orders, dead: depths.dead }),
            workers: depths.map(|depths| depths.workers),
            attention,
        };
        let json = serde_json::to_string(&frame).unwrap_or_default();
        Ok(Frame { event: "sale", id: at.0.to_string().into(), json: json.into() })
    }
}

/// A server does not answer.
fn unreadable(why: &str) -> Frame {
    let at = Millis::now();
    let json = serde_json::json!({ "at": at, "detail": why }).to_string();
    Frame { event: "unreadable", id: at.0.to_string().into(), json: json.into() }
}

fn attention(status: &SaleStatus, depths: Option<Depths>, is_behind: bool) -> Vec<Attention> {
    let is_open = status.state() == SaleState::Open;
    let is_oversold = status.row.items.iter().any(|item| item.sold > item.stock);
    let found = [
        (status.needs_rebuild(), Attention::NeedsRebuild),
        (is_behind, Attention::DatabaseBehind),
        (depths.is_some_and(|depths| depths.dead > 0), Attention::DeadLetters),
        (is_open && depths.is_none(), Attention::QueueUnknown),
        (is_open && depths.is_some_and(|depths| depths.workers == 0), Attention::NoWorker),
        (is_oversold, Attention::Oversold),
    ];
    found.into_iter().filter_map(|(is_so, what)| is_so.then_some(what)).collect()
}

/// Units at one moment.
#[derive(Clone, Copy)]
struct Counts {
    at: Instant,
    /// Sold by the gate, if it has the sale.
    sold: Option<i64>,
    recorded: i64,
}

impl Counts {
    fn of(status: &SaleStatus) -> Self {
        let sold = |gate: &crate::gate::GateSale| gate.items.iter().map(|item| item.stock - item.left).sum();
        let recorded = status.row.items.iter().map(|item| item.sold).sum();
        Self { at: Instant::now(), sold: status.gate.as_ref().map(sold), recorded }
    }

    fn sold_since(&self, before: &Self) -> Option<f64> {
        Some(self.per_second(self.sold? - before.sold?, before))
    }

    fn recorded_since(&self, before: &Self) -> f64 {
        self.per_second(self.recorded - before.recorded, before)
    }

    fn per_second(&self, units: i64, before: &Self) -> f64 {
        // A tenth is as exact as a frame can be.
        (units as f64 / (self.at - before.at).as_secs_f64().max(0.001) * 10.0).round() / 10.0
    }
}
