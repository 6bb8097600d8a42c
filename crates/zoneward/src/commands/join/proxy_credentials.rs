//! Credentials of the L7 proxies of a joined machine: each has its own kubeconfig, which no other proxy can read, for what
//! a proxy of its kind reads and nothing else. The machine's own credential gets them, and renews them in time.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apimachinery::join::{GATEWAYS_ROLE, SIDECARS_ROLE, renewal_time};
use clock::Clock;
use kube::{Client, Error};
use model::{ProxyKind, ProxyUser};
use serde_json::Value;
use store::credentials::write_private;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::credential::{NodeCredential, kubeconfig};
use crate::commands::up::proxy_folder::{ProxyFolder, protect};

/// Interval between attempts, and between looks at the age of a credential.
const RETRY: Duration = Duration::from_secs(5);
const CHECK_PERIOD: Duration = Duration::from_secs(60);

pub(crate) struct ProxyCredentials {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    /// The kubeconfig of the machine.
    kubeconfig: PathBuf,
    node: String,
    folder: ProxyFolder,
    clock: Clock,
}

/// The credential of one proxy; it is removed when this is dropped.
pub(crate) struct KeptCredential {
    /// Its kubeconfig.
    pub path: PathBuf,
    /// The user that the proxy runs as; `None` for that of this process.
    pub user: Option<u32>,
    /// Its name in reports of traffic.
    pub reporter: String,
    /// Turns true when there is a credential.
    pub ready: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl Drop for KeptCredential {
    fn drop(&mut self) {
        self.task.abort();
        let _ = fs::remove_file(&self.path);
    }
}

impl ProxyCredentials {
    pub(crate) fn open(client: Client, kubeconfig: &Path, node: &str, clock: &Clock) -> Result<Self> {
        let data = kubeconfig.parent().unwrap_or_else(|| Path::new("."));
        let (folder, kubeconfig) = (ProxyFolder::open(data)?, kubeconfig.to_owned());
        let shared = Shared { client, kubeconfig, node: node.to_owned(), folder, clock: clock.clone() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Gets a credential for the proxy with a number, and keeps it valid.
    pub(crate) fn keep(&self, number: usize, proxy: &ProxyUser) -> KeptCredential {
        let (path, user) =
            (self.shared.folder.file(&format!("{number}.kubeconfig")), self.shared.folder.user(number));
        let (is_ready, ready) = watch::channel(false);
        let reporter = proxy.reporter(Some(&self.shared.node));
        let keeping = keep(self.shared.clone(), proxy.clone(), path.clone(), user, is_ready);
        KeptCredential { path, user, reporter, ready, task: tokio::spawn(keeping) }
    }
}

async fn keep(
    shared: Arc<Shared>,
    proxy: ProxyUser,
    path: PathBuf,
    user: Option<u32>,
    ready: watch::Sender<bool>,
) {
    let (mut is_failing, name) = (false, proxy.user_name());
    loop {
        match issue(&shared, &proxy, &path, user).await {
            Ok(renewal) => {
                if is_failing {
                    info!(proxy = name, "the proxy has a credential now");
                }
                is_failing = false;
                ready.send_replace(true);
                while shared.clock.timestamp().as_second() < renewal {
                    tokio::time::sleep(CHECK_PERIOD).await;
                }
            }
            Err(error) => {
                if !is_failing {
                    warn!(proxy = name, error = %format_args!("{error:#}"), "no credential for an L7 proxy; retrying");
                }
                is_failing = true;
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Gets a credential and stores it; returns when it has to be renewed.
async fn issue(shared: &Shared, proxy: &ProxyUser, path: &Path, user: Option<u32>) -> Result<i64> {
    let request = http::Request::post(proxy.path()).body(Vec::new()).context("the request")?;
    let answer: Value = match shared.client.request(request).await {
        Ok(answer) => answer,
        Err(Error::Api(status)) if status.code == 403 => bail!("{}", advice(proxy, &shared.node)),
        Err(Error::Api(status)) => bail!("{}", status.message),
        Err(error) => return Err(error).context("the API"),
    };
    let text = |name: &str| answer[name].as_str().with_context(|| format!("the API's answer has no {name}"));
    let seconds = |name: &str| -> Result<i64> {
        Ok(text(name)?.parse::<jiff::Timestamp>().with_context(|| name.to_owned())?.as_second())
    };
    let node = NodeCredential::read(&shared.kubeconfig)?.context("the credential of this machine is gone")?;
    let content = kubeconfig(&node.server, &node.authority, &proxy.user_name(), text("token")?);
    // A new file is in its place when its owner can read it.
    let new = path.with_extension("next");
    write_private(&new, content.as_bytes()).with_context(|| format!("writing {}", new.display()))?;
    protect(&new, user)?;
    fs::rename(&new, path).with_context(|| format!("writing {}", path.display()))?;
    Ok(renewal_time(seconds("issued")?, seconds("expires")?))
}

fn advice(proxy: &ProxyUser, node: &str) -> String {
    let (what, role) = match proxy.kind {
        ProxyKind::Gateway => ("gateways", GATEWAYS_ROLE),
        ProxyKind::Sidecar => ("sidecars", SIDECARS_ROLE),
    };
    format!(
        "this machine may not run {what}: create its token with --{what}, or allow it on the machine of the API with \
         `kubectl create clusterrolebinding {role}:{node} --clusterrole {role} --user system:node:{node}`"
    )
}
