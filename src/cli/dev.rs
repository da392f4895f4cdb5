//! `dev`: all of Doorbuster on this machine, on private servers.

use std::path::PathBuf;
use std::time::Instant;

use super::discover::{Advertised, FOLDER};
use super::drill;
use super::ended::{Ended, Failed};
use super::stack::Stack;
use crate::domain::UserId;
use crate::front::{Role, Signer};
use crate::process::{Sources, log, redact, signal};
use crate::rehearsal::drill::{Preset, Progress};
use crate::rehearsal::servers::{Ending, Folder};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where the servers keep their data.
    #[arg(long, default_value = FOLDER, value_name = "FOLDER")]
    data_dir: PathBuf,
    /// Keep the data in a temporary folder, and remove it at the end.
    #[arg(long)]
    ephemeral: bool,
    /// Hold a sale of 500 units for a crowd of 20,000 buyers, print the verdict, and stop.
    #[arg(long)]
    demo: bool,
}

/// Seconds for which the printed tokens are valid: a day.
const TOKENS_LAST: u32 = 24 * 3600;

pub(super) async fn run(sources: &Sources, args: Args) -> Result<Ended, Failed> {
    // `dev` prints below that the broker is still starting, and it serves no crowd, so a low limit of open files does
    // no harm: both warnings would only distract.
    log::start_with("auto", "warn,doorbuster::queue=error,doorbuster::process::listen=error");
    if args.demo {
        return Box::pin(demo(sources)).await;
    }
    let began = Instant::now();
    let stop = signal::stop_token();
    let folder = if args.ephemeral { Folder::ephemeral()? } else { Folder::open(&args.data_dir)? };
    let mut stack = Stack::start(sources, folder).await?;
    let settings = stack.advertise()?;
    introduce(&stack, &settings, began);
    let ending = if args.ephemeral { Ending::AtOnce } else { Ending::Orderly };
    let starts = stack.broker_starts();
    match stop.run_until_cancelled(stack.broker_is_up()).await {
        Some(Ok(())) if starts => say!(
            "  broker up after {:.1} s: orders now go through the queue to the database",
            began.elapsed().as_secs_f64()
        ),
        Some(Ok(())) => {}
        Some(Err(error)) => {
            stack.stop(ending).await;
            return Err(error);
        }
        None => {
            stack.stop(ending).await;
            return Ok(Ended::Done);
        }
    }
    let died = tokio::select! {
        () = stop.cancelled() => None,
        why = stack.ended() => Some(why),
    };
    say!("  stopping");
    stack.stop(ending).await;
    died.map_or(Ok(Ended::Done), |why| Err(Failed::Other(format!("{why}; to go on, start dev again"))))
}

fn introduce(stack: &Stack, settings: &Advertised, began: Instant) {
    let running = &stack.running;
    let Some(buyers) = running.buyers else { return };
    let signer = Signer::new(stack.config.auth());
    let mint = |user: &str, role| {
        UserId::parse(user).map(|user| signer.mint(&user, role, TOKENS_LAST)).unwrap_or_default()
    };
    let (admin, buyer) = (mint("admin", Some(Role::Admin)), mint("ada", None));
    let meanwhile = match (stack.broker_starts(), stack.is_new()) {
        (true, true) => " (the broker is still starting; orders are taken meanwhile)",
        (true, false) => " (it sells in some seconds, when the broker is up)",
        (false, _) => "",
    };
    say!("Doorbuster is up after {:.1} s{meanwhile}\n", began.elapsed().as_secs_f64());
    say!("  buyers       http://{buyers}");
    say!("  operations   http://{}   /readyz /metrics /v1/admin/sales", running.operations);
    say!("  database     {}", redact(&stack.config.database.url));
    say!("  admin token  {admin}");
    say!("  buyer token  {buyer}   (user ada)\n");
    let doorbuster = called(settings);
    say!("Try, in another terminal:\n");
    say!("  {doorbuster} sale create shoes --item shoe=500");
    say!("  {doorbuster} sale open shoes");
    say!(
        "  curl -i -X POST -H \"Authorization: Bearer $({doorbuster} token ada)\" http://{buyers}/v1/sales/shoes/orders\n"
    );
    say!("Ctrl-C ends everything.\n");
}

/// The command by which another terminal calls this program for this stack, so that the printed lines can be pasted.
/// It has `--config` only if the file would not be found without it.
fn called(settings: &Advertised) -> String {
    let program = std::env::args().next().unwrap_or_else(|| "doorbuster".into());
    let here = std::env::current_dir().unwrap_or_default();
    if settings.is_found_from(&here) {
        return program;
    }
    let file = settings.path().strip_prefix(&here).unwrap_or(settings.path());
    format!("{program} --config {}", file.display())
}

/// Uses a temporary folder, so that the demo can be repeated.
async fn demo(sources: &Sources) -> Result<Ended, Failed> {
    say!("Doorbuster: 500 units, 20,000 buyers, a real Redis, a real RabbitMQ, a real database.\n");
    let progress = Progress::on_stderr();
    progress.say("starting private servers on free ports of 127.0.0.1, in a temporary folder");
    let report = drill::on_private_stack(sources, &Preset::Demo.plan(), &progress).await?;
    say!("{report}");
    Ok(drill::verdict(report.balances, report.complete))
}
