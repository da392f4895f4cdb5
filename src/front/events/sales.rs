//! The sales whose events somebody reads. Each front reads such a sale once a second, for all its streams together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::domain::SaleId;

/// A sale at one moment.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    /// Says what the sale is, whenever and by whichever front it was read.
    pub(super) id: Arc<str>,
    /// The sale as `GET /v1/sales/{sale}` answers it.
    pub(super) json: Arc<str>,
}

/// The frames of the sales that are read.
#[derive(Default)]
pub struct SaleStreams {
    sales: Mutex<HashMap<SaleId, watch::Sender<Frame>>>,
}

impl SaleStreams {
    /// The frames of a sale that somebody reads already.
    pub(super) fn frames(&self, sale: &SaleId) -> Option<watch::Receiver<Frame>> {
        self.sales().get(sale).map(watch::Sender::subscribe)
    }

    /// The frames of a sale from this one on. If nobody has read it before, also the sender, for the task that reads it
    /// from now on.
    pub(super) fn begin(
        &self,
        sale: &SaleId,
        first: Frame,
    ) -> (watch::Receiver<Frame>, Option<watch::Sender<Frame>>) {
        let mut sales = self.sales();
        if let Some(sender) = sales.get(sale) {
            return (sender.subscribe(), None);
        }
        let (sender, receiver) = watch::channel(first);
        sales.insert(sale.clone(), sender.clone());
        (receiver, Some(sender))
    }

    /// Forgets the sale if nobody reads it any more, and says whether it has.
    pub(super) fn has_ended(&self, sale: &SaleId, sender: &watch::Sender<Frame>) -> bool {
        // Nobody can begin to read it meanwhile.
        let mut sales = self.sales();
        let ended = sender.receiver_count() == 0;
        if ended {
            sales.remove(sale);
        }
        ended
    }

    fn sales(&self) -> MutexGuard<'_, HashMap<SaleId, watch::Sender<Frame>>> {
        self.sales.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
