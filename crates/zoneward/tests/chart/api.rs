//! A cluster's API for tests: the embedded one, and beside it the kinds of a workload that it does not serve, which are
//! kept in memory and checked against their types. Every request is recorded with the role that made it.
//!
//! ```text
//! helm, kubectl --> 127.0.0.1 --+--> kinds of OTHERS, in memory
//! a role --> a socket of its own +--> everything else --> zoneward up
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::chart::objects::unknown_fields;
use crate::started::{Up, ask};

/// A kind that the embedded API may not serve.
#[derive(Debug)]
struct OtherKind {
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    namespaced: bool,
}

const fn other(group: &'static str, kind: &'static str, plural: &'static str, namespaced: bool) -> OtherKind {
    OtherKind { group, kind, plural, namespaced }
}

const RBAC: &str = "rbac.authorization.k8s.io";

/// All are of version v1.
const OTHERS: [OtherKind; 10] = [
    other("", "ServiceAccount", "serviceaccounts", true),
    other("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions", false),
    other("apps", "DaemonSet", "daemonsets", true),
    other("apps", "Deployment", "deployments", true),
    other("networking.k8s.io", "NetworkPolicy", "networkpolicies", true),
    other("policy", "PodDisruptionBudget", "poddisruptionbudgets", true),
    other(RBAC, "ClusterRole", "clusterroles", false),
    other(RBAC, "ClusterRoleBinding", "clusterrolebindings", false),
    other(RBAC, "Role", "roles", true),
    other(RBAC, "RoleBinding", "rolebindings", true),
];

impl OtherKind {
    fn api_version(&self) -> String {
        if self.group.is_empty() { "v1".to_owned() } else { format!("{}/v1", self.group) }
    }

    /// The path of its group.
    fn place(&self) -> String {
        if self.group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{}/v1", self.group) }
    }

    fn resource(&self) -> Value {
        let verbs = ["create", "delete", "get", "list", "patch", "update"];
        json!({"name": self.plural, "singularName": self.kind.to_lowercase(), "namespaced": self.namespaced,
            "kind": self.kind, "verbs": verbs})
    }
}

/// Those that the embedded API really does not serve.
fn others() -> impl Iterator<Item = &'static OtherKind> {
    OTHERS.iter().filter(|other| store::kinds::of(&other.api_version(), other.kind).is_none())
}

/// A request that a role made.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub role: String,
    pub method: String,
    /// Path and query.
    pub target: String,
}

struct Shared {
    data: PathBuf,
    objects: Mutex<BTreeMap<String, Value>>,
    revision: AtomicU64,
    recorded: Mutex<Vec<Recorded>>,
}

/// The API, until it is dropped.
pub struct TestApi {
    pub up: Up,
    pub folder: PathBuf,
    pub kubeconfig: PathBuf,
    shared: Arc<Shared>,
}

impl TestApi {
    pub fn start(name: &str) -> Self {
        let folder = crate::started::folder(name);
        let up = Up::start(&folder, &["--no-mesh", "--no-controllers"]);
        let shared = Arc::new(Shared {
            data: folder.clone(),
            objects: Mutex::default(),
            revision: AtomicU64::new(1),
            recorded: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&accepting);
                std::thread::spawn(move || shared.serve(stream, "admin"));
            }
        });
        let kubeconfig = folder.join("chart.kubeconfig");
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server}}], "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]});
        fs::write(&kubeconfig, config.to_string()).unwrap();
        let api = Self { up, folder, kubeconfig, shared };
        api.create("/api/v1/namespaces", json!({"metadata": {"name": "shop"}}));
        api
    }

    /// A socket whose requests are those of a role.
    pub fn socket(&self, role: &str) -> PathBuf {
        let path = self.folder.join(format!("{role}.sock"));
        let (listener, role) = (UnixListener::bind(&path).unwrap(), role.to_owned());
        let shared = Arc::clone(&self.shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, role) = (Arc::clone(&shared), role.clone());
                std::thread::spawn(move || shared.serve(stream, &role));
            }
        });
        path
    }

    pub fn create(&self, path: &str, object: Value) {
        self.up.post(path, &object);
    }

    pub fn recorded(&self, role: &str) -> Vec<Recorded> {
        let recorded = self.shared.recorded.lock().unwrap();
        recorded.iter().filter(|request| request.role == role).cloned().collect()
    }

    /// The object of a path, of any kind.
    pub fn find(&self, path: &str) -> Option<Value> {
        if let Some(object) = self.shared.objects.lock().unwrap().get(path) {
            return Some(object.clone());
        }
        let answer = self.up.ask("GET", path, "");
        (answer.code == 200).then(|| answer.json())
    }

    /// How many objects of the kinds in memory there are.
    pub fn count(&self) -> usize {
        self.shared.objects.lock().unwrap().len()
    }
}

