//! `doorbuster`: one binary, a sub-command per process. See `doorbuster --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Two TLS libraries' worth of defaults would panic at the first connection: name one, first.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    doorbuster::process::command::Cli::from_args().run()
}
