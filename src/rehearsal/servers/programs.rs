//! Where the servers' programs lie: in PATH, or where the distributions put what is not in PATH.

use std::path::{Path, PathBuf};

use super::ServerError;

/// Debian's `rabbitmq-server` in PATH is a wrapper that changes user and directory; the real one
/// lies beside it, and comes first here.
const RABBITMQ: &[&str] =
    &["/usr/lib/rabbitmq/bin", "/opt/homebrew/opt/rabbitmq/sbin", "/usr/local/opt/rabbitmq/sbin"];
/// Folders of versions: Debian's, those of PostgreSQL's own packages, Homebrew's.
const POSTGRES: [(&str, &str); 4] = [
    ("/usr/lib/postgresql", ""),
    ("/usr", "pgsql-"),
    ("/opt/homebrew/opt", "postgresql@"),
    ("/usr/local/opt", "postgresql@"),
];

pub(super) fn find(name: &str, package: &'static str) -> Result<PathBuf, ServerError> {
    in_path(name)
        .or_else(|| in_folders(name, &["/usr/sbin", "/usr/libexec"]))
        .ok_or(ServerError::Missing(package))
}

pub(super) fn rabbitmq() -> Result<PathBuf, ServerError> {
    in_folders("rabbitmq-server", RABBITMQ)
        .or_else(|| in_path("rabbitmq-server"))
        .ok_or(ServerError::Missing("rabbitmq-server"))
}

/// Each version's programs lie in a folder of their own: the newest that is there.
pub(super) fn postgres(name: &str) -> Result<PathBuf, ServerError> {
    let mut versions: Vec<(u32, PathBuf)> = POSTGRES
        .iter()
        .filter_map(|(base, prefix)| Some((std::fs::read_dir(base).ok()?, prefix)))
        .flat_map(|(entries, prefix)| entries.flatten().map(move |entry| (entry, prefix)))
        .filter_map(|(entry, prefix)| {
            let name_of_folder = entry.file_name();
            let version = name_of_folder.to_string_lossy().strip_prefix(prefix)?.parse().ok()?;
            let program = entry.path().join("bin").join(name);
            program.is_file().then_some((version, program))
        })
        .collect();
    versions.sort();
    versions
        .pop()
        .map(|(_, program)| program)
        .or_else(|| in_path(name))
        .ok_or(ServerError::Missing("postgresql"))
}

pub(super) fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}

fn in_folders(name: &str, folders: &[&str]) -> Option<PathBuf> {
    folders.iter().map(|folder| Path::new(folder).join(name)).find(|program| program.is_file())
}
