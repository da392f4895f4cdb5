//! The data folder: one process uses it at a time, and it is gone afterwards if it was ephemeral.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::RngExt as _;

use super::ServerError;

const PREFIX: &str = "doorbuster-";

pub struct Folder {
    path: PathBuf,
    /// Held for as long as the folder is used: whoever holds it may end what runs in the folder.
    _lock: File,
    ephemeral: bool,
}

impl Folder {
    /// A folder that stays.
    pub fn open(path: &Path) -> Result<Self, ServerError> {
        private(path)?;
        let path = path.canonicalize().map_err(ServerError::io(format!("opening {}", path.display())))?;
        Self::lock(path, false)
    }

    /// A folder that is removed with this value. Removes what killed predecessors left.
    pub fn ephemeral() -> Result<Self, ServerError> {
        remove_leftovers();
        let folder = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempdir()
            .map_err(ServerError::io("making a temporary folder"))?;
        Self::lock(folder.keep(), true)
    }

    fn lock(path: PathBuf, ephemeral: bool) -> Result<Self, ServerError> {
        // Locked before it has its name: a lock file that is free is one whose owner is gone.
        let io = || ServerError::io(format!("locking {}", path.display()));
        let named = path.join("lock");
        if !named.exists() {
            let unnamed = path.join(format!("lock.{}", std::process::id()));
            let lock = File::create(&unnamed).map_err(io())?;
            lock.try_lock().map_err(|_| ServerError::InUse(path.display().to_string()))?;
            std::fs::rename(&unnamed, &named).map_err(io())?;
            return Ok(Self { path, _lock: lock, ephemeral });
        }
        let lock = OpenOptions::new().write(true).open(&named).map_err(io())?;
        lock.try_lock().map_err(|_| ServerError::InUse(path.display().to_string()))?;
        Ok(Self { path, _lock: lock, ephemeral })
    }

    /// Leaves the folder where it is, though it was to be removed.
    pub fn keep(mut self) -> PathBuf {
        self.ephemeral = false;
        // A folder with a lock that nobody holds is taken for a leftover.
        let _ = std::fs::remove_file(self.path.join("lock"));
        self.path.clone()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.ephemeral {
            remove(&self.path);
        }
    }
}

/// A server that was killed a moment ago may still write.
fn remove(path: &Path) {
    for _ in 0..20 {
        if std::fs::remove_dir_all(path).is_ok() || !path.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    tracing::warn!(folder = %path.display(), "could not be removed");
}

/// Temporary folders whose lock nobody holds. Those of other users cannot be opened, and stay.
fn remove_leftovers() {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(lock) = OpenOptions::new().write(true).open(entry.path().join("lock")) else { continue };
        if lock.try_lock().is_ok() {
            remove(&entry.path());
        }
    }
}

/// Makes a folder that only its owner may enter.
pub(super) fn private(path: &Path) -> Result<(), ServerError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(ServerError::io(format!("making {}", path.display())))
}

/// A secret for tokens that stays the same for the folder's lifetime.
pub struct Secret(pub String);

impl Secret {
    pub fn in_folder(folder: &Path) -> Result<Self, ServerError> {
        let path = folder.join("secret");
        if let Ok(secret) = std::fs::read_to_string(&path) {
            return Ok(Self(secret));
        }
        let secret = format!("{:032x}{:032x}", rand::rng().random::<u128>(), rand::rng().random::<u128>());
        let mut file = OpenOptions::new()
            .create_new(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(ServerError::io(format!("writing {}", path.display())))?;
        file.write_all(secret.as_bytes()).map_err(ServerError::io(format!("writing {}", path.display())))?;
        Ok(Self(secret))
    }
}
