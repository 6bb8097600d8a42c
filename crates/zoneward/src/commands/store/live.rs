//! Backup of a running API over its unix socket. The server sends a consistent copy, which is checked before it is
//! renamed into place.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use store::api::backup::REVISION_HEADER;
use store::engine::{EncryptionKeys, Engine, OpenError};
use tokio::net::UnixStream;

/// Returns the revision, or `None` if no API serves the data directory.
pub(super) fn backup(data_dir: &Path, file: &Path) -> Result<Option<String>> {
    let socket = data_dir.join("api.sock");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting")?;
    runtime.block_on(async {
        let stream = match UnixStream::connect(&socket).await {
            Ok(stream) => stream,
            // No server, or a stale socket.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                return Ok(None);
            }
            Err(error) => return Err(error).with_context(|| format!("connecting to {}", socket.display())),
        };
        if file.try_exists().with_context(|| format!("checking {}", file.display()))? {
            bail!(OpenError::BackupExists { place: file.display().to_string() });
        }
        fetch(stream, file).await.map(Some)
    })
}

async fn fetch(stream: UnixStream, file: &Path) -> Result<String> {
    let (mut requests, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get("/backup").header("host", "zoneward").body(Empty::<Bytes>::new())?;
    let response = requests.send_request(request).await.context("requesting a backup")?;
    let code = response.status();
    let revision = response.headers().get(REVISION_HEADER).and_then(|value| value.to_str().ok());
    let revision = revision.unwrap_or("unknown").to_owned();
    if !code.is_success() {
        let said = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        bail!("the API failed to create a backup ({code}): {}", message(&said));
    }
    let partial = partial_name(file);
    let saved = save(response.into_body(), &partial, file).await;
    // After success it is a second link to the file, after failure it is incomplete.
    let _ = fs::remove_file(&partial);
    saved.map(|()| revision)
}

/// Writes and checks the backup, and then renames it.
async fn save(mut body: Incoming, partial: &Path, file: &Path) -> Result<()> {
    let writing = || format!("writing {}", partial.display());
    let mut out = create(partial).with_context(writing)?;
    while let Some(frame) = body.frame().await {
        let frame = frame.context("the API exited before the backup was complete")?;
        if let Some(data) = frame.data_ref() {
            out.write_all(data).with_context(writing)?;
        }
    }
    out.sync_all().with_context(writing)?;
    let report = Engine::check_backup(partial, &EncryptionKeys::default())?;
    if !report.is_sound() {
        bail!("the backup is corrupt: {report}");
    }
    // Unlike a rename, a link fails where something has the name already.
    fs::hard_link(partial, file).with_context(|| format!("renaming to {}", file.display()))?;
    let folder = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .with_context(|| format!("syncing {}", folder.display()))
}

/// Secrets are inside: for its owner alone.
fn create(partial: &Path) -> std::io::Result<File> {
    match fs::remove_file(partial) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(partial)
}

fn partial_name(file: &Path) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(".partial");
    PathBuf::from(name)
}

/// The sentence of a Status.
fn message(status: &[u8]) -> String {
    let status: serde_json::Value = serde_json::from_slice(status).unwrap_or_default();
    status["message"].as_str().unwrap_or("no reason given").to_owned()
}
