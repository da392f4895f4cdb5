//! Has a Redis that was started anew compared before a buyer comes: the first one would wait for it, at
//! the moment when everybody comes.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::gate::Gate;

const EVERY: Duration = Duration::from_secs(1);

pub(super) struct Trust {
    pub(super) gate: Gate,
    /// `Err`: nothing is sold, for this reason.
    pub(super) tell: watch::Sender<Result<(), String>>,
}

impl Trust {
    pub(super) async fn run(self, stop: CancellationToken) {
        loop {
            let Some(compared) = stop.run_until_cancelled(self.gate.establish()).await else { return };
            let compared = compared.map_err(|error| error.to_string());
            if let Err(why) = &compared
                && *self.tell.borrow() != compared
            {
                tracing::warn!(why, "nothing is sold");
            }
            let _before = self.tell.send_replace(compared);
            if stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_none() {
                return;
            }
        }
    }
}
