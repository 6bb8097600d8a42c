//! A wish and what the API has -> what to write. Pure: the same wish on its own result changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, bail};
use model::{
    AddressType, Addresses, ClusterIps, Endpoint, EndpointConditions, Family, Interner, Labels, Name, Notice,
    Object, Service, Slice, SliceContent, SlicePort, Snapshot, annotation, parse, write,
};
use plan::hints::{self, ClusterTopology, HintInput, Hysteresis};
use plan::slices::Packing;
use plan::validate::{Violation, validate};
use serde_json::{Map, Value, json};

use super::wish::{Target, Wish};

/// Who writes these slices.
const WRITER: &str = annotation::EXPOSE_CONTROLLER_NAME;
/// On a slice: the port of the Service that it is for, as `80-tcp`.
const PORT_LABEL: &str = "zoneward.dev/expose-port";
/// On a slice: which tags its processes carry, in short.
const TAGS_LABEL: &str = "zoneward.dev/expose-tags";
/// On a Service: this command made it, so it may take it away.
const MADE_LABEL: &str = "zoneward.dev/made-by";
const MADE: &str = "expose";
/// Semantics B4: the maximum of endpoints in an EndpointSlice.
const MOST_ENDPOINTS: usize = 1_000;

/// What the API has.
#[derive(Debug, Default)]
pub struct Found {
    pub service: Option<Value>,
    /// The slices of the Service, whoever wrote them.
    pub slices: Vec<Value>,
    /// The nodes, and the namespace.
    pub snapshot: Snapshot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Create,
    Update,
    Keep,
}

impl Action {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Keep => "keep",
        }
    }
}

/// An object as it is to be.
#[derive(Debug)]
pub struct Change {
    pub action: Action,
    pub object: Value,
}

impl Change {
    fn new(stored: Option<&Value>, object: Value) -> Self {
        let action = match stored {
            None => Action::Create,
            Some(stored) if *stored == object => Action::Keep,
            Some(_) => Action::Update,
        };
        Self { action, object }
    }

    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub fn title(&self) -> String {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &self.object["metadata"];
        format!("{} {}/{}", text(&self.object["kind"]), text(&metadata["namespace"]), text(&metadata["name"]))
    }

    pub fn what(&self) -> String {
        let Some(endpoints) = self.object["endpoints"].as_array() else {
            let ports = self.object["spec"]["ports"].as_array().into_iter().flatten();
            let ports: Vec<String> = ports.map(|port| port["port"].to_string()).collect();
            return format!("port {}", ports.join(", "));
        };
        let hinted = endpoints.iter().filter(|endpoint| !endpoint["hints"].is_null()).count();
        format!("{} on port {}, {hinted} with hints", endpoints.len(), self.object["ports"][0]["port"])
    }
}

/// What to write. Deletes come last.
#[derive(Debug, Default)]
pub struct Changes {
    pub service: Option<Change>,
    pub slices: Vec<Change>,
    /// Kinds and names.
    pub deletes: Vec<(&'static str, String)>,
    pub notices: Vec<Notice>,
    pub violations: Vec<Violation>,
}

impl Changes {
    pub fn changed(&self) -> bool {
        let writes = self.service.iter().chain(&self.slices).any(|change| change.action != Action::Keep);
        writes || !self.deletes.is_empty()
    }
}

fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["labels"][key].as_str()
}

fn is_ours(slice: &Value) -> bool {
    label(slice, annotation::MANAGED_BY) == Some(WRITER)
}

fn port_label(wish: &Wish) -> Option<String> {
    let port = wish.port.as_ref()?;
    Some(format!("{}-{}", port.number, wish.protocol.as_str().to_lowercase()))
}

