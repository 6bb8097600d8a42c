//! A client that follows its kubeconfig: renewed certificates and tokens are used without a restart.
//!
//! The files are read again every [`PERIOD`] while there are requests, and after a request that failed; one that was
//! answered with 401 is sent once more with what was read. Running watches keep their connection; the next request uses
//! the new credentials. Token files, the pod's service account and tokens of exec plugins are followed by kube-client.

use std::fs;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use clock::Clock;
use http::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use kube::config::Kubeconfig;
use tokio::sync::Mutex;
use tower::Service;
use tracing::{info, warn};

use super::Connection;

/// Interval between reads of the files.
const PERIOD: Duration = Duration::from_secs(10);

/// The content of each file; `None` if it cannot be read.
type FileContents = Vec<(PathBuf, Option<Vec<u8>>)>;

#[derive(Clone)]
struct KubeconfigService {
    connection: Connection,
    clock: Clock,
    state: Arc<Mutex<KubeconfigState>>,
}

struct KubeconfigState {
    client: Client,
    contents: FileContents,
    read_at: Instant,
    /// A request failed: read the files before the next one.
    is_due: bool,
    /// When the client was created, with the credentials of exec plugins.
    created_at: Instant,
    /// Counts the clients.
    version: u64,
}

/// Follows the files of `client`, which was made of `connection`; without files, the client stays as it is.
pub(super) fn following(client: Client, connection: &Connection, clock: &Clock) -> Client {
    let (contents, _) = read(connection);
    if contents.iter().all(|(_, content)| content.is_none()) {
        return client;
    }
    let (namespace, now) = (client.default_namespace().to_owned(), clock.now());
    let state =
        KubeconfigState { client, contents, read_at: now, is_due: false, created_at: now, version: 0 };
    let (connection, clock, state) = (connection.clone(), clock.clone(), Arc::new(Mutex::new(state)));
    Client::new(KubeconfigService { connection, clock, state }, namespace)
}

impl KubeconfigService {
    /// The client of the newest files that can be used, and its version.
    async fn client(&self) -> (Client, u64) {
        let now = self.clock.now();
        let mut state = self.state.lock().await;
        let is_due = std::mem::take(&mut state.is_due);
        if is_due || now.saturating_duration_since(state.read_at) >= PERIOD {
            state.read_at = now;
            let (contents, has_plugin) = read(&self.connection);
            let is_old = now.saturating_duration_since(state.created_at) >= PERIOD;
            // That the certificate of a plugin has expired is known only from a failure.
            if contents != state.contents || is_due && is_old && has_plugin {
                state.contents = contents;
                self.replace_client(&mut state, now).await;
            }
        }
        (state.client.clone(), state.version)
    }

    async fn replace_client(&self, state: &mut KubeconfigState, now: Instant) {
        state.created_at = now;
        match super::client_of(&self.connection, &self.clock).await {
            Ok((client, _)) => {
                info!("kubeconfig changed; using its credentials");
                state.client = client;
                state.version += 1;
            }
            Err(error) => warn!(
                error = format!("{error:#}"),
                "kubeconfig changed and cannot be used; keeping the credentials"
            ),
        }
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        let (parts, body) = request.into_parts();
        let again = body.try_clone().map(|body| Request::from_parts(parts.clone(), body));
        let (client, version) = self.client().await;
        let result = client.send(Request::from_parts(parts, body)).await;
        let is_refused = result.as_ref().is_ok_and(|response| response.status() == StatusCode::UNAUTHORIZED);
        if !is_refused && result.is_ok() {
            return result;
        }
        self.state.lock().await.is_due = true;
        if !is_refused {
            return result;
        }
        match (again, self.client().await) {
            (Some(again), (client, newest)) if newest != version => client.send(again).await,
            _ => result,
        }
    }
}

impl Service<Request<Body>> for KubeconfigService {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, kube::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), kube::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { service.send(request).await })
    }
}

/// The kubeconfigs and the files that they name, and whether a user's credentials come from a plugin.
fn read(connection: &Connection) -> (FileContents, bool) {
    let mut has_plugin = false;
    let mut files = match &connection.kubeconfig {
        Some(file) => vec![file.clone()],
        None => match std::env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty()) {
            Some(paths) => {
                std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).collect()
            }
            None => std::env::home_dir().map(|home| home.join(".kube/config")).into_iter().collect(),
        },
    };
    for kubeconfig in files.clone().iter().filter_map(|file| Kubeconfig::read_from(file).ok()) {
        has_plugin |= kubeconfig
            .auth_infos
            .iter()
            .any(|user| user.auth_info.as_ref().is_some_and(|user| user.exec.is_some()));
        let users = kubeconfig.auth_infos.iter().filter_map(|user| user.auth_info.as_ref());
        let named = users.flat_map(|user| [&user.client_certificate, &user.client_key]).flatten();
        let clusters = kubeconfig.clusters.iter().filter_map(|cluster| cluster.cluster.as_ref());
        let authorities = clusters.filter_map(|cluster| cluster.certificate_authority.as_ref());
        files.extend(named.chain(authorities).map(PathBuf::from));
    }
    (files.into_iter().map(|file| (file.clone(), fs::read(file).ok())).collect(), has_plugin)
}

#[cfg(test)]
mod tests;