impl Drop for TestApi {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

struct Request {
    method: String,
    target: String,
    /// As received, without the request line.
    headers: Vec<String>,
    body: Vec<u8>,
}

impl Request {
    fn read(stream: &mut impl Read) -> Option<Self> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let mut words = line.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut headers = Vec::new();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            if header.trim().is_empty() {
                break;
            }
            headers.push(header.trim().to_owned());
        }
        let length = headers.iter().find_map(|header| {
            let (name, value) = header.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
        });
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).ok()?;
        Some(Self { method, target, headers, body })
    }

    fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    fn is_dry_run(&self) -> bool {
        self.target.contains("dryRun=All")
    }
}

type Reply = (u16, Value);

fn status(code: u16, reason: &str, message: &str) -> Reply {
    let word = if code < 300 { "Success" } else { "Failure" };
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": word,
        "reason": reason, "message": message, "code": code});
    (code, status)
}

impl Shared {
    /// One request; the connection is closed after it.
    fn serve(&self, mut stream: impl Read + Write, role: &str) {
        let Some(request) = Request::read(&mut stream) else { return };
        let recorded = Recorded {
            role: role.to_owned(),
            method: request.method.clone(),
            target: request.target.clone(),
        };
        self.recorded.lock().unwrap().push(recorded);
        let Some((code, body)) = self.discovery(&request).or_else(|| self.other_kind(&request)) else {
            return self.forward(&request, &mut stream);
        };
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {code} Answer\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let _ = stream.write_all((head + &body).as_bytes());
    }

    /// Passes a request to the embedded API, and its answer back as it comes.
    fn forward(&self, request: &Request, stream: &mut impl Write) {
        let mut upstream = UnixStream::connect(self.data.join("api.sock")).unwrap();
        let kept = request.headers.iter().filter(|header| !header.to_lowercase().starts_with("connection:"));
        let headers: String = kept.map(|header| format!("{header}\r\n")).collect();
        let head =
            format!("{} {} HTTP/1.1\r\n{headers}connection: close\r\n\r\n", request.method, request.target);
        if upstream.write_all(&[head.as_bytes(), &request.body].concat()).is_err() {
            return;
        }
        let mut piece = [0; 16384];
        while let Ok(length @ 1..) = upstream.read(&mut piece) {
            if stream.write_all(&piece[..length]).is_err() {
                return;
            }
        }
    }

    /// What the embedded API serves, and the other kinds.
    fn discovery(&self, request: &Request) -> Option<Reply> {
        let path = request.path();
        let mut answer = (path == "/apis" || others().any(|kind| kind.place() == path))
            .then(|| ask(Path::new(&self.data), "GET", path, "").json())?;
        if path == "/apis" {
            let groups = answer["groups"].as_array_mut()?;
            for kind in others().filter(|kind| !kind.group.is_empty()) {
                if !groups.iter().any(|group| group["name"] == kind.group) {
                    let version = json!({"groupVersion": kind.api_version(), "version": "v1"});
                    groups.push(
                        json!({"name": kind.group, "versions": [version], "preferredVersion": version}),
                    );
                }
            }
            return Some((200, answer));
        }
        let here: Vec<&OtherKind> = others().filter(|kind| kind.place() == path).collect();
        if answer["kind"] != "APIResourceList" {
            let version = here.first()?.api_version();
            answer = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": []});
        }
        answer["resources"].as_array_mut()?.extend(here.iter().map(|kind| kind.resource()));
        Some((200, answer))
    }

