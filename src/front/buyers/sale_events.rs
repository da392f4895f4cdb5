//! `GET /v1/sales/{sale}/events`: what buyers may know of a sale, as server-sent events. A stream is written to only when
//! something has changed.

use std::net::IpAddr;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::read::with_sale;
use super::views::SaleJson;
use crate::domain::SaleId;
use crate::front::addresses::ClientAddress;
use crate::front::events::{Client, Frame, Frames, answer, follow, no_room};
use crate::front::problem::{Answered, respond};
use crate::front::request::{PathOf, in_path, sale_id};
use crate::front::state::Buyers;

pub(super) async fn sale_events(
    State(app): State<Arc<Buyers>>,
    Extension(ClientAddress(address)): Extension<ClientAddress>,
    path: PathOf<String>,
    headers: HeaderMap,
) -> Response {
    respond(open(app, address, path, &headers).await, &headers)
}

async fn open(
    app: Arc<Buyers>,
    address: Option<IpAddr>,
    path: PathOf<String>,
    headers: &HeaderMap,
) -> Answered {
    let sale = sale_id(&in_path(path)?)?;
    let client = Client::new(headers, app.room.for_anybody(address).map_err(no_room)?, app.stop.clone());
    let frames = ForBuyers { app: app.clone(), sale: sale.clone() };
    let events = follow(&app.streams, sale, frames, client).await?;
    // The same for everybody: a proxy may give one stream to many.
    Ok(answer(events, "public, max-age=0"))
}

/// The sale as a buyer reads it.
struct ForBuyers {
    app: Arc<Buyers>,
    sale: SaleId,
}

impl Frames for ForBuyers {
    async fn read(&mut self) -> Answered<Frame> {
        with_sale(&self.app, &self.sale, frame).await
    }
}

fn frame(sale: SaleJson<'_>) -> Frame {
    let json = |sale: &SaleJson<'_>| serde_json::to_string(sale).unwrap_or_default();
    // The time of the server is no news, unless it opens or closes the sale.
    let timeless = digest(&SHA256, json(&sale.without_time()).as_bytes());
    let id = URL_SAFE_NO_PAD.encode(&timeless.as_ref()[..12]);
    Frame { event: "sale", id: id.into(), json: json(&sale).into() }
}