/// Puts the wished endpoints in the place of those that the port had.
pub fn put(wish: &Wish, found: &Found) -> Result<Changes> {
    let service = wished_service(wish, found.service.as_ref())?;
    let parsed = read_service(&service)?;
    check_families(wish, &parsed, found.service.is_some())?;
    let stored: BTreeMap<&str, &Value> = found
        .slices
        .iter()
        .filter(|slice| is_ours(slice))
        .filter_map(|slice| Some((slice["metadata"]["name"].as_str()?, slice)))
        .collect();
    let mut changes = Changes::default();
    let asks_the_same =
        found.service.as_ref().is_some_and(|stored| distribution(stored) == distribution(&service));
    for (name, mut content) in wished_slices(wish, &parsed, found, &mut changes.notices)? {
        let object = match stored.get(name.as_str()) {
            Some(stored) => {
                if asks_the_same {
                    keep_hints(&mut content, stored);
                }
                let mut object = (*stored).clone();
                write::update_slice(&mut object, &content);
                object
            }
            None => new_slice(&name, &parsed, &content),
        };
        changes.slices.push(Change::new(stored.get(name.as_str()).copied(), object));
    }
    let wanted = port_label(wish);
    let of_port = |slice: &&Value| label(slice, PORT_LABEL).map(str::to_owned) == wanted;
    let gone = stored.iter().filter(|(name, slice)| {
        of_port(slice) && !changes.slices.iter().any(|change| change.name() == **name)
    });
    changes.deletes = gone.map(|(name, _)| ("EndpointSlice", (*name).to_owned())).collect();
    changes.service = Some(Change::new(found.service.as_ref(), service));
    let written = changes.service.iter().chain(&changes.slices).filter(|c| c.action != Action::Keep);
    changes.violations = written.flat_map(|change| validate(&change.object)).collect();
    Ok(changes)
}

/// Takes the endpoints of a port away, or of all ports; and the Service, if this command made it and nothing is left.
pub fn remove(wish: &Wish, found: &Found) -> Result<Changes> {
    let mut changes = Changes::default();
    let Some(service) = &found.service else { return Ok(changes) };
    let wanted = port_label(wish);
    let goes = |slice: &&Value| wanted.is_none() || label(slice, PORT_LABEL) == wanted.as_deref();
    let (gone, left): (Vec<&Value>, Vec<&Value>) = found.slices.iter().filter(|s| is_ours(s)).partition(goes);
    let name = |slice: &&Value| slice["metadata"]["name"].as_str().map(str::to_owned);
    changes.deletes = gone.iter().filter_map(name).map(|name| ("EndpointSlice", name)).collect();
    if label(service, MADE_LABEL) != Some(MADE) {
        return Ok(changes);
    }
    if left.is_empty() {
        changes.deletes.push(("Service", wish.name.clone()));
        return Ok(changes);
    }
    let mut object = service.clone();
    if let (Some(ports), Some(port)) = (object["spec"]["ports"].as_array_mut(), &wish.port) {
        ports.retain(|stored| !is_port(stored, port.number, wish));
    }
    changes.service = Some(Change::new(Some(service), object));
    Ok(changes)
}

fn is_port(stored: &Value, number: u16, wish: &Wish) -> bool {
    let protocol = stored["protocol"].as_str().unwrap_or("TCP");
    stored["port"] == json!(number) && protocol == wish.protocol.as_str()
}

/// The Service with the wished port; everything else of a stored one stays.
fn wished_service(wish: &Wish, stored: Option<&Value>) -> Result<Value> {
    let Some(port) = &wish.port else { bail!("--port says which port the endpoints are for") };
    let mut service = stored.cloned().unwrap_or_else(|| new_service(wish));
    let selector = service["spec"]["selector"].as_object().is_some_and(|selector| !selector.is_empty());
    if selector || service["spec"]["type"] == "ExternalName" {
        bail!(
            "Service {}/{} gets its endpoints from Pods or from a name, because it has a selector or is an \
             ExternalName: expose under another name, or take its spec.selector away",
            wish.namespace,
            wish.name
        );
    }
    if !service["spec"]["ports"].is_array() {
        service["spec"]["ports"] = json!([]);
    }
    if let Some(ports) = service["spec"]["ports"].as_array_mut() {
        match ports.iter_mut().find(|stored| is_port(stored, port.number, wish)) {
            Some(_) if port.name.is_empty() => {}
            Some(stored) => stored["name"] = json!(port.name),
            None => ports.push(new_port(wish, port.number, &port.name)),
        }
    }
    set_distribution(&mut service, wish.traffic_distribution.as_deref());
    Ok(service)
}

