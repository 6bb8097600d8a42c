//! Plans the writes for a spec and the existing objects. Pure and idempotent.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, bail};
use apimachinery::validate::{Violation, validate};
use model::hash::{BASIS_32, fnv1a_32};
use model::{
    AddressType, Addresses, ClusterIps, Endpoint, EndpointConditions, Family, Interner, Labels, Name, Notice,
    Object, Service, Slice, SliceContent, SlicePort, Snapshot, annotation, parse, write,
};
use plan::hints::{self, ClusterTopology, HintInput, Hysteresis};
use plan::slices::Packing;
use serde_json::{Map, Value, json};

use super::check;
use super::spec::{ExposeSpec, ExposeTarget};

/// Value of the label managed-by of these slices.
const MANAGER: &str = annotation::EXPOSE_CONTROLLER_NAME;
/// On a slice: port of the Service, such as `80-tcp`.
const PORT_LABEL: &str = "zoneward.dev/expose-port";
/// On a slice: hash of the tags of its processes.
const TAGS_LABEL: &str = "zoneward.dev/expose-tags";
/// On a Service: created by this command, which may delete it.
const CREATED_BY_LABEL: &str = "zoneward.dev/made-by";
const CREATED_BY: &str = "expose";
/// Semantics B4: the maximum number of endpoints of an EndpointSlice.
const MAX_ENDPOINTS: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct ExistingObjects {
    pub service: Option<Value>,
    /// All slices of the Service, of any controller.
    pub slices: Vec<Value>,
    /// Nodes and the Namespace.
    pub snapshot: Snapshot,
    /// Set on a joined machine, which writes slices of its own beside those of others.
    pub node: Option<ExposingNode>,
}

/// The Node of a joined machine.
#[derive(Clone, Debug)]
pub(super) struct ExposingNode {
    pub name: String,
    pub uid: String,
    pub zone: Option<String>,
}

impl ExposingNode {
    /// Makes endpoints those of this node: in its zone, unless another one was given.
    fn claim(&self, content: &mut SliceContent) {
        for endpoint in &mut content.endpoints {
            endpoint.node = Some(Name::new(&self.name));
            endpoint.zone = endpoint.zone.take().or_else(|| self.zone.as_deref().map(Name::new));
        }
        let own = (Name::new(annotation::EXPOSE_NODE), Name::new(&self.name));
        let pairs = content.labels.iter().map(|(key, value)| (key.clone(), value.clone()));
        content.labels = Labels::from_pairs(pairs.chain([own]).collect());
    }

    /// The slice ends with the Node: a machine that is not trusted any more has no endpoints.
    fn own(&self, slice: &mut Value) {
        slice["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid,
            "controller": true, "blockOwnerDeletion": true,
        }]);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteAction {
    Create,
    Update,
    Keep,
}

impl WriteAction {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Keep => "keep",
        }
    }
}

/// The desired object.
#[derive(Debug)]
pub(super) struct PlannedWrite {
    pub action: WriteAction,
    pub object: Value,
}

impl PlannedWrite {
    fn new(stored: Option<&Value>, object: Value) -> Self {
        let action = match stored {
            None => WriteAction::Create,
            Some(stored) if *stored == object => WriteAction::Keep,
            Some(_) => WriteAction::Update,
        };
        Self { action, object }
    }

    pub(super) fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub(super) fn title(&self) -> String {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &self.object["metadata"];
        format!("{} {}/{}", text(&self.object["kind"]), text(&metadata["namespace"]), text(&metadata["name"]))
    }

    pub(super) fn what(&self) -> String {
        let Some(endpoints) = self.object["endpoints"].as_array() else {
            let ports = self.object["spec"]["ports"].as_array().into_iter().flatten();
            let ports: Vec<String> = ports.map(|port| port["port"].to_string()).collect();
            return format!("port {}", ports.join(", "));
        };
        let hinted = endpoints.iter().filter(|endpoint| !endpoint["hints"].is_null()).count();
        format!("{} on port {}, {hinted} with hints", endpoints.len(), self.object["ports"][0]["port"])
    }
}

