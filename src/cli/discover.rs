//! Finds the configuration file of a command without `--config`. `DOORBUSTER_CONFIG` names one; otherwise it is the
//! file that a running `doorbuster dev` has left in the nearest `.doorbuster` folder.
//!
//! The file in a folder must not surprise anyone, so it is used only if nothing else names a server or a secret: half
//! of the addresses from production and half from a private stack would be worse than anything. A file of another
//! user is refused, and so is one whose `dev` has ended, because its servers are gone.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::ended::Failed;

/// The variable that names a configuration file, as `--config` does.
const VARIABLE: &str = "DOORBUSTER_CONFIG";

/// Where `dev` keeps its data unless `--data-dir` says otherwise.
pub(super) const FOLDER: &str = ".doorbuster";

const FILE: &str = "config.toml";

/// The first line of a file that `dev` wrote. The file's lock says whether that `dev` is still running.
const WRITTEN_BY_DEV: &str = "# Written by `doorbuster dev`: how to reach its servers.\n";

/// The keys that say where the servers are and how tokens are signed.
const NAMES_A_SERVER: [&str; 10] = [
    "redis.url",
    "redis.url_file",
    "queue.url",
    "queue.url_file",
    "database.url",
    "database.url_file",
    "auth.secret",
    "auth.secret_file",
    "auth.public_key",
    "auth.jwks",
];

/// The file that `DOORBUSTER_CONFIG` names, if it is set.
pub(super) fn from_environment() -> Result<Option<PathBuf>, Failed> {
    let Some(named) = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()) else { return Ok(None) };
    let file = PathBuf::from(named);
    if file.is_file() {
        return Ok(Some(file));
    }
    Err(Failed::Usage(format!(
        "{VARIABLE} names {}, which is not a file; correct it, or unset it",
        file.display()
    )))
}

/// Whether these `--set` pairs or the environment name a server or a secret.
pub(super) fn is_configured(overrides: &[String]) -> bool {
    let by_override = overrides.iter().filter_map(|pair| pair.split('=').next()).map(str::to_owned);
    let by_environment = std::env::vars_os().filter_map(|(name, _)| key_of_variable(&name));
    by_override.chain(by_environment).any(|key| NAMES_A_SERVER.contains(&key.as_str()))
}

/// `DOORBUSTER__REDIS__URL` sets `redis.url`.
fn key_of_variable(name: &OsString) -> Option<String> {
    let name = name.to_str()?.to_lowercase();
    Some(name.strip_prefix("doorbuster__")?.replace("__", "."))
}

/// The file in the nearest `.doorbuster` at or above `here`, if there is one.
pub(super) fn nearest(here: &Path) -> Result<Option<PathBuf>, Failed> {
    for folder in here.ancestors() {
        let file = folder.join(FOLDER).join(FILE);
        match File::open(&file) {
            Ok(open) => return usable(&open, file, here).map(Some),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => {
                return Err(Failed::Usage(format!("{}: {error}; {OTHERWISE}", shown(&file, here).display())));
            }
        }
    }
    Ok(None)
}

const OTHERWISE: &str = "name another configuration with --config FILE or DOORBUSTER_CONFIG";

fn usable(open: &File, file: PathBuf, here: &Path) -> Result<PathBuf, Failed> {
    let path = shown(&file, here).display().to_string();
    let refused = |why: String| Err(Failed::Usage(why));
    let owner = open.metadata().map_err(|error| Failed::Usage(format!("{path}: {error}")))?.uid();
    if owner != rustix::process::geteuid().as_raw() {
        return refused(format!("{path} belongs to another user; if you trust it, use --config {path}"));
    }
    if is_left_behind(open) {
        return refused(format!(
            "{path} is left from a `doorbuster dev` that no longer runs: start that again, remove the file, \
             or {OTHERWISE}"
        ));
    }
    Ok(file)
}

/// Whether a `dev` that has ended wrote the file. A running one holds its lock.
fn is_left_behind(mut open: &File) -> bool {
    let mut first = vec![0; WRITTEN_BY_DEV.len()];
    let by_dev = open.read_exact(&mut first).is_ok() && first == WRITTEN_BY_DEV.as_bytes();
    // If the lock can be shared, nobody holds it exclusively. Closing the file releases it.
    by_dev && open.try_lock_shared().is_ok()
}

/// The path as a person in `here` would write it.
pub(super) fn shown<'a>(file: &'a Path, here: &Path) -> &'a Path {
    file.strip_prefix(here).unwrap_or(file)
}

/// The file of a running `dev`, for commands in other terminals. It is valid while this value lives.
pub(super) struct Advertised {
    path: PathBuf,
    /// Locked; the kernel releases the lock, however this process ends.
    _lock: File,
}

impl Advertised {
    /// Replaces the file that an earlier `dev` wrote into `folder`. Readers see the old file or the new one, never
    /// half.
    pub(super) fn write(folder: &Path, settings: &[(&str, &str)]) -> std::io::Result<Self> {
        let (path, unnamed) = (folder.join(FILE), folder.join(format!("{FILE}.new")));
        let mut text = String::from(WRITTEN_BY_DEV);
        for (key, value) in settings {
            text.push_str(&format!("{key} = {}\n", toml::Value::from(*value)));
        }
        let mut file = File::options().create(true).truncate(true).write(true).mode(0o600).open(&unnamed)?;
        file.lock()?;
        file.write_all(text.as_bytes())?;
        std::fs::rename(&unnamed, &path)?;
        Ok(Self { path, _lock: file })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a command in `here` finds it without `--config`.
    pub(super) fn is_found_from(&self, here: &Path) -> bool {
        self.path == here.join(FOLDER).join(FILE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(found: Result<Option<PathBuf>, Failed>) -> String {
        found.expect_err("refused").to_string()
    }

    #[test]
    fn the_nearest_file_counts_and_one_that_dev_left_behind_is_refused() {
        let root = tempfile::tempdir().expect("a folder");
        let (near, far) = (root.path().join("a"), root.path());
        let deep = near.join("b/c");
        std::fs::create_dir_all(&deep).expect("folders");
        let write = |folder: &Path| {
            std::fs::create_dir_all(folder.join(FOLDER)).expect("a folder");
            Advertised::write(&folder.join(FOLDER), &[("redis.url", "redis://h")]).expect("written")
        };
        let outer = write(far);
        assert_eq!(nearest(&deep).expect("usable"), Some(outer.path().to_owned()));
        let inner = write(&near);
        assert_eq!(nearest(&deep).expect("usable"), Some(inner.path().to_owned()));
        assert!(inner.is_found_from(&near) && !inner.is_found_from(&deep));
        drop(inner);
        let why = said(nearest(&near));
        assert!(why.starts_with(".doorbuster/config.toml is left from"), "{why}");
        assert!(why.contains("--config") && why.contains("start that again"), "{why}");
        // A file written by a person has no process behind it.
        std::fs::write(near.join(FOLDER).join(FILE), "redis.url = \"redis://h\"\n").expect("written");
        assert!(nearest(&near).expect("usable").is_some());
    }

    #[test]
    fn a_server_that_is_named_elsewhere_is_seen() {
        assert!(is_configured(&["redis.url=redis://h".into()]));
        assert!(!is_configured(&["worker.batch=3".into()]));
        assert_eq!(key_of_variable(&"DOORBUSTER__REDIS__URL".into()).as_deref(), Some("redis.url"));
        assert_eq!(key_of_variable(&"DOORBUSTER_CONFIG".into()), None);
    }
}
