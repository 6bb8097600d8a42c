//! The API for the L7 proxies of this machine: each has a socket of its own, rights by RBAC, and where `up` is root, a
//! user of its own. `api.sock` is not for them: it is the API as admin. A second socket of each takes its traffic reports,
//! under its own name, and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cluster::admin_server;
use cluster::supervisor;
use controller::traffic_ledger::SharedLedger;
use kube::Client;
use serde_json::{Value, json};
use store::api::Caller;
use store::server::ApiServer;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::warn;

/// User of the first proxy; the others have the ids below it.
const FIRST_USER: u32 = 65_532;
/// The group of all proxies.
const GROUP: &str = "system:zoneward:proxies";
/// The ClusterRole of all proxies.
const ROLE: &str = "system:zoneward:proxy";
const RBAC: &str = "rbac.authorization.k8s.io";

/// Serves the API to proxies.
pub struct ProxyApi {
    server: ApiServer,
    client: Client,
    folder: PathBuf,
    changes_user: bool,
    /// Takes reports, if a controller runs in this process.
    ledger: Option<SharedLedger>,
}

/// The API of one proxy, until it is dropped.
pub struct ProxySocket {
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
pub struct ReportSocket {
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

impl Drop for ProxyApi {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl ProxyApi {
    pub fn open(
        server: ApiServer,
        client: Client,
        data: &Path,
        ledger: Option<SharedLedger>,
    ) -> Result<Self> {
        let changes_user = supervisor::can_change_user(FIRST_USER);
        // Other users cannot enter the data directory.
        let folder = match (changes_user, std::env::var_os("RUNTIME_DIRECTORY")) {
            (false, _) => data.join("proxies"),
            (true, Some(runtime)) => Path::new(&runtime).join("proxies"),
            (true, None) => std::env::temp_dir().join(format!("zoneward-{:016x}", clock::os_seed())),
        };
        if !changes_user {
            warn!(
                "L7 proxies run as the user of this process: it is not root, or its namespace has no other users"
            );
        }
        let _ = fs::remove_dir_all(&folder);
        let mode = if changes_user { 0o711 } else { 0o700 };
        // Fails if it exists: in a shared folder it could belong to another user.
        fs::DirBuilder::new()
            .mode(mode)
            .create(&folder)
            .with_context(|| format!("creating {}", folder.display()))?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(mode))
            .with_context(|| format!("protecting {}", folder.display()))?;
        Ok(Self { server, client, folder, changes_user, ledger })
    }

    /// Serves the API to the proxy with a number, as this user of the API. It reports traffic as `reporter`.
    pub fn socket(&self, number: usize, name: &str, reporter: &str) -> Result<ProxySocket> {
        let offset = u32::try_from(number).unwrap_or(u32::MAX);
        let user = self.changes_user.then(|| FIRST_USER.saturating_sub(offset).max(1));
        let (path, listener) = self.listen(&format!("{number}.sock"), user)?;
        let caller = Caller::new(name, &[GROUP, plan::rbac::AUTHENTICATED]);
        let task = tokio::spawn(self.server.clone().serve_unix_as(listener, caller));
        let mut socket = ProxySocket { path, reports: None, user, task };
        if let Some(ledger) = &self.ledger {
            let (path, listener) = self.listen(&format!("{number}-ledger.sock"), user)?;
            let (stop, stopped) = watch::channel(false);
            tokio::spawn(admin_server::serve_unix(listener, ledger.report_routes(reporter), stopped));
            let (reporter, ledger) = (reporter.to_owned(), ledger.clone());
            socket.reports = Some(ReportSocket { path, reporter, ledger, _stop: stop });
        }
        Ok(socket)
    }

    /// A socket that this user alone can open; `None` for that of this process.
    fn listen(&self, file: &str, user: Option<u32>) -> Result<(PathBuf, UnixListener)> {
        let path = self.folder.join(file);
        let _ = fs::remove_file(&path);
        let listener =
            UnixListener::bind(&path).with_context(|| format!("listening on {}", path.display()))?;
        let protect = || format!("protecting {}", path.display());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).with_context(protect)?;
        if let Some(user) = user {
            chown(&path, Some(user), Some(user)).with_context(protect)?;
        }
        Ok((path, listener))
    }

    /// Grants what every proxy needs.
    pub async fn grant_common(&self) {
        let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
        let reads = ["list", "watch"];
        let role = json!({"apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": {"name": ROLE},
        "rules": [
            rule("", &["services", "pods", "nodes", "namespaces"], &reads),
            rule("discovery.k8s.io", &["endpointslices"], &reads),
            rule("zoneward.dev", &["meshhttproutes", "meshgatewayhttproutes", "meshtcproutes", "meshgateways", "meshloadbalancings", "meshroutefilters"], &reads),
            rule("gateway.networking.k8s.io", &["gatewayclasses", "gateways", "listenersets", "httproutes", "grpcroutes",
                "tlsroutes", "tcproutes", "udproutes", "referencegrants", "backendtlspolicies"], &reads),
            rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
            rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
        ]});
        let binding = json!({"apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding",
            "metadata": {"name": ROLE}, "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": ROLE},
            "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": GROUP}]});
        self.put(&format!("/apis/{RBAC}/v1/clusterroles"), role).await;
        self.put(&format!("/apis/{RBAC}/v1/clusterrolebindings"), binding).await;
    }

    /// Grants a gateway Secrets and ConfigMaps of a namespace by name, and no others.
    pub async fn grant_sources(&self, gateway: &GatewayName, namespace: &str, sources: &CertificateNames) {
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
    pub async fn revoke_sources(&self, gateway: &GatewayName, namespace: &str) {
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
pub struct GatewayName {
    pub namespace: String,
    pub name: String,
}

impl GatewayName {
    /// The user of the gateway in the API.
    pub fn user(&self) -> String {
        format!("system:zoneward:gateway:{}:{}", self.namespace, self.name)
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
pub struct CertificateNames {
    pub secrets: BTreeSet<String>,
    pub config_maps: BTreeSet<String>,
}
