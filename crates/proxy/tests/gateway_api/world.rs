//! The objects of a conformance case as an API server has them, with certificates that are made for it, and with an echo
//! server for each port of each replica of its workloads.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use model::gateway_api::{CONTROLLER, RouteKind};
use model::{Interner, ObjectKey, ServiceKey, Snapshot, parse};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use serde_json::{Value, json};
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::echo::{Echo, EchoTls, Sightings};

pub fn cases() -> Vec<Value> {
    let path = format!("{}/../../vectors/gateway-api.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the vectors are in the repository");
    let file: Value = serde_json::from_str(&text).expect("the vectors are JSON");
    items(&file["cases"])
}

pub fn items(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("a text: {value}"))
}

pub fn key(name: &str) -> ObjectKey {
    let (namespace, name) = name.split_once('/').expect("namespace and name");
    ObjectKey { namespace: namespace.into(), name: name.into() }
}

/// A mesh request's destination: Service and port.
pub fn destination(request: &Value) -> (ServiceKey, u16) {
    let from = key(text(&request["from"]));
    let (to, port) = text(&request["to"]).split_once(':').unwrap_or((text(&request["to"]), "80"));
    let service = match to.split_once('/') {
        Some((namespace, name)) => ServiceKey::new(&namespace.into(), &name.into()),
        None => ServiceKey::new(&from.namespace, &to.into()),
    };
    (service, port.parse().expect("a port"))
}

/// A certificate with its key; that of an authority has the key that signs others.
pub struct Pair {
    pub chain: String,
    pub key: String,
    pub der: CertificateDer<'static>,
    /// The authority that signed it.
    pub issuer: Option<CertificateDer<'static>>,
    pub is_self_signed: bool,
    /// The key of the ConfigMap's data; `None` for a Secret.
    pub config_map_key: Option<String>,
}

/// The certificates of a case by namespace and name.
pub type Pairs = BTreeMap<ObjectKey, Pair>;

fn pairs(case: &Value) -> Pairs {
    let mut pairs = Pairs::new();
    let mut issuers: BTreeMap<String, Issuer<'static, KeyPair>> = BTreeMap::new();
    let all = items(&case["certificates"]);
    for is_ca in [true, false] {
        for own in all.iter().filter(|own| own["isCA"].as_bool().unwrap_or(false) == is_ca) {
            let name = text(&own["name"]);
            let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names");
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            if is_ca {
                params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            }
            if own["client"] == true {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            }
            for san in items(&own["names"]).iter().map(text) {
                // Not a name of a certificate; the exact names of the requests follow.
                let san = if san == "*" { "any.example" } else { san };
                params.subject_alt_names.push(match san.contains("://") {
                    true => SanType::URI(san.try_into().expect("ASCII")),
                    false => SanType::DnsName(san.try_into().expect("ASCII")),
                });
            }
            let key = KeyPair::generate().expect("a key");
            let issuer = own["ca"].as_str().map(|ca| &issuers[ca]);
            let made = match issuer {
                Some(issuer) => params.signed_by(&key, issuer),
                None => params.self_signed(&key),
            };
            let made = made.expect("a certificate");
            let namespace = text(&own["namespace"]);
            let issuer =
                own["ca"].as_str().and_then(|ca| pairs.get(&ObjectKey::new(&namespace.into(), &ca.into())));
            let issuer = issuer.map(|issuer: &Pair| issuer.der.clone());
            let pair = Pair {
                issuer,
                chain: made.pem(),
                key: key.serialize_pem(),
                der: made.der().clone(),
                is_self_signed: own["selfSigned"] == true,
                config_map_key: own["key"].as_str().map(str::to_owned),
            };
            pairs.insert(ObjectKey::new(&namespace.into(), &name.into()), pair);
            if is_ca {
                issuers.insert(name.to_owned(), Issuer::new(params, key));
            }
        }
    }
    pairs
}

pub struct World {
    pub snapshot: Snapshot,
    pub pairs: Pairs,
    pub sightings: Sightings,
    interner: Interner,
    /// Creation time by kind and name.
    created: BTreeMap<(String, ObjectKey), usize>,
    slices: usize,
}

