//! Services: what a new version keeps of the stored one, and the addresses that it gets, in the same
//! transaction as the Service itself.
//!
//! ```text
//! ServiceCIDRs -> allocator --\
//! old and new Service -> plan::cluster_ips::update -> keep, allocate, release -> IPAddress objects, spec
//! ```
//!
//! An IPAddress is the lock on its address (semantics E2), so what is taken is asked of the objects and not
//! remembered anywhere.

mod carry;
mod load_balancer;

use std::net::IpAddr;

use ipnet::IpNet;
use model::{Family, Interner, Name, Object, Service, ServiceCidr, ServiceKey, ServiceType, parse};
use plan::cluster_ips::{
    AllocateError, ClusterFamilies, FieldError, IpAllocator, api_address, is_api_service, kubernetes_service,
    start_offset, update,
};
use serde_json::{Value, json};

use super::ports;
use crate::kinds::{self, Kind};
use crate::meta;
use crate::names;
use crate::objects::Objects;
use crate::status::{Cause, Failure};

pub use carry::carry_over;

/// What the cluster gives to Services, and what they may ask for.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    /// Where node ports come from.
    pub node_ports: plan::validate::ValidationOptions,
    /// Where cluster IPs come from while there is no default ServiceCIDR.
    pub cluster_ips: Vec<IpNet>,
    /// Where addresses of load balancers come from; empty: nobody gives any here.
    pub load_balancers: Vec<IpNet>,
    /// Which features are on.
    pub gates: plan::FeatureGates,
}

/// How a write is to be carried out.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// What there is to give.
    pub ranges: &'a Ranges,
    /// Nothing is taken for good.
    pub dry_run: bool,
    /// Where searches start.
    pub seed: u64,
}

/// Gives a Service what it needs and takes back what it no longer does.
pub fn settle(
    objects: &mut Objects<'_, '_>,
    terms: Terms<'_>,
    old: Option<&Value>,
    new: &mut Value,
) -> Result<(), Failure> {
    let parsed = read(new)?;
    let before = old.map(read).transpose()?.unwrap_or_else(|| as_nothing(&parsed));
    addresses(objects, terms, &before, &parsed, new)?;
    ports::settle(objects, terms, old, new)?;
    load_balancer::settle(objects, terms, old, new)
}

/// Takes back all that a Service had.
pub fn release(objects: &mut Objects<'_, '_>, service: &Value) -> Result<(), Failure> {
    let key = ServiceKey::new(
        &Name::new(meta::text(service, "namespace")),
        &Name::new(meta::text(service, "name")),
    );
    for text in service["spec"]["clusterIPs"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if let Ok(ip) = text.parse() {
            unlock(objects, ip, &key)?;
        }
    }
    ports::release(objects, service)?;
    load_balancer::release(objects, service)
}

/// Who holds a lock, as locks are marked.
pub(super) fn holder(service: &Value) -> String {
    format!("{}/{}", meta::text(service, "namespace"), meta::text(service, "name"))
}

fn services() -> &'static Kind {
    kinds::find("", "v1", "services").expect("the table has Services")
}

fn ip_addresses() -> &'static Kind {
    kinds::find("networking.k8s.io", "v1", "ipaddresses").expect("the table has IPAddresses")
}

fn service_cidrs() -> &'static Kind {
    kinds::find("networking.k8s.io", "v1", "servicecidrs").expect("the table has ServiceCIDRs")
}

fn read(service: &Value) -> Result<Service, Failure> {
    let (object, notices) = parse::object(service, &mut Interner::default());
    match object {
        Some(Object::Service(service)) => Ok(*service),
        _ => {
            let causes: Vec<Cause> = notices.into_iter().map(|n| Cause::invalid("spec", n.message)).collect();
            Err(Failure::invalid(services(), meta::text(service, "name"), &causes))
        }
    }
}

/// What stands before a new Service: one without any address.
fn as_nothing(service: &Service) -> Service {
    Service { kind: ServiceType::ExternalName, ..service.clone() }
}

