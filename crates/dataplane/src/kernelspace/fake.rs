//! HNS in memory. It parses the documents that the real one would get, refuses what that refuses, and answers as it does:
//! with ids in upper case and fields of its own. Calls can fail at random, before or after they took effect.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::ForwardingTable;
use model::random::Random;
use serde_json::{Value, json};

use super::hcn::{Hcn, HcnError, HcnKind, HcnVersion};
use super::object::{FOREIGN, Guid, HcnEndpoint, IpConfiguration, LoadBalancer, Network, PortMapping};

/// Objects by id.
#[derive(Clone, Debug)]
pub struct FakeHcn {
    version: HcnVersion,
    objects: BTreeMap<(HcnKind, Guid), Value>,
    /// Random numbers, and one call of how many fails.
    faults: Option<(Random, usize)>,
    is_away: bool,
    /// What a service proxy must not do.
    violations: Vec<String>,
}

impl FakeHcn {
    /// A node with one network, and a version that can modify load balancers.
    pub fn new(network: &Network) -> Self {
        let mut fake = Self {
            version: HcnVersion { major: 16, minor: 0 },
            objects: BTreeMap::new(),
            faults: None,
            is_away: false,
            violations: Vec::new(),
        };
        fake.set_network(network);
        fake
    }

    /// A node whose network plugin has made the endpoints of its pods.
    pub fn with_pods(network: &Network, table: &ForwardingTable) -> Self {
        let mut fake = Self::new(network);
        let ports = table.services().flat_map(|(_, frontends)| frontends).map(|frontend| &frontend.port);
        for endpoint in ports.flat_map(|port| port.cluster.endpoints.iter().chain(&port.local.endpoints)) {
            let address = endpoint.address().ip();
            if endpoint.is_local && !table.node.is_own(address) {
                fake.add_pod(network, address);
            }
        }
        fake
    }

    pub fn set_version(&mut self, major: u32, minor: u32) {
        self.version = HcnVersion { major, minor };
    }

    /// Replaces the network.
    pub fn set_network(&mut self, network: &Network) {
        self.objects.retain(|(kind, _), _| *kind != HcnKind::Network);
        self.objects.insert((HcnKind::Network, network.id.clone()), json!(network));
    }

    /// Lets one of `every` calls fail from now on; 0 ends it.
    pub fn set_faults(&mut self, seed: u64, every: usize) {
        self.faults = (every > 0).then(|| (Random::seeded(seed), every));
    }

    /// Stops or starts the service.
    pub fn set_away(&mut self, is_away: bool) {
        self.is_away = is_away;
    }

    /// The endpoint of a pod on this node, as the network plugin makes it.
    pub fn add_pod(&mut self, network: &Network, address: IpAddr) -> Guid {
        let id = Guid::named(FOREIGN, &format!("pod {address}"));
        let endpoint = HcnEndpoint {
            id: id.clone(),
            host_compute_network: network.id.clone(),
            ip_configurations: vec![IpConfiguration { ip_address: address }],
            ..HcnEndpoint::default()
        };
        self.objects.insert((HcnKind::Endpoint, id.clone()), json!(endpoint));
        id
    }

    /// A load balancer of another program, if its address and port are free.
    pub fn add_foreign_load_balancer(&mut self, address: IpAddr, protocol: u32, port: u16) {
        let mapping =
            PortMapping { protocol, internal_port: 1, external_port: port, ..PortMapping::default() };
        let object = LoadBalancer {
            id: Guid::named(FOREIGN, &format!("load balancer {address} {protocol} {port}")),
            frontend_vips: vec![address],
            port_mappings: vec![mapping],
            ..LoadBalancer::default()
        };
        if self.check_port(&object).is_ok() {
            self.objects.insert((HcnKind::LoadBalancer, object.id.clone()), json!(object));
        }
    }

    /// Deletes an object, as another program would.
    pub fn remove(&mut self, kind: HcnKind, id: &Guid) {
        self.objects.remove(&(kind, id.clone()));
    }

    /// The objects of a kind, ours or those of others.
    pub fn objects(&self, kind: HcnKind, ours: bool) -> BTreeMap<Guid, Value> {
        let all = self.objects.iter().filter(|((of, id), _)| *of == kind && id.is_ours() == ours);
        all.map(|((_, id), object)| (id.clone(), object.clone())).collect()
    }

    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    fn load_balancers(&self) -> impl Iterator<Item = LoadBalancer> {
        let all = self.objects.iter().filter(|((kind, _), _)| *kind == HcnKind::LoadBalancer);
        all.filter_map(|(_, object)| serde_json::from_value(object.clone()).ok())
    }

    /// Two load balancers may not have the same address, protocol and port.
    fn check_port(&self, new: &LoadBalancer) -> Result<(), HcnError> {
        let place = |of: &LoadBalancer| {
            let ports: Vec<(u32, u16)> =
                of.port_mappings.iter().map(|mapping| (mapping.protocol, mapping.external_port)).collect();
            (of.frontend_vips.clone(), of.family(), ports)
        };
        let is_taken = self.load_balancers().any(|held| held.id != new.id && place(&held) == place(new));
        if is_taken { Err(HcnError::PORT_ALREADY_EXISTS) } else { Ok(()) }
    }

