//! What decides whether a request is recorded, and takes the spans.

use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tokio::sync::mpsc;

use super::finished::Finished;
use crate::domain::TraceContext;

/// Spans that wait to be sent; more are dropped.
const WAITING: usize = 10_000;

/// Requests a second that are recorded because their callers say so. Anybody can say so, and must not be able to push the
/// others out.
const FROM_CALLERS: NonZeroU32 = NonZeroU32::new(200).unwrap();

/// Requests a second that are recorded because they fail or are slow. In a pause or an outage that is every request.
const NOTABLE: NonZeroU32 = NonZeroU32::new(200).unwrap();

static RECORDER: OnceLock<Recorder> = OnceLock::new();

/// Which requests are recorded.
#[derive(Debug, Clone, Copy)]
pub struct Sampling {
    /// Of those whose caller says nothing about it, one in so many; 0 for none.
    pub one_in: u64,
    /// A request that takes as long as this is recorded anyway, without its children, and so is one that fails; at most 200 a
    /// second.
    pub slow: Duration,
}

pub(super) struct Recorder {
    pub(super) sampling: Sampling,
    from_callers: DefaultDirectRateLimiter,
    notable: DefaultDirectRateLimiter,
    queue: mpsc::Sender<Finished>,
}

/// Whether this process records traces.
pub fn is_on() -> bool {
    RECORDER.get().is_some()
}

pub(super) fn recorder() -> Option<&'static Recorder> {
    RECORDER.get()
}

/// Begins to record. `None` if this process does already.
#[cfg(feature = "traces")]
pub(super) fn install(sampling: Sampling) -> Option<mpsc::Receiver<Finished>> {
    let (queue, waiting) = mpsc::channel(WAITING);
    RECORDER.set(Recorder::new(sampling, queue)).ok().map(|()| waiting)
}

/// For unit tests, whose process then records what callers ask for and nothing else.
#[cfg(all(test, feature = "traces"))]
pub(crate) fn record_what_callers_ask_for() {
    let _ = install(Sampling { one_in: 0, slow: std::time::Duration::MAX });
}

impl Recorder {
    fn new(sampling: Sampling, queue: mpsc::Sender<Finished>) -> Self {
        let limit = |rate| RateLimiter::direct(Quota::per_second(rate));
        Self { sampling, from_callers: limit(FROM_CALLERS), notable: limit(NOTABLE), queue }
    }

    /// Whether a request that failed or was slow is recorded though it was not sampled.
    pub(super) fn notes(&self) -> bool {
        self.notable.check().is_ok()
    }

    /// Whether a request is recorded with all its children.
    pub(super) fn samples(&self, caller: Option<TraceContext>) -> bool {
        match caller {
            Some(caller) if !caller.is_sampled => false,
            Some(_) if self.from_callers.check().is_ok() => true,
            _ => self.sampling.one_in > 0 && rand::random::<u64>().is_multiple_of(self.sampling.one_in),
        }
    }

    pub(super) fn take(&self, span: Finished) {
        if self.queue.try_send(span).is_err() {
            dropped(1);
        }
    }
}

/// Counts spans that no collector gets.
pub(super) fn dropped(spans: usize) {
    metrics::counter!("doorbuster_trace_spans_total", "result" => "dropped").increment(spans as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing_sampled() -> Recorder {
        Recorder::new(Sampling { one_in: 0, slow: Duration::from_secs(1) }, mpsc::channel(1).0)
    }

    #[test]
    fn at_most_two_hundred_failed_requests_a_second_are_recorded() {
        let recorder = nothing_sampled();
        let begun = std::time::Instant::now();
        let recorded = (0..100_000).filter(|_| recorder.notes()).count();
        let most = 201.0 + 200.0 * begun.elapsed().as_secs_f64();
        assert!(recorded >= 200 && recorded as f64 <= most, "{recorded} of at most {most}");
    }

    #[test]
    fn callers_have_at_most_two_hundred_requests_a_second_recorded() {
        let recorder = nothing_sampled();
        let asks = |is_sampled| recorder.samples(Some(TraceContext { trace: 1, span: 1, is_sampled }));
        let begun = std::time::Instant::now();
        let recorded = (0..100_000).filter(|_| asks(true)).count();
        // The rate has filled up again meanwhile.
        let most = 201.0 + 200.0 * begun.elapsed().as_secs_f64();
        assert!(recorded >= 200 && recorded as f64 <= most, "{recorded} of at most {most}");
        assert!(!asks(false) && !recorder.samples(None));
    }
}