/// Deletes come last.
#[derive(Debug, Default)]
pub(super) struct PlannedWrites {
    pub service: Option<PlannedWrite>,
    pub slices: Vec<PlannedWrite>,
    /// Kind and name.
    pub deletes: Vec<(&'static str, String)>,
    pub notices: Vec<Notice>,
    pub violations: Vec<Violation>,
}

impl PlannedWrites {
    pub(super) fn changed(&self) -> bool {
        let writes = self.service.iter().chain(&self.slices).any(|write| write.action != WriteAction::Keep);
        writes || !self.deletes.is_empty()
    }
}

fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["labels"][key].as_str()
}

fn is_managed(slice: &Value) -> bool {
    label(slice, annotation::MANAGED_BY) == Some(MANAGER)
}

/// Whether this command replaces a slice: that of its own node, or one of no node.
fn is_own(slice: &Value, existing: &ExistingObjects) -> bool {
    let node = existing.node.as_ref().map(|node| node.name.as_str());
    is_managed(slice) && label(slice, annotation::EXPOSE_NODE) == node
}

fn port_label(spec: &ExposeSpec) -> Option<String> {
    let port = spec.port.as_ref()?;
    Some(format!("{}-{}", port.number, spec.protocol.as_str().to_lowercase()))
}

/// Replaces the endpoints of the port.
pub(super) fn put(spec: &ExposeSpec, existing: &ExistingObjects) -> Result<PlannedWrites> {
    let service = desired_service(spec, existing.service.as_ref())?;
    let parsed = read_service(&service)?;
    check_families(spec, &parsed, existing.service.is_some())?;
    let stored: BTreeMap<&str, &Value> = existing
        .slices
        .iter()
        .filter(|slice| is_own(slice, existing))
        .filter_map(|slice| Some((slice["metadata"]["name"].as_str()?, slice)))
        .collect();
    let mut writes = PlannedWrites::default();
    let same_distribution =
        existing.service.as_ref().is_some_and(|stored| distribution(stored) == distribution(&service));
    for (name, mut content) in desired_slices(spec, &parsed, existing, &mut writes.notices)? {
        let mut object = match stored.get(name.as_str()) {
            Some(stored) => {
                if same_distribution {
                    keep_hints(&mut content, stored);
                }
                let mut object = (*stored).clone();
                write::update_slice(&mut object, &content);
                object
            }
            None => new_slice(&name, &parsed, &content),
        };
        existing.node.iter().for_each(|node| node.own(&mut object));
        let object = check::with_check(object, stored.get(name.as_str()).copied(), spec.check.as_ref());
        writes.slices.push(PlannedWrite::new(stored.get(name.as_str()).copied(), object));
    }
    let wanted = port_label(spec);
    let of_port = |slice: &&Value| label(slice, PORT_LABEL).map(str::to_owned) == wanted;
    let removed = stored
        .iter()
        .filter(|(name, slice)| of_port(slice) && !writes.slices.iter().any(|write| write.name() == **name));
    writes.deletes = removed.map(|(name, _)| ("EndpointSlice", (*name).to_owned())).collect();
    writes.service = Some(PlannedWrite::new(existing.service.as_ref(), service));
    check_node_rights(spec, existing, &writes)?;
    let written = writes.service.iter().chain(&writes.slices).filter(|c| c.action != WriteAction::Keep);
    writes.violations = written.flat_map(|write| validate(&write.object)).collect();
    Ok(writes)
}

/// A joined machine writes its endpoints, and no Service.
fn check_node_rights(spec: &ExposeSpec, existing: &ExistingObjects, writes: &PlannedWrites) -> Result<()> {
    let changes = writes.service.as_ref().is_some_and(|service| service.action != WriteAction::Keep);
    let Some(node) = existing.node.as_ref().filter(|_| changes) else { return Ok(()) };
    let (namespace, name, node) = (&spec.namespace, &spec.name, &node.name);
    let port = spec.port.as_ref().map(|port| port.number).unwrap_or_default();
    bail!(
        "Service {namespace}/{name} without a selector and with port {port} has to exist, because node {node} may not write \
         Services: create or change it as an administrator, on the machine of the API, and repeat this command"
    )
}

