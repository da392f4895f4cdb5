//! `doorbuster`: one binary, a sub-command per process. See `doorbuster --help`.

use std::process::ExitCode;

/// A request is some forty small allocations, and the C library's allocator took a seventh of a front's time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The allocator asks for huge pages, and would hold twenty megabytes before anything was allocated. Also
    // kept from the private servers of `dev`, of which Redis asks for that. Where it is refused all goes on.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    // Two TLS libraries' worth of defaults would panic at the first connection: name one, first.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    doorbuster::cli::Cli::from_args().run()
}