    /// A request on one of the other kinds.
    fn other_kind(&self, request: &Request) -> Option<Reply> {
        let path = request.path();
        let kind = others().find(|kind| {
            let rest = path.strip_prefix(&kind.place()).unwrap_or_default();
            let segments: Vec<&str> = rest.split('/').filter(|segment| !segment.is_empty()).collect();
            let at = if kind.namespaced && segments.first() == Some(&"namespaces") { 2 } else { 0 };
            segments.get(at) == Some(&kind.plural)
        })?;
        let mut objects = self.objects.lock().unwrap();
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let held = objects.get(path).cloned();
        let written = match (request.method.as_str(), held) {
            ("GET", Some(held)) => return Some((200, held)),
            ("GET", None) if path.ends_with(kind.plural) => {
                let items: Vec<&Value> = objects
                    .iter()
                    .filter(|(key, _)| key.starts_with(&format!("{path}/")))
                    .map(|(_, o)| o)
                    .collect();
                let list = json!({"kind": format!("{}List", kind.kind), "apiVersion": kind.api_version(),
                    "metadata": {"resourceVersion": "1"}, "items": items});
                return Some((200, list));
            }
            ("POST", _) => body,
            ("PUT", Some(_)) => body,
            ("PATCH", Some(mut held)) => {
                patch(&mut held, &body);
                held
            }
            ("DELETE", Some(_)) => {
                if !request.is_dry_run() {
                    objects.remove(path);
                }
                return Some(status(200, "", ""));
            }
            (_, _) => return Some(status(404, "NotFound", &format!("{path} not found"))),
        };
        let key = if request.method == "POST" {
            format!("{path}/{}", written["metadata"]["name"].as_str().unwrap_or_default())
        } else {
            path.to_owned()
        };
        if request.method == "POST" && objects.contains_key(&key) {
            return Some(status(409, "AlreadyExists", &format!("{key} already exists")));
        }
        let written = match self.admitted(kind, written) {
            Ok(written) => written,
            Err(reply) => return Some(reply),
        };
        if !request.is_dry_run() {
            objects.insert(key, written.clone());
        }
        Some((if request.method == "POST" { 201 } else { 200 }, written))
    }

    /// The object as it is kept, if its kind has all of its fields.
    fn admitted(&self, kind: &OtherKind, mut object: Value) -> Result<Value, Reply> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let problem = match unknown_fields(&object) {
            _ if object["kind"] != kind.kind => Some(format!("kind is not {}", kind.kind)),
            Ok(fields) if fields.is_empty() => None,
            Ok(fields) => Some(format!("unknown fields {fields:?}")),
            Err(error) => Some(error),
        };
        if let Some(problem) = problem {
            return Err(status(422, "Invalid", &format!("{} {name}: {problem}", kind.kind)));
        }
        let revision = self.revision.fetch_add(1, Ordering::Relaxed);
        let metadata = &mut object["metadata"];
        if metadata["uid"].is_null() {
            metadata["uid"] = json!(format!("00000000-0000-4000-8000-{revision:012}"));
            metadata["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        metadata["resourceVersion"] = json!(revision.to_string());
        Ok(object)
    }
}

/// A strategic merge patch as far as clients send one for these kinds: lists of named objects are merged by name.
fn patch(held: &mut Value, change: &Value) {
    let (Value::Object(fields), Value::Object(changes)) = (&mut *held, change) else {
        *held = change.clone();
        return;
    };
    for (key, change) in changes.iter().filter(|(key, _)| !key.starts_with('$')) {
        match (fields.get_mut(key), change) {
            (_, Value::Null) => {
                fields.remove(key);
            }
            (Some(Value::Array(items)), Value::Array(changes))
                if changes.iter().all(|change| change["name"].is_string()) =>
            {
                for change in changes {
                    match items.iter_mut().find(|item| item["name"] == change["name"]) {
                        Some(item) => patch(item, change),
                        None => items.push(change.clone()),
                    }
                }
            }
            (Some(held), _) => patch(held, change),
            (None, _) => {
                fields.insert(key.clone(), change.clone());
            }
        }
    }
}