/// Removes the endpoints of a port, or of all ports; and the Service, if this command created it and none are left.
pub(super) fn remove(spec: &ExposeSpec, existing: &ExistingObjects) -> Result<PlannedWrites> {
    let mut writes = PlannedWrites::default();
    let Some(service) = &existing.service else { return Ok(writes) };
    let wanted = port_label(spec);
    let goes = |slice: &&Value| {
        is_own(slice, existing) && (wanted.is_none() || label(slice, PORT_LABEL) == wanted.as_deref())
    };
    let (gone, left): (Vec<&Value>, Vec<&Value>) =
        existing.slices.iter().filter(|s| is_managed(s)).partition(goes);
    let name = |slice: &&Value| slice["metadata"]["name"].as_str().map(str::to_owned);
    writes.deletes = gone.iter().filter_map(name).map(|name| ("EndpointSlice", name)).collect();
    if existing.node.is_some() || label(service, CREATED_BY_LABEL) != Some(CREATED_BY) {
        return Ok(writes);
    }
    if left.is_empty() {
        writes.deletes.push(("Service", spec.name.clone()));
        return Ok(writes);
    }
    let mut object = service.clone();
    if let (Some(ports), Some(port)) = (object["spec"]["ports"].as_array_mut(), &spec.port) {
        ports.retain(|stored| !is_port(stored, port.number, spec));
    }
    writes.service = Some(PlannedWrite::new(Some(service), object));
    Ok(writes)
}

fn is_port(stored: &Value, number: u16, spec: &ExposeSpec) -> bool {
    let protocol = stored["protocol"].as_str().unwrap_or("TCP");
    stored["port"] == json!(number) && protocol == spec.protocol.as_str()
}

/// The Service with the port; other fields of an existing one are kept.
fn desired_service(spec: &ExposeSpec, stored: Option<&Value>) -> Result<Value> {
    let Some(port) = &spec.port else { bail!("--port is required") };
    let mut service = stored.cloned().unwrap_or_else(|| new_service(spec));
    let selector = service["spec"]["selector"].as_object().is_some_and(|selector| !selector.is_empty());
    if selector || service["spec"]["type"] == "ExternalName" {
        bail!(
            "Service {}/{} has a selector or is an ExternalName, so it cannot have exposed endpoints: use another \
             name, or remove its spec.selector",
            spec.namespace,
            spec.name
        );
    }
    if !service["spec"]["ports"].is_array() {
        service["spec"]["ports"] = json!([]);
    }
    if let Some(ports) = service["spec"]["ports"].as_array_mut() {
        match ports.iter_mut().find(|stored| is_port(stored, port.number, spec)) {
            Some(_) if port.name.is_empty() => {}
            Some(stored) => stored["name"] = json!(port.name),
            None => ports.push(new_port(spec, port.number, &port.name)),
        }
    }
    set_distribution(&mut service, spec.traffic_distribution.as_deref());
    Ok(service)
}

fn new_port(spec: &ExposeSpec, number: u16, name: &str) -> Value {
    let mut port = json!({"port": number, "protocol": spec.protocol.as_str()});
    if !name.is_empty() {
        port["name"] = json!(name);
    }
    // Informational: nodes use the port of the slices.
    if let Some(first) = spec.targets.first()
        && spec.targets.iter().all(|target| target.address.port() == first.address.port())
    {
        port["targetPort"] = json!(first.address.port());
    }
    port
}

fn new_service(spec: &ExposeSpec) -> Value {
    let mut body = json!({"type": "ClusterIP", "ports": []});
    let families = spec.families();
    if families.len() > 1 {
        body["ipFamilyPolicy"] = json!("PreferDualStack");
    }
    if let [only] = families[..] {
        body["ipFamilies"] = json!([only.as_str()]);
    }
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": spec.name, "namespace": spec.namespace, "labels": {CREATED_BY_LABEL: CREATED_BY}},
        "spec": body,
    })
}

