//! The data folder: used by one process at a time, and removed afterwards if it is ephemeral.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::RngExt as _;

use super::error::ServerError;

const PREFIX: &str = "doorbuster-";

/// A locked data folder. Dropping it releases the lock, and removes the folder if it is ephemeral.
pub struct Folder {
    path: PathBuf,
    /// Held while the folder is in use. The holder may kill processes that run in the folder.
    _lock: File,
    ephemeral: bool,
}

impl Folder {
    /// Opens a folder that stays, and creates it if needed. [`ServerError::InUse`] if another process has it.
    pub fn open(path: &Path) -> Result<Self, ServerError> {
        private(path)?;
        let path = path.canonicalize().map_err(ServerError::io(format!("opening {}", path.display())))?;
        Self::lock(path, false)
    }

    /// Creates a temporary folder that is removed when this value is dropped. Also removes the folders that killed
    /// processes left behind.
    pub fn ephemeral() -> Result<Self, ServerError> {
        remove_leftovers();
        let folder = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempdir()
            .map_err(ServerError::io("making a temporary folder"))?;
        Self::lock(folder.keep(), true)
    }

    fn lock(path: PathBuf, ephemeral: bool) -> Result<Self, ServerError> {
        // The file is locked before it gets its name, so if a `lock` is free, its process has ended.
        let io = || ServerError::io(format!("locking {}", path.display()));
        let name = path.join("lock");
        if !name.exists() {
            let temporary = path.join(format!("lock.{}", std::process::id()));
            let lock = File::create(&temporary).map_err(io())?;
            lock.try_lock().map_err(|_| ServerError::InUse(path.display().to_string()))?;
            std::fs::rename(&temporary, &name).map_err(io())?;
            return Ok(Self { path, _lock: lock, ephemeral });
        }
        let lock = OpenOptions::new().write(true).open(&name).map_err(io())?;
        lock.try_lock().map_err(|_| ServerError::InUse(path.display().to_string()))?;
        Ok(Self { path, _lock: lock, ephemeral })
    }

    /// Keeps an ephemeral folder, and returns its path. The lock is released.
    pub fn keep(mut self) -> PathBuf {
        self.ephemeral = false;
        // If the lock file stayed without a holder, the folder would be removed as a leftover.
        let _ = std::fs::remove_file(self.path.join("lock"));
        self.path.clone()
    }

    /// The folder's path.
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

/// Tries for two seconds, because a server that was just killed may still be writing.
fn remove(path: &Path) {
    for _ in 0..20 {
        if std::fs::remove_dir_all(path).is_ok() || !path.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    tracing::warn!(folder = %path.display(), "removing the folder failed");
}

/// Removes temporary folders whose lock is free. Those of other users cannot be opened, and stay.
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

/// Makes a folder that only its owner can enter.
pub(super) fn private(path: &Path) -> Result<(), ServerError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(ServerError::io(format!("making {}", path.display())))
}

/// The secret that signs tokens, stored in the data folder.
pub struct Secret(
    /// 64 hexadecimal digits.
    pub String,
);

impl Secret {
    /// Reads the folder's secret, or creates it, readable by its owner only. Later calls return the same one.
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