fn new_port(wish: &Wish, number: u16, name: &str) -> Value {
    let mut port = json!({"port": number, "protocol": wish.protocol.as_str()});
    if !name.is_empty() {
        port["name"] = json!(name);
    }
    // For people: nodes read the port out of the slices.
    if let Some(first) = wish.targets.first()
        && wish.targets.iter().all(|target| target.address.port() == first.address.port())
    {
        port["targetPort"] = json!(first.address.port());
    }
    port
}

fn new_service(wish: &Wish) -> Value {
    let mut spec = json!({"type": "ClusterIP", "ports": []});
    let families = wish.families();
    if families.len() > 1 {
        spec["ipFamilyPolicy"] = json!("PreferDualStack");
    }
    if let [only] = families[..] {
        spec["ipFamilies"] = json!([only.as_str()]);
    }
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": wish.name, "namespace": wish.namespace, "labels": {MADE_LABEL: MADE}},
        "spec": spec,
    })
}

/// Kubernetes' own values have a field; an API server lets no others through there, so ours are an annotation.
fn set_distribution(service: &mut Value, wish: Option<&str>) {
    let Some(value) = wish else { return };
    let of_kubernetes = matches!(value, "PreferClose" | "PreferSameZone" | "PreferSameNode");
    if let Some(spec) = service["spec"].as_object_mut() {
        spec.remove("trafficDistribution");
        if of_kubernetes {
            spec.insert("trafficDistribution".to_owned(), json!(value));
        }
    }
    let metadata = &mut service["metadata"];
    // Writing through an index would leave an empty field behind, and the same wish would change something again.
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

/// Hints that are written already are the controller's to change, which knows its own defaults and gates. Only endpoints
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
            bail!("the Service cannot be used: {}", list.join("; "))
        }
    }
}

/// A node asks only for slices of the Service's families: endpoints of others would be written and never used.
fn check_families(wish: &Wish, service: &Service, stored: bool) -> Result<()> {
    if !stored || service.families.is_empty() {
        return Ok(());
    }
    for family in wish.families() {
        if !service.families.contains(&family) {
            bail!(
                "Service {} has no {family} address, so its {family} endpoints would get no traffic: set its \
                 spec.ipFamilyPolicy to PreferDualStack, or leave those out",
                service.key
            );
        }
    }
    Ok(())
}

/// The slices of the port by name, with hints: one for each family, port that processes listen on, and set of tags.
fn wished_slices(
    wish: &Wish,
    service: &Service,
    found: &Found,
    notices: &mut Vec<Notice>,
) -> Result<Vec<(String, SliceContent)>> {
    let stored: Vec<Slice> =
        found.slices.iter().filter(|slice| is_ours(slice)).filter_map(read_slice).collect();
    let topology = ClusterTopology::from_nodes(found.snapshot.nodes());
    let namespace = found.snapshot.namespace(&service.key.namespace);
    let namespace_default = namespace.and_then(|n| n.default_traffic_distribution.as_ref());
    let config = hints::HintConfig::default();
    let mut named = Vec::new();
    for family in wish.families() {
        let mut packing = Packing { creates: contents(wish, service, family)?, ..Packing::default() };
        let hysteresis = Hysteresis::from_slices(family, &stored);
        let input = HintInput {
            service,
            family,
            topology: &topology,
            namespace_default,
            config: &config,
            hysteresis: &hysteresis,
        };
        let outcome = hints::assign(&input, &mut packing);
        if let Some(why) = outcome.accepted.err().or(outcome.refused) {
            bail!("the traffic distribution of Service {} is refused: {why}", service.key);
        }
        notices.extend(outcome.notices);
        named.extend(packing.creates.into_iter().map(|content| (slice_name(wish, &content), content)));
    }
    Ok(named)
}

