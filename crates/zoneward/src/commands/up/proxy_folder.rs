//! The folder by which the L7 proxies of this machine reach the API: sockets, or credentials. Where this process is root,
//! each proxy runs as a user of its own, and opens its own files alone.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cluster::supervisor;
use tracing::warn;

/// User of the first proxy; the others have the ids below it.
const FIRST_USER: u32 = 65_532;

/// A folder that is removed when this is dropped.
pub(crate) struct ProxyFolder {
    path: PathBuf,
    changes_user: bool,
}

impl Drop for ProxyFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

impl ProxyFolder {
    pub(crate) fn open(data: &Path) -> Result<Self> {
        let changes_user = supervisor::can_change_user(FIRST_USER);
        // Other users cannot enter the data directory.
        let path = match (changes_user, std::env::var_os("RUNTIME_DIRECTORY")) {
            (false, _) => data.join("proxies"),
            (true, Some(runtime)) => Path::new(&runtime).join("proxies"),
            (true, None) => std::env::temp_dir().join(format!("zoneward-{:016x}", clock::os_seed())),
        };
        if !changes_user {
            warn!(
                "L7 proxies run as the user of this process: it is not root, or its namespace has no other users"
            );
        }
        let _ = fs::remove_dir_all(&path);
        let mode = if changes_user { 0o711 } else { 0o700 };
        // Fails if it exists: in a shared folder it could belong to another user.
        fs::DirBuilder::new()
            .mode(mode)
            .create(&path)
            .with_context(|| format!("creating {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))
            .with_context(|| format!("protecting {}", path.display()))?;
        Ok(Self { path, changes_user })
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The user of the proxy with a number; `None` for that of this process.
    pub(crate) fn user(&self, number: usize) -> Option<u32> {
        let offset = u32::try_from(number).unwrap_or(u32::MAX);
        self.changes_user.then(|| FIRST_USER.saturating_sub(offset).max(1))
    }
}

/// Lets a user alone open a file; `None` for that of this process.
pub(crate) fn protect(path: &Path, user: Option<u32>) -> Result<()> {
    let what = || format!("protecting {}", path.display());
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).with_context(what)?;
    match user {
        Some(user) => chown(path, Some(user), Some(user)).with_context(what),
        None => Ok(()),
    }
}
