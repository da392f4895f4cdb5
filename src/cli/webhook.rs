//! `webhook`: the endpoints that are given what happens to orders and sales.

use super::ended::{Ended, Failed};
use super::output::Output;
use super::terms::Reason;
use crate::control::{EndpointStatus, WebhookActs, WebhookError};
use crate::domain::{EventType, EventTypes};
use crate::process::{Config, Parts};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// List the endpoints, with what waits for each.
    #[command(after_help = "Example:\n  doorbuster webhook list")]
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Add an endpoint, and print the secret that verifies its deliveries.
    #[command(
        after_help = "Example:\n  doorbuster webhook add shop https://shop.example/webhooks/doorbuster"
    )]
    Add {
        /// A name for it.
        id: String,
        /// Where it is.
        url: String,
        /// The types of events that it is given, such as `order.paid,sale.*`. Default: all.
        #[arg(long, value_name = "TYPES")]
        events: Option<EventTypes>,
        #[command(flatten)]
        reason: Reason,
        #[command(flatten)]
        output: Output,
    },
    /// Choose the types of events that an endpoint is given from now on.
    #[command(after_help = "Example:\n  doorbuster webhook events shop \"order.paid,order.refunded,sale.*\"")]
    Events {
        #[command(flatten)]
        which: Which,
        /// The types, with commas between them; `order.*,sale.*` are all.
        types: EventTypes,
    },
    /// Remove an endpoint, with all that waits for it.
    #[command(after_help = "Example:\n  doorbuster webhook remove shop")]
    Remove(Which),
    /// Switch an endpoint on. What waited before is delivered.
    #[command(after_help = "Example:\n  doorbuster webhook on shop")]
    On(Which),
    /// Switch an endpoint off. What happens meanwhile is not delivered later.
    #[command(after_help = "Example:\n  doorbuster webhook off shop --reason \"moves to another host\"")]
    Off(Which),
    /// Give an endpoint a new secret. Deliveries are signed with the old one as well, until it is retired.
    #[command(
        after_help = "Example:\n  doorbuster webhook rotate shop\n  doorbuster webhook rotate shop --retire"
    )]
    Rotate {
        #[command(flatten)]
        which: Which,
        /// Retire the old secret instead: the receiver knows the new one.
        #[arg(long)]
        retire: bool,
    },
    /// Deliver at once what failed or was given up.
    #[command(after_help = "Example:\n  doorbuster webhook redeliver shop")]
    Redeliver(Which),
}

#[derive(Debug, clap::Args)]
pub(super) struct Which {
    /// The name of the endpoint.
    id: String,
    #[command(flatten)]
    reason: Reason,
}

pub(super) async fn run(config: &Config, verb: Verb) -> Result<Ended, Failed> {
    let acts = WebhookActs::new(Parts::open(config).await?.store, config.webhooks.allow_private);
    match verb {
        Verb::List { output } => list(&acts.list().await?, &output),
        Verb::Add { id, url, events, reason, output } => {
            let events = events.unwrap_or_else(EventTypes::all);
            let secret = acts.add(&id, &url, &events, &reason.request()).await?;
            if output.is_json() {
                say!("{}", serde_json::json!({ "id": id, "url": url, "secret": secret }));
            } else {
                say!("{id} is given what happens from now on, at {url}");
                say!("its deliveries are verified with this secret, which is not shown again:\n{secret}");
            }
        }
        Verb::Events { which: Which { id, reason }, types } => {
            acts.choose(&id, &types, &reason.request()).await?;
            say!("from now on {id} is given {}", types.names().join(", "));
        }
        Verb::Remove(Which { id, reason }) => {
            acts.remove(&id, &reason.request()).await?;
            say!("{id} is removed");
        }
        Verb::On(Which { id, reason }) => {
            acts.switch(&id, true, &reason.request()).await?;
            say!("{id} is on");
        }
        Verb::Off(Which { id, reason }) => {
            acts.switch(&id, false, &reason.request()).await?;
            say!("{id} is off; what happens meanwhile is not delivered later");
        }
        Verb::Rotate { which: Which { id, reason }, retire: true } => {
            acts.retire(&id, &reason.request()).await?;
            say!("the deliveries of {id} are signed with the newest secret alone");
        }
        Verb::Rotate { which: Which { id, reason }, retire: false } => {
            let secret = acts.rotate(&id, &reason.request()).await?;
            say!(
                "the deliveries of {id} are signed with this secret, which is not shown again, and with the old one:\n{secret}\n\
                 once the receiver knows it: doorbuster webhook rotate {id} --retire"
            );
        }
        Verb::Redeliver(Which { id, reason }) => {
            let count = acts.redeliver(&id, &reason.request()).await?;
            say!("{count} deliveries are made at once");
        }
    }
    Ok(Ended::Done)
}

impl From<WebhookError> for Failed {
    fn from(error: WebhookError) -> Self {
        match error {
            WebhookError::Store(error) => error.into(),
            WebhookError::NoRandom => Self::Other(error.to_string()),
            error => Self::Usage(error.to_string()),
        }
    }
}

fn list(all: &[EndpointStatus], output: &Output) {
    if output.is_json() {
        say!("{}", serde_json::json!({ "endpoints": all }));
        return;
    }
    if all.is_empty() {
        say!("there are no endpoints; add one with `doorbuster webhook add`");
        return;
    }
    say!("{:<16} {:>8} {:>9}  {:<38} URL", "ID", "WAITING", "GIVEN UP", "STATE");
    for endpoint in all {
        let EndpointStatus { id, url, events, off_because, failing_since, waiting, given_up, error, .. } =
            endpoint;
        let state = match (off_because, failing_since) {
            (Some(why), _) => format!("off: {why}"),
            (None, Some(since)) => format!("fails since {since}"),
            (None, None) => "on".to_owned(),
        };
        let is_all = EventType::all().count() == events.len();
        let only = if is_all { String::new() } else { format!("  only {}", events.join(", ")) };
        say!("{id:<16} {waiting:>8} {given_up:>9}  {state:<38} {url}{only}");
        if let Some(error) = error {
            say!("{:<36}last error: {error}", "");
        }
    }
}