/// Values of Kubernetes are set in the field, which accepts no others; ours are an annotation.
fn set_distribution(service: &mut Value, distribution: Option<&str>) {
    let Some(value) = distribution else { return };
    let of_kubernetes = matches!(value, "PreferClose" | "PreferSameZone" | "PreferSameNode");
    if let Some(spec) = service["spec"].as_object_mut() {
        spec.remove("trafficDistribution");
        if of_kubernetes {
            spec.insert("trafficDistribution".to_owned(), json!(value));
        }
    }
    let metadata = &mut service["metadata"];
    // Writing through an index would leave an empty field behind, and the same spec would write something again.
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(annotation::TRAFFIC_DISTRIBUTION);
    }
    if !of_kubernetes && value != "None" {
        if !metadata["annotations"].is_object() {
            metadata["annotations"] = Value::Object(Map::new());
        }
        let value = value.strip_prefix("zoneward.dev/").unwrap_or(value);
        metadata["annotations"][annotation::TRAFFIC_DISTRIBUTION] = json!(value);
    }
}

/// What a Service says itself about where its traffic goes.
fn distribution(service: &Value) -> [&Value; 2] {
    let annotations = &service["metadata"]["annotations"];
    [&service["spec"]["trafficDistribution"], &annotations[annotation::TRAFFIC_DISTRIBUTION]]
}

/// Hints that are written already are the controller's to write, which knows its own defaults and gates. Only endpoints
/// that are new get some here, because a slice where some have none counts as one without hints.
fn keep_hints(content: &mut SliceContent, stored: &Value) {
    let Some(stored) = read_slice(stored).map(|slice| slice.content) else { return };
    if stored.annotation(annotation::MECHANISM).is_none() {
        return;
    }
    for endpoint in &mut content.endpoints {
        let same = |old: &&Endpoint| old.addresses == endpoint.addresses && old.zone == endpoint.zone;
        if let Some(old) = stored.endpoints.iter().find(same) {
            endpoint.hints = old.hints.clone();
        }
    }
    content.annotations = stored.annotations;
}

fn read_service(service: &Value) -> Result<Service> {
    match parse::object(service, &mut Interner::default()) {
        (Some(Object::Service(service)), _) => Ok(*service),
        (_, notices) => {
            let list: Vec<String> = notices.iter().map(ToString::to_string).collect();
            bail!("the Service is malformed: {}", list.join("; "))
        }
    }
}

/// Nodes select only slices of the families of the Service.
fn check_families(spec: &ExposeSpec, service: &Service, stored: bool) -> Result<()> {
    if !stored || service.families.is_empty() {
        return Ok(());
    }
    for family in spec.families() {
        if !service.families.contains(&family) {
            bail!(
                "Service {} has no {family} address, so its {family} endpoints would get no traffic: set \
                 spec.ipFamilyPolicy to PreferDualStack, or remove those endpoints",
                service.key
            );
        }
    }
    Ok(())
}

/// The slices of the port by name, with hints: one per family, target port and set of tags.
fn desired_slices(
    spec: &ExposeSpec,
    service: &Service,
    existing: &ExistingObjects,
    notices: &mut Vec<Notice>,
) -> Result<Vec<(String, SliceContent)>> {
    let stored: Vec<Slice> =
        existing.slices.iter().filter(|slice| is_own(slice, existing)).filter_map(read_slice).collect();
    let topology = ClusterTopology::from_nodes(existing.snapshot.nodes());
    let namespace_default = existing.snapshot.default_traffic_distribution(&service.key.namespace);
    // The controller repeats this with its own flags.
    let config = plan::PlanningConfig::without_flags();
    let mut named = Vec::new();
    for family in spec.families() {
        let mut creates = contents(spec, service, family)?;
        existing.node.iter().for_each(|node| creates.iter_mut().for_each(|content| node.claim(content)));
        let mut packing = Packing { creates, ..Packing::default() };
        let hysteresis = Hysteresis::from_slices(family, &stored);
        let input = HintInput {
            service,
            family,
            topology: &topology,
            namespace_default,
            config: &config,
            hysteresis: &hysteresis,
            with_notices: true,
        };
        let outcome = hints::assign(&input, &mut packing);
        if let Some(why) = outcome.accepted.err().or(outcome.refused) {
            bail!("the traffic distribution of Service {} is rejected: {why}", service.key);
        }
        notices.extend(outcome.notices);
        named.extend(packing.creates.into_iter().map(|content| (slice_name(spec, &content), content)));
    }
    Ok(named)
}

