//! Input of commands: objects from YAML or JSON files, single or in lists; without files, from the cluster.
//!
//! A malformed document becomes a Notice; the others are used.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use clock::Clock;
use model::{Interner, Name, Node, Notice, ObjectKey, ObjectRef, ServiceKey, Snapshot, parse, suggestion};
use serde_json::Value;

use crate::ObjectKind;
use crate::object_name::ObjectName;

/// The kinds that commands read from a cluster.
const KINDS: [ObjectKind; 7] = [
    ObjectKind::Namespace,
    ObjectKind::Node,
    ObjectKind::Service,
    ObjectKind::Slice,
    ObjectKind::Pod,
    ObjectKind::ServiceCidr,
    ObjectKind::IpAddress,
];

/// The flags that select the input.
#[derive(Clone, Debug, Default, Args)]
pub struct InputArgs {
    /// Kubernetes YAML or JSON: a file, a directory, or - for standard input; repeatable [default: the cluster]
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR|-", conflicts_with_all = ["kubeconfig", "context", "api_socket"])]
    pub files: Vec<PathBuf>,
    /// Process directories recursively
    #[arg(short = 'R', long, requires = "files")]
    pub recursive: bool,
    /// Namespace of Services, and of objects without a namespace [default: all in files, the namespace of the context
    /// in a cluster]
    #[arg(short = 'n', long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Services in all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    #[command(flatten)]
    pub connection: crate::Connection,
}

impl InputArgs {
    /// The input of a node, which serves all namespaces unless one is set.
    pub fn for_node(&self) -> InputArgs {
        InputArgs { all_namespaces: self.namespace.is_none(), ..self.clone() }
    }
}

/// Parsed objects of an input.
#[derive(Default)]
pub struct LoadedObjects {
    pub snapshot: Snapshot,
    /// The JSON of EndpointSlices, for in-place updates.
    pub stored_slices: BTreeMap<ObjectKey, Value>,
    /// Kind and name of the controlling owner of each Pod.
    pub pod_owners: BTreeMap<ObjectKey, (Name, Name)>,
    /// JSON of one Pod per owner, by the owner's namespace, kind and name.
    pub sample_pods: BTreeMap<(Name, Name, Name), Value>,
    pub notices: Vec<Notice>,
    /// Malformed Services.
    pub unreadable_services: Vec<ServiceKey>,
    /// Whether a document could not be parsed at all.
    pub unreadable: bool,
}

/// Exists in every cluster.
const DEFAULT_NAMESPACE: &str = "default";

/// The namespace of an object, or the name of a Namespace.
fn namespace_of(object: &Value) -> Option<&str> {
    let field = if object["kind"] == "Namespace" { "name" } else { "namespace" };
    object["metadata"][field].as_str()
}

/// The objects of an input as JSON.
pub struct Documents {
    /// Items of lists are separate objects; `-n` sets missing namespaces.
    pub objects: Vec<Value>,
    pub notices: Vec<Notice>,
}

impl LoadedObjects {
    /// Reads and parses the files of `-f`, or the objects of the cluster.
    pub fn read(input: &InputArgs) -> Result<Self> {
        let mut loaded = Self::default();
        let documents = Documents::read(input)?;
        documents.check_namespace(input)?;
        loaded.add_documents(documents);
        // Endpoints that warm up or are drained have the shares of now.
        plan::capacity::advance(&mut loaded.snapshot, Clock::system().timestamp().into());
        Ok(loaded)
    }

    /// A Node by name: an error if the input has Nodes and not this one, `None` if it has no Nodes.
    pub fn node(&self, name: &str) -> Result<Option<&Node>> {
        let found = self.snapshot.node(name);
        let names = || self.snapshot.nodes().keys().map(|name| name.as_str());
        if found.is_none() && names().next().is_some() {
            bail!("{}", unknown("Node", name, names()));
        }
        Ok(found)
    }

    /// An error unless the name matches a Service, well-formed or not.
    pub fn check_service(&self, name: &ObjectName, namespace: Option<&str>) -> Result<()> {
        let keys =
            || self.snapshot.services().map(|(service, _)| &service.key).chain(&self.unreadable_services);
        if keys().any(|key| name.matches(key, namespace)) {
            return Ok(());
        }
        bail!("{}", name.unknown(namespace, keys()))
    }

    /// Adds another input, which replaces objects with the same name.
    pub fn add(&mut self, input: &InputArgs) -> Result<()> {
        self.add_documents(Documents::read(input)?);
        Ok(())
    }

    fn add_documents(&mut self, documents: Documents) {
        self.unreadable |= !documents.notices.is_empty();
        self.notices.extend(documents.notices);
        let mut interner = Interner::default();
        for value in documents.objects {
            let (object, notices) = parse::object(&value, &mut interner);
            self.notices.extend(notices);
            let Some(object) = object else {
                let about = parse::object_ref(&value);
                if about.kind == "Service" {
                    self.unreadable_services.push(ServiceKey::new(&about.namespace, &about.name));
                }
                continue;
            };
            match &object {
                model::Object::Slice(slice) => drop(self.stored_slices.insert(slice.key.clone(), value)),
                model::Object::Pod(pod) => {
                    if let Some((kind, name)) = controlling_owner(&value, &mut interner) {
                        self.pod_owners.insert(pod.key.clone(), (kind.clone(), name.clone()));
                        let owner = (pod.key.namespace.clone(), kind, name);
                        self.sample_pods.entry(owner).or_insert(value);
                    }
                }
                _ => {}
            }
            self.snapshot.apply(object);
        }
    }
}

