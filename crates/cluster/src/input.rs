//! Objects from files: YAML or JSON, one or many to a file, single or in lists; without files, from the cluster.
//!
//! One document that cannot be read is one Notice; the others count.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use model::{Interner, Name, Node, Notice, ObjectKey, ObjectRef, ServiceKey, Snapshot, parse, suggestion};
use serde_json::Value;

use crate::Kind;
use crate::object_name::ObjectName;

/// What a command reads from a cluster.
const KINDS: [Kind; 7] =
    [Kind::Namespace, Kind::Node, Kind::Service, Kind::Slice, Kind::Pod, Kind::ServiceCidr, Kind::IpAddress];

/// Where objects come from.
#[derive(Clone, Debug, Default, Args)]
pub struct Input {
    /// Kubernetes YAML or JSON: a file, a folder, or - for standard input; may be repeated [default: the cluster]
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR|-", conflicts_with_all = ["kubeconfig", "context", "api_socket"])]
    pub files: Vec<PathBuf>,
    /// Go into the folders of a folder, too
    #[arg(short = 'R', long, requires = "files")]
    pub recursive: bool,
    /// Only Services of this namespace; also the namespace of objects that name none [default: all of the files, the
    /// context's of the cluster]
    #[arg(short = 'n', long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Services of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub connection: crate::Connection,
}

impl Input {
    /// The same for a node, whose rules know no namespaces: all of them, unless one is named.
    pub fn for_node(&self) -> Input {
        Input { all_namespaces: self.namespace.is_none(), ..self.clone() }
    }
}

/// Everything that was read.
#[derive(Default)]
pub struct World {
    /// The objects that the brain knows, parsed.
    pub snapshot: Snapshot,
    /// The EndpointSlices as they were written, for changing them in place.
    pub stored_slices: BTreeMap<ObjectKey, Value>,
    /// Kind and name of what controls each pod, as far as it says so.
    pub pod_owners: BTreeMap<ObjectKey, (Name, Name)>,
    /// Of each owner's pods, the first as it was written, by the owner's namespace, kind and name.
    pub sample_pods: BTreeMap<(Name, Name, Name), Value>,
    /// What was wrong with some of them.
    pub notices: Vec<Notice>,
    /// The Services that are there but malformed.
    pub unreadable_services: Vec<ServiceKey>,
    /// Whether some document could not be read at all.
    pub unreadable: bool,
}

/// There is always this one.
const DEFAULT_NAMESPACE: &str = "default";

/// The namespace that an object is, or is in.
fn namespace_of(object: &Value) -> Option<&str> {
    let field = if object["kind"] == "Namespace" { "name" } else { "namespace" };
    object["metadata"][field].as_str()
}

/// The documents, not yet looked into.
pub struct Documents {
    /// Each object, lists taken apart, with a namespace filled in where `-n` says so.
    pub objects: Vec<Value>,
    /// What could not be read.
    pub notices: Vec<Notice>,
}

impl World {
    /// Reads and parses everything that `-f` names, or what the cluster has.
    pub fn read(input: &Input) -> Result<Self> {
        let mut world = Self::default();
        let documents = Documents::read(input)?;
        documents.check_namespace(input)?;
        world.add_documents(documents);
        Ok(world)
    }

    /// The Node of that name; an error where there are Nodes and it is none of them. Without any Node, whether it
    /// exists cannot be said, and it is `None`.
    pub fn node(&self, name: &str) -> Result<Option<&Node>> {
        let found = self.snapshot.node(name);
        let names = || self.snapshot.nodes().keys().map(|name| name.as_str());
        if found.is_none() && names().next().is_some() {
            bail!("{}", unknown("Node", name, names()));
        }
        Ok(found)
    }

    /// An error where the name means none of these Services, nor one that is there but malformed.
    pub fn check_service(&self, name: &ObjectName, namespace: Option<&str>) -> Result<()> {
        let keys =
            || self.snapshot.services().map(|(service, _)| &service.key).chain(&self.unreadable_services);
        if keys().any(|key| name.is(key, namespace)) {
            return Ok(());
        }
        bail!("{}", name.unknown(namespace, keys()))
    }