fn read_slice(value: &Value) -> Option<Slice> {
    match parse::object(value, &mut Interner::default()).0 {
        Some(Object::Slice(slice)) => Some(*slice),
        _ => None,
    }
}

fn contents(spec: &ExposeSpec, service: &Service, family: Family) -> Result<Vec<SliceContent>> {
    let mut targets_by_slice: BTreeMap<(u16, &Tags), Vec<&ExposeTarget>> = BTreeMap::new();
    for target in spec.targets.iter().filter(|target| Family::of(target.address.ip()) == family) {
        targets_by_slice.entry((target.address.port(), &target.tags)).or_default().push(target);
    }
    let number = spec.port.as_ref().map(|port| port.number);
    let port = service.ports.iter().find(|p| Some(p.port) == number && p.protocol == spec.protocol);
    let name = port.map(|port| port.name.clone()).unwrap_or_default();
    let mut contents = Vec::new();
    for ((port, tags), targets) in targets_by_slice {
        if targets.len() > MAX_ENDPOINTS {
            bail!("{} endpoints on port {port}: the maximum per slice is {MAX_ENDPOINTS}", targets.len());
        }
        contents.push(SliceContent {
            address_type: AddressType::Ip(family),
            labels: labels(spec, service, tags),
            annotations: Labels::EMPTY,
            ports: Arc::new([SlicePort {
                name: Some(name.clone()),
                protocol: spec.protocol,
                port: Some(port),
                app_protocol: None,
            }]),
            endpoints: targets.into_iter().map(endpoint).collect(),
        });
    }
    Ok(contents)
}

fn endpoint(target: &ExposeTarget) -> Endpoint {
    Endpoint {
        addresses: Addresses::one(target.address.ip()),
        conditions: EndpointConditions::new(true, true, false),
        node: None,
        zone: target.zone.as_deref().map(Name::new),
        hints: None,
        identity: None,
    }
}

fn labels(spec: &ExposeSpec, service: &Service, tags: &Tags) -> Labels {
    let pair = |key: &str, value: &str| (Name::new(key), Name::new(value));
    let mut pairs = vec![
        pair(annotation::SERVICE_NAME, &service.key.name),
        pair(annotation::MANAGED_BY, MANAGER),
        pair(PORT_LABEL, &port_label(spec).unwrap_or_default()),
    ];
    pairs.extend(tags.iter().map(|(key, value)| pair(key, value)));
    if !tags.is_empty() {
        pairs.push(pair(TAGS_LABEL, &tags_text(tags)));
    }
    // A new Service has no address yet, but is not headless.
    if service.cluster_ips == ClusterIps::None {
        pairs.push(pair(annotation::HEADLESS, ""));
    }
    Labels::from_pairs(pairs)
}

fn slice_name(spec: &ExposeSpec, content: &SliceContent) -> String {
    let port = content.ports.first().and_then(|port| port.port).unwrap_or_default();
    let family = content.address_type.as_str().to_lowercase();
    let tags = content.labels.value(TAGS_LABEL).map(|text| format!("-{text}")).unwrap_or_default();
    let node =
        content.labels.value(annotation::EXPOSE_NODE).map(|node| format!("-{node}")).unwrap_or_default();
    format!("{}-{}-{family}-{port}{tags}{node}", spec.name, port_label(spec).unwrap_or_default())
}

type Tags = [(String, String)];

/// Hash of a set of tags, part of the slice name; stable across machines.
fn tags_text(tags: &Tags) -> String {
    let text: String = tags.iter().map(|(key, value)| format!("{key}={value},")).collect();
    format!("{:08x}", fnv1a_32(BASIS_32, text.as_bytes()))
}

fn new_slice(name: &str, service: &Service, content: &SliceContent) -> Value {
    let mut slice = write::new_slice(&service.key, service.uid.as_ref(), content);
    if let Some(metadata) = slice["metadata"].as_object_mut() {
        metadata.remove("generateName");
        metadata.insert("name".to_owned(), json!(name));
        // The UID of a new Service is known after it is created.
        if service.uid.is_none() {
            metadata.remove("ownerReferences");
        }
    }
    slice
}

#[cfg(test)]
mod tests;