/// Most names in a message.
const SHOWN: usize = 10;

/// `there is no Node nod-a1; did you mean "node-a1"?`
fn unknown<'a>(kind: &str, name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let near = suggestion::did_you_mean(name, known.clone());
    if !near.is_empty() {
        return format!("there is no {kind} {name}{near}");
    }
    let shown: Vec<&str> = known.clone().take(SHOWN).collect();
    let rest = if known.count() > SHOWN { ", ..." } else { "" };
    format!("there is no {kind} {name}; there are {}{rest}", shown.join(", "))
}

impl Documents {
    /// Reads the files of `-f`; without `-f`, the cluster.
    pub fn read(input: &InputArgs) -> Result<Self> {
        let mut documents = Self { objects: Vec::new(), notices: Vec::new() };
        if input.files.is_empty() {
            documents.objects = list_cluster(input)?;
            return Ok(documents);
        }
        for path in &input.files {
            if path.as_os_str() == "-" {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text).context("reading standard input")?;
                documents.add_text("standard input", &text);
                continue;
            }
            for file in files(path, input.recursive)? {
                let text =
                    std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
                documents.add_text(&file.display().to_string(), &text);
            }
        }
        if let Some(namespace) = &input.namespace {
            documents.objects.iter_mut().for_each(|object| fill_in_namespace(object, namespace));
        }
        Ok(documents)
    }

    /// An error if no object is in the namespace of `-n`.
    pub fn check_namespace(&self, input: &InputArgs) -> Result<()> {
        let Some(namespace) = input.namespace.as_deref().filter(|n| *n != DEFAULT_NAMESPACE) else {
            return Ok(());
        };
        let mut known: BTreeSet<&str> = self.objects.iter().filter_map(namespace_of).collect();
        known.insert(DEFAULT_NAMESPACE);
        if known.contains(namespace) || self.objects.is_empty() {
            return Ok(());
        }
        bail!("{}", unknown("Namespace", namespace, known.iter().copied()))
    }

    fn add_text(&mut self, source: &str, text: &str) {
        if let Some(values) = json_values(text) {
            values.into_iter().for_each(|value| self.add_value(source, value));
            return;
        }
        for (line, document) in yaml_documents(text) {
            match parse_yaml(document) {
                Ok(Value::Null) => {}
                Ok(value) => self.add_value(source, value),
                Err(error) => {
                    self.unreadable(source, format!("the document that starts at line {line}: {error}"))
                }
            }
        }
    }

    fn add_value(&mut self, source: &str, value: Value) {
        let kind = value["kind"].as_str().unwrap_or_default().to_owned();
        if !value.is_object() || kind.is_empty() {
            let what = "a document is not a Kubernetes object: it has no kind".to_owned();
            return self.unreadable(source, what);
        }
        match (kind.strip_suffix("List"), value) {
            (Some(item_kind), Value::Object(mut list)) if list.contains_key("items") => {
                let api_version = list.get("apiVersion").cloned().unwrap_or_default();
                let Some(Value::Array(items)) = list.remove("items") else { return };
                for mut item in items {
                    // Items of a typed list, as ServiceList, have no kind.
                    if let Some(item) = item.as_object_mut().filter(|_| !item_kind.is_empty()) {
                        item.entry("kind").or_insert_with(|| item_kind.into());
                        item.entry("apiVersion").or_insert_with(|| api_version.clone());
                    }
                    self.add_value(source, item);
                }
            }
            (_, value) => self.objects.push(value),
        }
    }

    fn unreadable(&mut self, source: &str, message: String) {
        let advice = "It is ignored; the other documents are used.";
        self.notices.push(Notice::new(
            ObjectRef::new("File", "", source),
            "Unreadable",
            format!("{message}. {advice}"),
        ));
    }
}

/// Lists the objects of the cluster: cluster-scoped ones, and those of the namespaces that `-n`, `-A` or the context select.
fn list_cluster(input: &InputArgs) -> Result<Vec<Value>> {
    let runtime = tokio::runtime::Runtime::new().context("starting threads")?;
    runtime.block_on(async {
        let (client, address) = crate::open(&input.connection, &Clock::system())
            .await
            .context("reading from the cluster, because -f is not set")?;
        let namespace = match (&input.namespace, input.all_namespaces) {
            (_, true) => None,
            (Some(namespace), _) => Some(namespace.as_str()),
            (None, false) => Some(client.default_namespace()),
        };
        let mut objects = Vec::new();
        // Listing a kind without its CustomResourceDefinition returns nothing.
        for kind in KINDS.into_iter().chain(ObjectKind::MESH).chain(ObjectKind::GATEWAY_API) {
            let listed = crate::list(&client, kind, namespace).await;
            objects.extend(listed.with_context(|| format!("the API at {address}"))?);
        }
        Ok(objects)
    })
}