    fn check(&self, kind: HcnKind, settings: &str) -> Result<Value, HcnError> {
        let invalid = |_| HcnError(0x8007_0057);
        match kind {
            HcnKind::Network => return Err(HcnError::NOT_IMPLEMENTED),
            HcnKind::Endpoint => {
                let endpoint: HcnEndpoint = serde_json::from_str(settings).map_err(invalid)?;
                let network = (HcnKind::Network, endpoint.host_compute_network);
                self.objects.get(&network).ok_or(HcnError::NETWORK_NOT_FOUND)?;
            }
            HcnKind::LoadBalancer => {
                let object: LoadBalancer = serde_json::from_str(settings).map_err(invalid)?;
                let is_there = |id: &Guid| self.objects.contains_key(&(HcnKind::Endpoint, id.clone()));
                if !object.host_compute_endpoints.iter().all(is_there) {
                    return Err(HcnError::ENDPOINT_NOT_FOUND);
                }
                self.check_port(&object)?;
            }
        }
        serde_json::from_str(settings).map_err(invalid)
    }

    /// The injected fault of a call: always that of a stopped service, otherwise by the random source.
    fn fault(&mut self) -> Result<Option<Fault>, HcnError> {
        if self.is_away {
            return Err(HcnError::SERVICE_NOT_ACTIVE);
        }
        let Some((random, every)) = &mut self.faults else { return Ok(None) };
        let faults = [
            Fault::Refused(HcnError::FAILED),
            Fault::Refused(HcnError::SERVER_UNAVAILABLE),
            Fault::Refused(HcnError::NOT_IMPLEMENTED),
            Fault::AnswerLost,
            Fault::Gone,
        ];
        Ok(if random.below(*every) == 0 { random.pick(&faults).copied() } else { None })
    }

    /// Reads fail with an answer.
    fn read(&mut self) -> Result<(), HcnError> {
        match self.fault()? {
            Some(Fault::Refused(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Applies a change, with faults.
    fn change(
        &mut self,
        kind: HcnKind,
        id: &Guid,
        change: impl FnOnce(&mut Self) -> Result<(), HcnError>,
    ) -> Result<(), HcnError> {
        if !id.is_ours() {
            self.violations.push(format!("{} {id} is not ours", kind.as_str()));
        }
        match self.fault()? {
            None => change(self),
            Some(Fault::Refused(error)) => Err(error),
            Some(Fault::AnswerLost) => change(self).and(Err(HcnError::FAILED)),
            Some(Fault::Gone) => {
                self.remove(kind, id);
                change(self)
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Without an effect.
    Refused(HcnError),
    /// It took effect.
    AnswerLost,
    /// Another program deleted the object just before.
    Gone,
}

impl Hcn for FakeHcn {
    fn version(&mut self) -> Result<HcnVersion, HcnError> {
        self.read()?;
        Ok(self.version)
    }

    fn enumerate(&mut self, kind: HcnKind) -> Result<Vec<Guid>, HcnError> {
        self.read()?;
        Ok(self.objects.keys().filter(|(of, _)| *of == kind).map(|(_, id)| id.clone()).collect())
    }

    fn query(&mut self, kind: HcnKind, id: &Guid) -> Result<String, HcnError> {
        self.read()?;
        let mut object = self.objects.get(&(kind, id.clone())).ok_or(HcnError::ELEMENT_NOT_FOUND)?.clone();
        object["ID"] = json!(id.as_str().to_ascii_uppercase());
        object["Health"] = json!({"Extra": {}});
        if let Some(Value::Array(ids)) = object.get_mut("HostComputeEndpoints") {
            ids.reverse();
            ids.iter_mut().for_each(|id| *id = json!(id.as_str().unwrap_or_default().to_ascii_uppercase()));
        }
        Ok(object.to_string())
    }

    fn create(&mut self, kind: HcnKind, id: &Guid, settings: &str) -> Result<(), HcnError> {
        self.change(kind, id, |fake| {
            if fake.objects.contains_key(&(kind, id.clone())) {
                return Err(HcnError::ALREADY_EXISTS);
            }
            let object = fake.check(kind, settings)?;
            fake.objects.insert((kind, id.clone()), object);
            Ok(())
        })
    }

    fn modify(&mut self, kind: HcnKind, id: &Guid, settings: &str) -> Result<(), HcnError> {
        let can_modify = self.version.can_modify() && kind == HcnKind::LoadBalancer;
        self.change(kind, id, |fake| {
            if !can_modify {
                return Err(HcnError::NOT_IMPLEMENTED);
            }
            if !fake.objects.contains_key(&(kind, id.clone())) {
                return Err(HcnError::ELEMENT_NOT_FOUND);
            }
            let object = fake.check(kind, settings)?;
            fake.objects.insert((kind, id.clone()), object);
            Ok(())
        })
    }

    fn delete(&mut self, kind: HcnKind, id: &Guid) -> Result<(), HcnError> {
        self.change(kind, id, |fake| {
            let is_used = || fake.load_balancers().any(|held| held.host_compute_endpoints.contains(id));
            if kind == HcnKind::Endpoint && is_used() {
                fake.violations.push(format!("endpoint {id} was deleted while a load balancer used it"));
            }
            fake.objects.remove(&(kind, id.clone())).map(drop).ok_or(HcnError::ELEMENT_NOT_FOUND)
        })
    }
}
