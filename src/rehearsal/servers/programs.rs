//! Finds the servers' programs: in PATH, or in folders outside of it where distributions install them.

use std::path::{Path, PathBuf};

use super::error::ServerError;

/// These come before PATH, because Debian's `rabbitmq-server` in PATH is a wrapper that changes user and directory.
const RABBITMQ: &[&str] =
    &["/usr/lib/rabbitmq/bin", "/opt/homebrew/opt/rabbitmq/sbin", "/usr/local/opt/rabbitmq/sbin"];
/// A base folder and the prefix of the version folders in it: Debian's, PostgreSQL's own packages, Homebrew's.
const POSTGRES: [(&str, &str); 4] = [
    ("/usr/lib/postgresql", ""),
    ("/usr", "pgsql-"),
    ("/opt/homebrew/opt", "postgresql@"),
    ("/usr/local/opt", "postgresql@"),
];

/// A program in PATH or in the system folders; the error names `package`.
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

/// A program of the newest installed PostgreSQL: each version has a separate folder.
pub fn postgres(name: &str) -> Result<PathBuf, ServerError> {
    let mut versions: Vec<(u32, PathBuf)> = POSTGRES
        .iter()
        .filter_map(|(base, prefix)| Some((std::fs::read_dir(base).ok()?, prefix)))
        .flat_map(|(entries, prefix)| entries.flatten().map(move |entry| (entry, prefix)))
        .filter_map(|(entry, prefix)| {
            let folder = entry.file_name();
            let version = folder.to_string_lossy().strip_prefix(prefix)?.parse().ok()?;
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