fn read_slice(value: &Value) -> Option<Slice> {
    match parse::object(value, &mut Interner::default()).0 {
        Some(Object::Slice(slice)) => Some(*slice),
        _ => None,
    }
}

fn contents(wish: &Wish, service: &Service, family: Family) -> Result<Vec<SliceContent>> {
    let mut targets_by_slice: BTreeMap<(u16, &Tags), Vec<&Target>> = BTreeMap::new();
    for target in wish.targets.iter().filter(|target| Family::of(target.address.ip()) == family) {
        targets_by_slice.entry((target.address.port(), &target.tags)).or_default().push(target);
    }
    let number = wish.port.as_ref().map(|port| port.number);
    let port = service.ports.iter().find(|p| Some(p.port) == number && p.protocol == wish.protocol);
    let name = port.map(|port| port.name.clone()).unwrap_or_default();
    let mut contents = Vec::new();
    for ((port, tags), targets) in targets_by_slice {
        if targets.len() > MOST_ENDPOINTS {
            bail!("{} processes on port {port}: a slice holds at most {MOST_ENDPOINTS}", targets.len());
        }
        contents.push(SliceContent {
            address_type: AddressType::Ip(family),
            labels: labels(wish, service, tags),
            annotations: Labels::EMPTY,
            ports: Arc::new([SlicePort {
                name: Some(name.clone()),
                protocol: wish.protocol,
                port: Some(port),
                app_protocol: None,
            }]),
            endpoints: targets.into_iter().map(endpoint).collect(),
        });
    }
    Ok(contents)
}

fn endpoint(target: &Target) -> Endpoint {
    Endpoint {
        addresses: Addresses::one(target.address.ip()),
        conditions: EndpointConditions::new(true, true, false),
        hostname: None,
        node: None,
        zone: target.zone.as_deref().map(Name::new),
        target: None,
        hints: None,
    }
}

fn labels(wish: &Wish, service: &Service, tags: &Tags) -> Labels {
    let pair = |key: &str, value: &str| (Name::new(key), Name::new(value));
    let mut pairs = vec![
        pair(annotation::SERVICE_NAME, &service.key.name),
        pair(annotation::MANAGED_BY, WRITER),
        pair(PORT_LABEL, &port_label(wish).unwrap_or_default()),
    ];
    pairs.extend(tags.iter().map(|(key, value)| pair(key, value)));
    if !tags.is_empty() {
        pairs.push(pair(TAGS_LABEL, &tags_text(tags)));
    }
    // A Service that is still to be made has no address yet, and will have one.
    if service.cluster_ips == ClusterIps::None {
        pairs.push(pair(annotation::HEADLESS, ""));
    }
    Labels::from_pairs(pairs)
}

fn slice_name(wish: &Wish, content: &SliceContent) -> String {
    let port = content.ports.first().and_then(|port| port.port).unwrap_or_default();
    let family = content.address_type.as_str().to_lowercase();
    let tags = content.labels.value(TAGS_LABEL).map(|text| format!("-{text}")).unwrap_or_default();
    format!("{}-{}-{family}-{port}{tags}", wish.name, port_label(wish).unwrap_or_default())
}

/// Tags of processes, by name.
type Tags = [(String, String)];

/// A short word for a set of tags, the same on every machine: a part of the slice's name.
fn tags_text(tags: &Tags) -> String {
    let bytes = tags.iter().flat_map(|(key, value)| format!("{key}={value},").into_bytes());
    let hash = bytes.fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

fn new_slice(name: &str, service: &Service, content: &SliceContent) -> Value {
    let mut slice = write::new_slice(&service.key, service.uid.as_ref(), content);
    if let Some(metadata) = slice["metadata"].as_object_mut() {
        metadata.remove("generateName");
        metadata.insert("name".to_owned(), json!(name));
        // The owner of a Service that is still to be made is known when it is.
        if service.uid.is_none() {
            metadata.remove("ownerReferences");
        }
    }
    slice
}

#[cfg(test)]
mod tests;