/// What cluster IPs are given out of.
struct Cluster {
    allocator: IpAllocator,
    families: ClusterFamilies,
    /// The address of the API's own Service, which no other gets.
    reserved: Option<IpAddr>,
}

impl Cluster {
    fn read(objects: &Objects<'_, '_>, configured: &[IpNet]) -> Result<Self, Failure> {
        let mut interner = Interner::default();
        let stored = objects.list(service_cidrs(), None)?;
        let parsed = stored.iter().filter_map(|cidr| match parse::object(cidr, &mut interner).0 {
            Some(Object::ServiceCidr(cidr)) => Some(cidr),
            _ => None,
        });
        let cidrs: Vec<ServiceCidr> = parsed.collect();
        let cidrs: Vec<&ServiceCidr> = cidrs.iter().collect();
        let (allocator, families) = plan::cluster_ips::allocator(&cidrs);
        Ok(Self { allocator, families, reserved: api_address(&cidrs, configured) })
    }

    /// Whether this Service may not have that address.
    fn refuses(&self, ip: IpAddr, key: &ServiceKey) -> bool {
        self.reserved == Some(ip) && !is_api_service(key)
    }
}

/// Refuses an IPAddress that would give the address of the API's Service to another one. A Service that has the
/// address already, from before it was reserved, keeps its IPAddress.
pub fn check_ip_address(objects: &Objects<'_, '_>, ranges: &Ranges, object: &Value) -> Result<(), Failure> {
    let Ok(ip) = meta::text(object, "name").parse::<IpAddr>() else { return Ok(()) };
    if Cluster::read(objects, &ranges.cluster_ips)?.reserved != Some(ip) || is_of(object, &api_key()) {
        return Ok(());
    }
    let parent = &object["spec"]["parentRef"];
    let text = |name: &str| parent[name].as_str().unwrap_or_default();
    let holder = match parent["resource"] == "services" {
        true => objects.find(services(), text("namespace"), text("name"))?,
        false => None,
    };
    let lists = |service: &Value| {
        service["spec"]["clusterIPs"].as_array().is_some_and(|ips| ips.contains(&json!(ip)))
    };
    if holder.as_ref().is_some_and(lists) {
        return Ok(());
    }
    let cause = Cause::invalid("spec.parentRef", reserved(ip));
    Err(Failure::invalid(ip_addresses(), &ip.to_string(), &[cause]))
}

fn api_key() -> ServiceKey {
    ServiceKey::new(&Name::new(kubernetes_service::NAMESPACE), &Name::new(kubernetes_service::NAME))
}

fn reserved(ip: IpAddr) -> String {
    format!("{ip} is reserved for Service {}, the API itself: choose another address", api_key())
}

fn addresses(
    objects: &mut Objects<'_, '_>,
    terms: Terms<'_>,
    before: &Service,
    after: &Service,
    new: &mut Value,
) -> Result<(), Failure> {
    let mut cluster = Cluster::read(objects, &terms.ranges.cluster_ips)?;
    let name = after.key.name.to_string();
    let refused = |FieldError { field, message, .. }| {
        Failure::invalid(services(), &name, &[Cause::invalid(field, message)])
    };
    let change = update(before, after, &cluster.families).map_err(refused)?;
    let mut ips = change.kept.clone();
    for (family, asked) in &change.allocate {
        let ip = match asked {
            Some(ip) => take(objects, &cluster, *ip, &after.key)?,
            None if terms.dry_run => rehearsed(&cluster.allocator, *family)?,
            None => take_next(objects, &mut cluster, *family, &after.key, terms.seed)?,
        };
        ips.push(ip);
    }
    for ip in change.release {
        unlock(objects, ip, &before.key)?;
    }
    let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    match change.policy {
        Some(policy) => {
            spec.insert("ipFamilyPolicy".to_owned(), policy.as_str().into());
            let families: Vec<&str> = change.families.iter().map(|family| family.as_str()).collect();
            spec.insert("ipFamilies".to_owned(), json!(families));
        }
        None => {
            for name in ["ipFamilyPolicy", "ipFamilies", "clusterIP", "clusterIPs"] {
                spec.shift_remove(name);
            }
        }
    }
    if after.cluster_ips == model::ClusterIps::None
        || before.cluster_ips == model::ClusterIps::None && ips.is_empty()
    {
        if change.policy.is_some() {
            spec.insert("clusterIP".to_owned(), "None".into());
            spec.insert("clusterIPs".to_owned(), json!(["None"]));
        }
    } else if let Some(first) = ips.first() {
        spec.insert("clusterIP".to_owned(), first.to_string().into());
        spec.insert("clusterIPs".to_owned(), ips.iter().map(IpAddr::to_string).collect());
    }
    Ok(())
}

