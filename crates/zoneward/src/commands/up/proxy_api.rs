//! The API for the L7 proxies of this machine: each has a socket of its own, rights by RBAC, and where `up` is root, a
//! user of its own. `api.sock` is not for them: it is the API as admin. A second socket of each takes its traffic reports,
//! under its own name, and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use apimachinery::join::PROXIES;
use cluster::admin_server;
use insight::traffic_ledger::SharedLedger;
use kube::Client;
use model::ProxyUser;
use serde_json::{Value, json};
use store::api::Caller;
use store::server::ApiServer;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::warn;

use super::proxy_folder::{ProxyFolder, protect};

const RBAC: &str = "rbac.authorization.k8s.io";

/// Serves the API to proxies.
pub(crate) struct ProxyApi {
    server: ApiServer,
    client: Client,
    folder: ProxyFolder,
    /// Takes reports, if a controller runs in this process.
    ledger: Option<SharedLedger>,
}

/// The API of one proxy, until it is dropped.
pub(crate) struct ProxySocket {
    pub path: PathBuf,
    pub reports: Option<ReportSocket>,
    /// The user that the proxy runs as; `None` for that of this process.
    pub user: Option<u32>,
    task: JoinHandle<()>,
}

impl Drop for ProxySocket {
    fn drop(&mut self) {
        self.task.abort();
        let _ = fs::remove_file(&self.path);
    }
}

/// Where one proxy reports its traffic to, until it is dropped.
pub(crate) struct ReportSocket {
    pub path: PathBuf,
    reporter: String,
    ledger: SharedLedger,
    /// Ends the server when it is dropped.
    _stop: watch::Sender<bool>,
}

impl Drop for ReportSocket {
    fn drop(&mut self) {
        self.ledger.close_reporter(&self.reporter);
        let _ = fs::remove_file(&self.path);
    }
}

impl ProxyApi {
    pub(crate) fn open(
        server: ApiServer,
        client: Client,
        data: &Path,
        ledger: Option<SharedLedger>,
    ) -> Result<Self> {
        Ok(Self { server, client, folder: ProxyFolder::open(data)?, ledger })
    }

    /// Serves the API to the proxy with a number, as this user of the API.
    pub(crate) fn socket(&self, number: usize, proxy: &ProxyUser) -> Result<ProxySocket> {
        let user = self.folder.user(number);
        let (path, listener) = self.listen(&format!("{number}.sock"), user)?;
        let caller = Caller::new(&proxy.user_name(), &[PROXIES, apimachinery::rbac::AUTHENTICATED]);
        let task = tokio::spawn(self.server.clone().serve_unix_as(listener, caller));
        let mut socket = ProxySocket { path, reports: None, user, task };
        if let Some(ledger) = &self.ledger {
            let (path, listener) = self.listen(&format!("{number}-ledger.sock"), user)?;
            let (stop, stopped) = watch::channel(false);
            let reporter = proxy.reporter(None);
            tokio::spawn(admin_server::serve_unix(listener, ledger.report_routes(&reporter), stopped));
            socket.reports = Some(ReportSocket { path, reporter, ledger: ledger.clone(), _stop: stop });
        }
        Ok(socket)
    }

    /// A socket that this user alone can open; `None` for that of this process.
    fn listen(&self, file: &str, user: Option<u32>) -> Result<(PathBuf, UnixListener)> {
        let path = self.folder.file(file);
        let _ = fs::remove_file(&path);
        let listener =
            UnixListener::bind(&path).with_context(|| format!("listening on {}", path.display()))?;
        protect(&path, user)?;
        Ok((path, listener))
    }

    /// Grants a gateway Secrets and ConfigMaps of a namespace by name, and no others.
    pub(crate) async fn grant_sources(
        &self,
        gateway: &GatewayName,
        namespace: &str,
        sources: &CertificateNames,
    ) {
        let name = gateway.role(namespace);
        let rule = |resource: &str, names: &BTreeSet<String>| json!({"apiGroups": [""], "resources": [resource], "resourceNames": names, "verbs": ["list", "watch"]});
        // A rule without names would be for all objects.
        let all = [("secrets", &sources.secrets), ("configmaps", &sources.config_maps)];
        let rules: Vec<Value> = all
            .into_iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(resource, names)| rule(resource, names))
            .collect();
        let metadata = json!({"name": name, "namespace": namespace});
        let role =
            json!({"apiVersion": format!("{RBAC}/v1"), "kind": "Role", "metadata": metadata, "rules": rules});
        let binding = json!({"apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": gateway.user()}]});
        self.put(&format!("/apis/{RBAC}/v1/namespaces/{namespace}/roles"), role).await;
        self.put(&format!("/apis/{RBAC}/v1/namespaces/{namespace}/rolebindings"), binding).await;
    }

    /// Withdraws them.
    pub(crate) async fn revoke_sources(&self, gateway: &GatewayName, namespace: &str) {
        for kind in ["rolebindings", "roles"] {
            let path = format!("/apis/{RBAC}/v1/namespaces/{namespace}/{kind}/{}", gateway.role(namespace));
            if let Ok(request) = http::Request::delete(path).body(Vec::new()) {
                // They go with their namespace as well.
                let _ = self.client.request::<Value>(request).await;
            }
        }
    }

    /// Replaces an object, or creates it.
    async fn put(&self, path: &str, object: Value) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let body = object.to_string().into_bytes();
        let requests = [
            http::Request::put(format!("{path}/{name}")).header("content-type", "application/json"),
            http::Request::post(path).header("content-type", "application/json"),
        ];
        let mut failure = None;
        for request in requests {
            let Ok(request) = request.body(body.clone()) else { continue };
            match self.client.request::<Value>(request).await {
                Ok(_) => return,
                Err(error) => failure = Some(error),
            }
        }
        if let Some(error) = failure {
            warn!(path, name, %error, "rights of an L7 proxy were not written");
        }
    }
}

/// Namespace and name of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GatewayName {
    pub namespace: String,
    pub name: String,
}

impl GatewayName {
    /// The gateway as a user of the API.
    pub(crate) fn proxy(&self) -> ProxyUser {
        ProxyUser::gateway(&self.namespace, &self.name)
    }

    fn user(&self) -> String {
        self.proxy().user_name()
    }

    /// The name of its Role in a namespace.
    fn role(&self, namespace: &str) -> String {
        match self.namespace == namespace {
            true => format!("system:zoneward:gateway:{}", self.name),
            false => self.user(),
        }
    }
}

/// The Secrets and ConfigMaps of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CertificateNames {
    pub secrets: BTreeSet<String>,
    pub config_maps: BTreeSet<String>,
}
