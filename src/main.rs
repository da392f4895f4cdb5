//! `doorbuster`: one binary, with a sub-command per process and per operator's act. See `doorbuster --help`.

use std::process::ExitCode;

/// A request makes about forty small allocations; the C library's allocator took a seventh of a front's time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // With huge pages the allocator would take twenty megabytes before the first allocation. The private servers of
    // `dev` inherit the setting, which Redis asks for anyway. A refusal does no harm.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    // With two TLS providers in the binary and no default, the first connection would panic.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    doorbuster::cli::Cli::from_args().run()
}