/// Semantics E3: an address that cannot be had is the fault of spec.clusterIPs.
fn take(
    objects: &mut Objects<'_, '_>,
    cluster: &Cluster,
    ip: IpAddr,
    key: &ServiceKey,
) -> Result<IpAddr, Failure> {
    let refuse = |why: &str| {
        let reason = format!("failed to allocate IP {ip}: {why}");
        Failure::invalid(services(), &key.name, &[Cause::invalid("spec.clusterIPs", reason)])
    };
    if cluster.refuses(ip, key) {
        return Err(refuse(&reserved(ip)));
    }
    cluster.allocator.admits(ip).map_err(|error| refuse(&error.to_string()))?;
    match objects.find(ip_addresses(), "", &ip.to_string())? {
        Some(held) if !is_of(&held, key) => Err(refuse("provided IP is already allocated")),
        Some(_) => Ok(ip),
        None => lock(objects, ip, key).map(|()| ip),
    }
}

fn take_next(
    objects: &mut Objects<'_, '_>,
    cluster: &mut Cluster,
    family: Family,
    key: &ServiceKey,
    seed: u64,
) -> Result<IpAddr, Failure> {
    let offset = start_offset(seed, key, family);
    if let Some(ip) = cluster.reserved {
        let free = objects.find(ip_addresses(), "", &ip.to_string())?.is_none();
        if is_api_service(key) && Family::of(ip) == family && free && cluster.allocator.admits(ip).is_ok() {
            return lock(objects, ip, key).map(|()| ip);
        }
        cluster.allocator.mark_allocated(ip);
    }
    loop {
        let ip = cluster.allocator.allocate_next(family, offset).map_err(|error| exhausted(family, error))?;
        // Pitfall 40: a taken one is passed over, and the allocator remembers it for this search.
        if objects.find(ip_addresses(), "", &ip.to_string())?.is_none() {
            return lock(objects, ip, key).map(|()| ip);
        }
    }
}

/// Semantics E3: a dry run shows the base of a range, so that nobody takes it for a promise.
fn rehearsed(allocator: &IpAllocator, family: Family) -> Result<IpAddr, Failure> {
    allocator.dry_run_address(family).ok_or_else(|| exhausted(family, AllocateError::Full))
}

/// Semantics E3: no address left is the cluster's fault and not the Service's.
fn exhausted(family: Family, error: AllocateError) -> Failure {
    Failure::internal(format!("failed to allocate an {family} cluster IP: {error}; create a ServiceCIDR"))
}

fn lock(objects: &mut Objects<'_, '_>, ip: IpAddr, key: &ServiceKey) -> Result<(), Failure> {
    let mut object = model::write::new_ip_address(ip, key);
    let uid = names::uid().map_err(Failure::internal)?;
    meta::born(&mut object, objects.now, uid);
    objects.put(ip_addresses(), &mut object)
}

fn unlock(objects: &mut Objects<'_, '_>, ip: IpAddr, key: &ServiceKey) -> Result<(), Failure> {
    match objects.find(ip_addresses(), "", &ip.to_string())? {
        Some(mut held) if is_of(&held, key) => objects.remove(ip_addresses(), &mut held),
        _ => Ok(()),
    }
}

fn is_of(ip: &Value, key: &ServiceKey) -> bool {
    let parent = &ip["spec"]["parentRef"];
    parent["resource"] == "services"
        && parent["namespace"] == key.namespace.as_str()
        && parent["name"] == key.name.as_str()
}
