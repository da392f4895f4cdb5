//! SIGTERM, SIGINT and SIGHUP (the terminal is gone): the first signal asks the process to finish, the second ends it
//! immediately.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that is cancelled at the first signal. From then on a second signal ends the process with exit code 130.
pub fn stop_token() -> CancellationToken {
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        let (Ok(mut term), Ok(mut int), Ok(mut hup)) =
            (signal(SignalKind::terminate()), signal(SignalKind::interrupt()), signal(SignalKind::hangup()))
        else {
            tracing::error!("signals cannot be received; end the process with SIGKILL");
            return;
        };
        let mut next = async || {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
                _ = hup.recv() => {}
            }
        };
        next().await;
        token.cancel();
        next().await;
        tracing::warn!("second signal: ending at once");
        std::process::exit(130);
    });
    stop
}