impl World {
    pub async fn new(case: &Value) -> Self {
        let mut world = Self {
            snapshot: Snapshot::default(),
            pairs: pairs(case),
            sightings: Sightings::default(),
            interner: Interner::default(),
            created: BTreeMap::new(),
            slices: 0,
        };
        world.put(json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": {"name": "conformance"}, "spec": {"controllerName": CONTROLLER}}));
        let sources: Vec<Value> =
            world.pairs.iter().map(|(key, pair)| certificate_object(key, pair)).collect();
        sources.into_iter().for_each(|source| world.put(source));
        let objects = items(&case["objects"]);
        let is_slice = |object: &&Value| object["kind"] == "EndpointSlice";
        for object in objects.iter().filter(|object| !is_slice(object)) {
            world.put(object.clone());
        }
        for workload in items(&case["workloads"]) {
            world.start(&workload, &objects).await;
        }
        world
    }

    pub fn put(&mut self, mut object: Value) {
        let about = parse::object_ref(&object);
        let id = (about.kind.to_string(), ObjectKey::new(&about.namespace, &about.name));
        let count = self.created.len();
        let created = *self.created.entry(id).or_insert(count);
        object["metadata"]["creationTimestamp"] =
            format!("2026-11-01T00:{:02}:{:02}Z", created / 60, created % 60).into();
        let (parsed, notices) = parse::object(&object, &mut self.interner);
        assert_eq!(notices, [], "{object}");
        self.snapshot.apply(parsed.unwrap_or_else(|| panic!("a known kind: {object}")));
    }

    /// Applies the change of a step.
    pub fn step(&mut self, step: &Value) {
        for object in [&step["create"], &step["replace"]] {
            if object.is_object() {
                self.put(object.clone());
            }
        }
        let Some(kind) = step["delete"]["kind"].as_str() else { return };
        let name = key(text(&step["delete"]["name"]));
        match kind {
            "ReferenceGrant" => self.snapshot.remove_reference_grant(&name),
            "Gateway" => self.snapshot.remove_gateway(&name),
            kind => {
                self.snapshot.remove_route(RouteKind::parse(kind).unwrap_or_else(|| panic!("{kind}")), &name)
            }
        }
    }

    /// Starts the replicas of a workload, and adds an EndpointSlice of each Service that has them.
    async fn start(&mut self, workload: &Value, objects: &[Value]) {
        let (namespace, name) = (text(&workload["namespace"]), text(&workload["name"]));
        let certificate = workload["certificate"].as_str();
        let certificate = certificate
            .map(|name| EchoTls::of(&self.pairs[&ObjectKey::new(&namespace.into(), &name.into())]));
        for _ in 0..workload["replicas"].as_u64().expect("a number") {
            let mut ports: BTreeMap<String, (String, SocketAddr)> = BTreeMap::new();
            for (port, serves) in workload["serves"].as_object().expect("ports") {
                let serves = text(serves);
                let tls = if serves == "https" || serves.ends_with("+tls") {
                    Some(certificate.clone().unwrap_or_else(EchoTls::self_signed))
                } else {
                    None
                };
                let echo = Echo { namespace: namespace.to_owned(), workload: name.to_owned() };
                let at = echo.start(serves, tls, self.sightings.clone()).await;
                ports.insert(port.clone(), (serves.to_owned(), at));
            }
            for service in objects.iter().filter(|object| object["kind"] == "Service") {
                if service["metadata"]["namespace"] == namespace && selects(service, workload) {
                    self.put_slices(service, &workload["labels"], &ports);
                }
            }
        }
    }

    /// There are no Pods: tags of subsets are the labels of a slice.
    fn put_slices(&mut self, service: &Value, tags: &Value, ports: &BTreeMap<String, (String, SocketAddr)>) {
        let of_port = |port: &Value| {
            let target = port["targetPort"].as_u64().or(port["port"].as_u64()).expect("a port").to_string();
            let is_udp = port["protocol"] == "UDP";
            // Some Services of the cases name another port than their workload serves.
            let other = || ports.values().find(|(serves, _)| is_udp && serves.contains("udp"));
            let (_, at) = ports.get(&target).or_else(other)?;
            Some(json!({"name": port["name"].as_str().unwrap_or_default(), "port": at.port(),
                "protocol": port["protocol"].as_str().unwrap_or("TCP")}))
        };
        let ports: Vec<Value> = items(&service["spec"]["ports"]).iter().filter_map(of_port).collect();
        self.slices += 1;
        let name = text(&service["metadata"]["name"]);
        let mut labels = tags.as_object().cloned().unwrap_or_default();
        labels.insert("kubernetes.io/service-name".to_owned(), name.into());
        self.put(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": format!("{name}-{}", self.slices), "namespace": service["metadata"]["namespace"],
                "labels": labels},
            "addressType": "IPv4", "ports": ports,
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true}}]}));
    }
}

/// Services without a selector have hand-made slices with the pods of the workload.
fn selects(service: &Value, workload: &Value) -> bool {
    let selector = service["spec"]["selector"].as_object();
    selector.is_none_or(|selector| selector.iter().all(|(name, value)| workload["labels"][name] == *value))
}

fn certificate_object(key: &ObjectKey, pair: &Pair) -> Value {
    let metadata = json!({"name": key.name.as_str(), "namespace": key.namespace.as_str()});
    match &pair.config_map_key {
        None => {
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls",
            "stringData": {"tls.crt": pair.chain, "tls.key": pair.key}})
        }
        Some(data) => json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
            "data": {data: pair.chain}}),
    }
}