/// Kind and name of a Pod's controlling owner.
fn controlling_owner(pod: &Value, interner: &mut Interner) -> Option<(Name, Name)> {
    let owners = pod["metadata"]["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    Some((interner.name(owner["kind"].as_str()?), interner.name(owner["name"].as_str()?)))
}

/// The file itself, or the manifests of a directory, sorted by name.
pub fn files(path: &Path, recursive: bool) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    let mut directories = vec![path.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries =
            std::fs::read_dir(&directory).with_context(|| format!("reading {}", directory.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("reading {}", directory.display()))?.path();
            let is_manifest = entry.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
            if entry.is_dir() && recursive {
                directories.push(entry);
            } else if is_manifest {
                files.push(entry);
            }
        }
    }
    if files.is_empty() {
        let hint = if recursive { "" } else { " (-R reads its subdirectories)" };
        bail!("{}: no .yaml, .yml or .json file in this directory{hint}", path.display());
    }
    files.sort();
    Ok(files)
}

/// The values of a JSON text; `None` for YAML that starts like JSON.
fn json_values(text: &str) -> Option<Vec<Value>> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    serde_json::Deserializer::from_str(text).into_iter().collect::<Result<Vec<Value>, _>>().ok()
}

/// The documents of a YAML text with their first lines. They are split before parsing, so that a malformed document does not
/// hide the others.
fn yaml_documents(text: &str) -> Vec<(usize, &str)> {
    let mut documents = Vec::new();
    let (mut start, mut start_line, mut offset) = (0, 1, 0);
    for (i, line) in text.split_inclusive('\n').enumerate() {
        let is_separator = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.trim_end().is_empty() || rest.starts_with([' ', '\t']));
        if is_separator {
            documents.push((start_line, &text[start..offset]));
            start = offset + 3;
            start_line = i + 1;
        }
        offset += line.len();
    }
    documents.push((start_line, &text[start..]));
    documents.retain(|(_, document)| !document.trim().is_empty());
    documents
}

/// Raises the size limits for dumps of large clusters; the limits on aliases stay.
fn parse_yaml(document: &str) -> Result<Value, String> {
    const MAX_NODES: usize = 100_000_000;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: MAX_NODES,
            max_nodes: MAX_NODES,
            max_total_scalar_bytes: 1 << 30,
        },
    };
    serde_saphyr::from_str_with_options(document, options).map_err(|error| {
        let text = error.to_string();
        text.lines().next().unwrap_or_default().trim_end_matches('.').to_owned()
    })
}

fn fill_in_namespace(object: &mut Value, namespace: &str) {
    let cluster_scoped = ["Node", "Namespace", "ServiceCIDR", "IPAddress", "GatewayClass"];
    if object["kind"].as_str().is_some_and(|kind| cluster_scoped.contains(&kind)) {
        return;
    }
    let Some(object) = object.as_object_mut() else { return };
    let metadata = object.entry("metadata").or_insert_with(|| serde_json::json!({}));
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.entry("namespace").or_insert_with(|| namespace.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Vec<String>, Vec<String>) {
        let mut documents = Documents { objects: Vec::new(), notices: Vec::new() };
        documents.add_text("test.yaml", text);
        let names = documents.objects.iter().map(|o| parse::object_ref(o).to_string()).collect();
        (names, documents.notices.into_iter().map(|n| n.to_string()).collect())
    }

    #[test]
    fn documents_lists_and_json_streams_are_split() {
        let (names, notices) = read(
            "# a comment\n---\nkind: Service\nmetadata: {name: a}\n---\n\n--- # empty\n---\nkind: List\nitems:\n- {kind: Pod, metadata: {name: b}}\n",
        );
        assert_eq!(
            (names, notices),
            (vec!["Service default/a".to_owned(), "Pod default/b".to_owned()], vec![])
        );
        let (names, _) = read(
            r#"{"kind":"ServiceList","apiVersion":"v1","items":[{"metadata":{"name":"a"}}]} {"kind":"Node","metadata":{"name":"n"}}"#,
        );
        assert_eq!(names, ["Service default/a", "Node n"]);
        let (names, _) = read("{kind: Service, metadata: {name: flow}}");
        assert_eq!(names, ["Service default/flow"]);
    }

    #[test]
    fn a_broken_document_does_not_hide_the_others() {
        let (names, notices) = read(
            "kind: Service\nmetadata: {name: a}\n---\nkind: [\n---\nkind: Service\nmetadata: {name: c}\n",
        );
        assert_eq!(names, ["Service default/a", "Service default/c"]);
        assert_eq!(notices.len(), 1);
        assert!(
            notices[0].starts_with("File test.yaml: Unreadable: the document that starts at line 3:"),
            "{notices:?}"
        );
    }

    #[test]
    fn a_document_without_a_kind_is_reported() {
        let (names, notices) = read("just: text\n");
        assert!(names.is_empty());
        assert!(notices[0].contains("it has no kind"), "{notices:?}");
    }
}