    /// Reads more; an object takes the place of the one with the same name.
    pub fn add(&mut self, input: &Input) -> Result<()> {
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

/// How many names a message lists.
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
    /// Reads everything that `-f` names; without `-f`, the cluster's objects.
    pub fn read(input: &Input) -> Result<Self> {
        let mut documents = Self { objects: Vec::new(), notices: Vec::new() };
        if input.files.is_empty() {
            documents.objects = live(input)?;
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

    /// An error where `-n` names a namespace that no object is in.
    pub fn check_namespace(&self, input: &Input) -> Result<()> {
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
            let what = "a document is no Kubernetes object: it has no kind".to_owned();
            return self.unreadable(source, what);
        }
        match (kind.strip_suffix("List"), value) {
            (Some(item_kind), Value::Object(mut list)) if list.contains_key("items") => {
                let api_version = list.get("apiVersion").cloned().unwrap_or_default();
                let Some(Value::Array(items)) = list.remove("items") else { return };
                for mut item in items {
                    // The items of a typed list, as a ServiceList, carry no kind of their own.
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
        let advice = "It is left out; everything else counts.";
        self.notices.push(Notice::new(
            ObjectRef::new("File", "", source),
            "Unreadable",
            format!("{message}. {advice}"),
        ));
    }
}

/// What the cluster has: everything where it has no namespace, else what `-n`, `-A` or the context says.
fn live(input: &Input) -> Result<Vec<Value>> {
    let runtime = tokio::runtime::Runtime::new().context("starting threads")?;
    runtime.block_on(async {
        let (client, address) =
            crate::open(&input.connection).await.context("no -f is given, so the cluster is asked")?;
        let namespace = match (&input.namespace, input.all_namespaces) {
            (_, true) => None,
            (Some(namespace), _) => Some(namespace.as_str()),
            (None, false) => Some(client.default_namespace()),
        };
        let mut objects = Vec::new();
        // A cluster without the definitions of routes has none, which is no mistake.
        for kind in KINDS.into_iter().chain(Kind::MESH) {
            let listed = crate::list(&client, kind, namespace).await;
            objects.extend(listed.with_context(|| format!("the API at {address}"))?);
        }
        Ok(objects)
    })
}

/// Kind and name of the owner that controls a Pod.
fn controlling_owner(pod: &Value, interner: &mut Interner) -> Option<(Name, Name)> {
    let owners = pod["metadata"]["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    Some((interner.name(owner["kind"].as_str()?), interner.name(owner["name"].as_str()?)))
}

/// The files that a path stands for: itself, or those of a folder that look like manifests, by name.
pub fn files(path: &Path, recursive: bool) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("reading {}", folder.display()))?.path();
            let is_manifest = entry.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
            if entry.is_dir() && recursive {
                folders.push(entry);
            } else if is_manifest {
                files.push(entry);
            }
        }
    }
    if files.is_empty() {
        let hint = if recursive { "" } else { " (add -R to look into its folders)" };
        bail!("{}: no .yaml, .yml or .json file in this folder{hint}", path.display());
    }
    files.sort();
    Ok(files)
}

/// The values of a text that is JSON all through; YAML that only looks like it gives `None`.
fn json_values(text: &str) -> Option<Vec<Value>> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    serde_json::Deserializer::from_str(text).into_iter().collect::<Result<Vec<Value>, _>>().ok()
}

/// The documents of a YAML text with the lines that they start at. Cut here rather than by the parser, so that
/// a mistake in one document does not hide the others.
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

/// A cluster's objects are many; the limits against aliases that multiply stay as they are.
fn parse_yaml(document: &str) -> Result<Value, String> {
    const MANY: usize = 100_000_000;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: MANY,
            max_nodes: MANY,
            max_total_scalar_bytes: 1 << 30,
        },
    };
    serde_saphyr::from_str_with_options(document, options).map_err(|error| {
        let text = error.to_string();
        text.lines().next().unwrap_or_default().trim_end_matches('.').to_owned()
    })
}

fn fill_in_namespace(object: &mut Value, namespace: &str) {
    let cluster_scoped = ["Node", "Namespace", "ServiceCIDR", "IPAddress"];
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
    fn documents_lists_and_json_streams_are_taken_apart() {
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
    fn a_document_without_a_kind_is_named() {
        let (names, notices) = read("just: text\n");
        assert!(names.is_empty());
        assert!(notices[0].contains("it has no kind"), "{notices:?}");
    }
}
