//! `GET /v1/sales/{sale}/events`: what buyers may know of a sale, as server-sent events. A stream is written to only when
//! something has changed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::stream::{Stream, unfold};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{answer, come_back, last_event_id, no_room};
use crate::domain::SaleId;
use crate::front::buyers::read::with_sale;
use crate::front::buyers::views::SaleJson;
use crate::front::problem::{Answered, respond};
use crate::front::request::{PathOf, in_path, sale_id};
use crate::front::sale_streams::Frame;
use crate::front::state::Buyers;
use crate::front::stream_room::Open;

/// Between two readings of a sale.
const EVERY: Duration = Duration::from_secs(1);

pub(in crate::front::buyers) async fn sale_events(
    State(app): State<Arc<Buyers>>,
    path: PathOf<String>,
    headers: HeaderMap,
) -> Response {
    respond(open(&app, path, &headers).await, &headers)
}

async fn open(app: &Arc<Buyers>, path: PathOf<String>, headers: &HeaderMap) -> Answered {
    let id = sale_id(&in_path(path)?)?;
    let open = app.room.for_anybody().map_err(no_room)?;
    let frames = frames(app, id).await?;
    let known = last_event_id(headers).map(Arc::from);
    let reader = Reader { frames, known, is_first: true, stop: app.stop.clone(), _open: open };
    // The same for everybody: a proxy may give one stream to many.
    Ok(answer(reader.events(), "public, max-age=0"))
}

/// The frames of a sale, from the present one on.
async fn frames(app: &Arc<Buyers>, id: SaleId) -> Answered<watch::Receiver<Frame>> {
    if let Some(frames) = app.streams.frames(&id) {
        return Ok(frames);
    }
    let (frames, begun) = app.streams.begin(&id, with_sale(app, &id, frame).await?);
    if let Some(sender) = begun {
        tokio::spawn(keep_reading(app.clone(), id, sender));
    }
    Ok(frames)
}

/// Reads the sale while somebody reads its events.
async fn keep_reading(app: Arc<Buyers>, id: SaleId, sender: watch::Sender<Frame>) {
    while app.stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        if app.streams.has_ended(&id, &sender) {
            return;
        }
        // A server that is away changes nothing: the clients keep what they know.
        let Ok(frame) = with_sale(&app, &id, frame).await else { continue };
        sender.send_if_modified(|present| {
            let is_new = present.id != frame.id;
            // Replaced in any case, so that the next client gets the current server time.
            *present = frame;
            is_new
        });
    }
}

fn frame(sale: SaleJson<'_>) -> Frame {
    let json = |sale: &SaleJson<'_>| serde_json::to_string(sale).unwrap_or_default();
    // The time of the server is no news, unless it opens or closes the sale.
    let timeless = digest(&SHA256, json(&sale.without_time()).as_bytes());
    let id = URL_SAFE_NO_PAD.encode(&timeless.as_ref()[..12]);
    Frame { id: id.into(), json: json(&sale).into() }
}

/// One client's stream.
struct Reader {
    frames: watch::Receiver<Frame>,
    /// The id of the event that the client had last.
    known: Option<Arc<str>>,
    is_first: bool,
    stop: CancellationToken,
    _open: Open,
}

impl Reader {
    fn events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        unfold(Some(self), |reader| async {
            let mut reader = reader?;
            let Some(Frame { id, json }) = reader.next().await else {
                return Some((Ok(come_back("this front stops")), None));
            };
            let event = Event::default().event("sale").id(&*id).data(&*json);
            Some((Ok(event), Some(reader)))
        })
    }

    /// The next frame that the client does not know; `None` once the front stops.
    async fn next(&mut self) -> Option<Frame> {
        loop {
            if !std::mem::take(&mut self.is_first) {
                self.stop.run_until_cancelled(self.frames.changed()).await?.ok()?;
            }
            let frame = self.frames.borrow_and_update().clone();
            if self.known.as_ref() != Some(&frame.id) {
                self.known = Some(frame.id.clone());
                return Some(frame);
            }
        }
    }
}
