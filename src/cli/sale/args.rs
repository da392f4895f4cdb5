//! The options of `doorbuster sale`.

use crate::cli::ended::Failed;
use crate::cli::output::Output;
use crate::cli::terms::{Reason, TermsArgs};
use crate::domain::{ActRequest, IdempotencyKey, SaleId};

#[derive(Debug, clap::Subcommand)]
pub(in crate::cli) enum Verb {
    /// Create a draft.
    #[command(after_help = "Example:\n  doorbuster sale create shoes --item shoe=500 --limit 2")]
    Create(Create),
    /// List the sales, newest first.
    #[command(after_help = "Example:\n  doorbuster sale list --output json")]
    List(Output),
    /// Show one sale, as gate and database see it.
    #[command(after_help = "Example:\n  doorbuster sale show shoes")]
    Show {
        sale: String,
        #[command(flatten)]
        output: Output,
    },
    /// Check that a sale is ready for its buyers: servers, clocks, settings, keys and stock.
    #[command(after_help = "Example:\n  doorbuster sale check shoes")]
    Check {
        sale: String,
        #[command(flatten)]
        output: Output,
    },
    /// List the operators' acts on it, newest first.
    #[command(after_help = "Example:\n  doorbuster sale acts shoes")]
    Acts {
        sale: String,
        #[command(flatten)]
        output: Output,
    },
    #[command(flatten)]
    Act(ActVerb),
}

/// An operator's acts on a sale. Each act is recorded in the sale's history.
#[derive(Debug, clap::Subcommand)]
pub(in crate::cli) enum ActVerb {
    /// Load a draft into the gate, so that it sells inside its window.
    #[command(after_help = "Example:\n  doorbuster sale open shoes")]
    Open(Act),
    /// Refuse orders until the sale is resumed.
    #[command(after_help = "Example:\n  doorbuster sale pause shoes --message \"back in ten minutes\"")]
    Pause {
        #[command(flatten)]
        act: Act,
        /// The message that buyers see meanwhile.
        #[arg(long)]
        message: Option<String>,
    },
    /// Sell again after a pause.
    #[command(after_help = "Example:\n  doorbuster sale resume shoes")]
    Resume(Act),
    /// Add units of an item, or remove units that are neither sold nor in flight.
    #[command(after_help = "Example:\n  doorbuster sale restock shoes shoe +50 --reason \"found a box\"")]
    Restock {
        #[command(flatten)]
        act: Act,
        sku: String,
        /// For example +50 or -20.
        #[arg(allow_negative_numbers = true)]
        units: i64,
    },
    /// Change its window, limits and other terms, even while it sells.
    #[command(after_help = "Example:\n  doorbuster sale change shoes --limit 3 --user-rate 5/10s")]
    Change {
        #[command(flatten)]
        act: Act,
        #[command(flatten)]
        terms: TermsArgs,
    },
    /// Close it for good.
    #[command(after_help = "Example:\n  doorbuster sale close shoes")]
    Close(Act),
    /// Remove a closed sale whose books balance from Redis. Its rows stay.
    #[command(after_help = "Example:\n  doorbuster sale archive shoes")]
    Archive(Act),
    /// Delete the orders of an archived sale, and with them who placed them.
    #[command(after_help = "Example:\n  doorbuster sale purge shoes --yes")]
    Purge {
        #[command(flatten)]
        act: Act,
        /// Required, because it cannot be undone.
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Act {
    sale: String,
    #[command(flatten)]
    reason: Reason,
    /// The idempotency key: a request repeated with the same key is done only once.
    #[arg(long)]
    key: Option<IdempotencyKey>,
}

impl Act {
    pub(super) fn read(self) -> Result<(SaleId, ActRequest), Failed> {
        let request = ActRequest { key: self.key, ..self.reason.request() };
        Ok((self.sale.parse()?, request))
    }
}

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Create {
    /// The sale's id: a-z, 0-9 and '-'.
    pub(super) sale: String,
    /// An item and its units. May be repeated.
    #[arg(long = "item", required = true, value_name = "SKU=STOCK")]
    pub(super) items: Vec<String>,
    /// A name for people; by default the id.
    #[arg(long)]
    pub(super) name: Option<String>,
    #[command(flatten)]
    pub(super) terms: TermsArgs,
    #[command(flatten)]
    pub(super) reason: Reason,
}
