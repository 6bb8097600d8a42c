//! ClusterIPs of Services, allocated in the transaction of the Service.
//!
//! ```text
//! ServiceCIDRs -> allocator --\
//! old and new Service -> apimachinery::cluster_ips::update -> keep, allocate, release -> IPAddress objects, spec
//! ```
//!
//! An IPAddress is the lock on its address (semantics E2): whether an address is taken is read from the objects.

use std::net::IpAddr;

use apimachinery::cluster_ips::{
    AllocateError, ClusterFamilies, FieldError, IpAllocator, api_address, is_api_service, kubernetes_service,
    start_offset, update,
};
use ipnet::IpNet;
use model::{Family, Interner, Name, Object, Service, ServiceCidr, ServiceKey, ServiceType, parse};
use serde_json::{Value, json};

use super::{AllocationContext, ServiceRanges, services};
use crate::kinds::{self, ResourceKind};
use crate::meta;
use crate::object_txn::ObjectTxn;
use crate::status::{Cause, StatusError};

pub(super) fn allocate(
    objects: &mut ObjectTxn<'_, '_>,
    context: AllocationContext<'_>,
    old: Option<&Value>,
    new: &mut Value,
) -> Result<(), StatusError> {
    let after = parse_service(new)?;
    let before = old.map(parse_service).transpose()?.unwrap_or_else(|| without_addresses(&after));
    change(objects, context, &before, &after, new)
}

pub(super) fn release(objects: &mut ObjectTxn<'_, '_>, service: &Value) -> Result<(), StatusError> {
    let key = ServiceKey::new(
        &Name::new(meta::text(service, "namespace")),
        &Name::new(meta::text(service, "name")),
    );
    for text in service["spec"]["clusterIPs"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if let Ok(ip) = text.parse() {
            unlock(objects, ip, &key)?;
        }
    }
    Ok(())
}

fn ip_addresses() -> &'static ResourceKind {
    kinds::find("networking.k8s.io", "v1", "ipaddresses").expect("the table has IPAddresses")
}

fn service_cidrs() -> &'static ResourceKind {
    kinds::find("networking.k8s.io", "v1", "servicecidrs").expect("the table has ServiceCIDRs")
}

fn parse_service(service: &Value) -> Result<Service, StatusError> {
    let (object, notices) = parse::object(service, &mut Interner::default());
    match object {
        Some(Object::Service(service)) => Ok(*service),
        _ => {
            let causes: Vec<Cause> = notices.into_iter().map(|n| Cause::invalid("spec", n.message)).collect();
            Err(StatusError::invalid(services(), meta::text(service, "name"), &causes))
        }
    }
}

/// The state before a new Service: one without addresses.
fn without_addresses(service: &Service) -> Service {
    Service { kind: ServiceType::ExternalName, ..service.clone() }
}

/// The allocatable cluster IPs.
struct ClusterIps {
    allocator: IpAllocator,
    families: ClusterFamilies,
    /// The address of the API's Service.
    reserved: Option<IpAddr>,
}

impl ClusterIps {
    fn read(objects: &ObjectTxn<'_, '_>, configured: &[IpNet]) -> Result<Self, StatusError> {
        let mut interner = Interner::default();
        let stored = objects.list(service_cidrs(), None)?;
        let parsed = stored.iter().filter_map(|cidr| match parse::object(cidr, &mut interner).0 {
            Some(Object::ServiceCidr(cidr)) => Some(cidr),
            _ => None,
        });
        let cidrs: Vec<ServiceCidr> = parsed.collect();
        let cidrs: Vec<&ServiceCidr> = cidrs.iter().collect();
        let (allocator, families) = apimachinery::cluster_ips::allocator(&cidrs);
        Ok(Self { allocator, families, reserved: api_address(&cidrs, configured) })
    }

    /// Whether an address is reserved for another Service.
    fn is_reserved(&self, ip: IpAddr, key: &ServiceKey) -> bool {
        self.reserved == Some(ip) && !is_api_service(key)
    }
}

/// Refuses an IPAddress that would give the address of the API's Service to another one. A Service that has had the
/// address since before the reservation keeps its IPAddress.
pub(crate) fn check_ip_address(
    objects: &ObjectTxn<'_, '_>,
    ranges: &ServiceRanges,
    object: &Value,
) -> Result<(), StatusError> {
    let Ok(ip) = meta::text(object, "name").parse::<IpAddr>() else { return Ok(()) };
    if ClusterIps::read(objects, &ranges.cluster_ips)?.reserved != Some(ip) || is_of(object, &api_key()) {
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
    Err(StatusError::invalid(ip_addresses(), &ip.to_string(), &[cause]))
}

fn api_key() -> ServiceKey {
    ServiceKey::new(&Name::new(kubernetes_service::NAMESPACE), &Name::new(kubernetes_service::NAME))
}

fn reserved(ip: IpAddr) -> String {
    format!("{ip} is reserved for Service {} of the API: choose another address", api_key())
}

fn change(
    objects: &mut ObjectTxn<'_, '_>,
    context: AllocationContext<'_>,
    before: &Service,
    after: &Service,
    new: &mut Value,
) -> Result<(), StatusError> {
    let mut cluster = ClusterIps::read(objects, &context.ranges.cluster_ips)?;
    let name = after.key.name.to_string();
    let refused = |FieldError { field, message, .. }| {
        StatusError::invalid(services(), &name, &[Cause::invalid(field, message)])
    };
    let change = update(before, after, &cluster.families).map_err(refused)?;
    let mut ips = change.kept.clone();
    for (family, asked) in &change.allocate {
        let ip = match asked {
            Some(ip) => take(objects, &cluster, *ip, &after.key)?,
            None if context.dry_run => dry_run_address(&cluster.allocator, *family)?,
            None => take_next(objects, &mut cluster, *family, &after.key, context.seed)?,
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

/// Semantics E3: a requested address that is not available is invalid in spec.clusterIPs.
fn take(
    objects: &mut ObjectTxn<'_, '_>,
    cluster: &ClusterIps,
    ip: IpAddr,
    key: &ServiceKey,
) -> Result<IpAddr, StatusError> {
    let refuse = |why: &str| {
        let reason = format!("failed to allocate IP {ip}: {why}");
        StatusError::invalid(services(), &key.name, &[Cause::invalid("spec.clusterIPs", reason)])
    };
    if cluster.is_reserved(ip, key) {
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
    objects: &mut ObjectTxn<'_, '_>,
    cluster: &mut ClusterIps,
    family: Family,
    key: &ServiceKey,
    seed: u64,
) -> Result<IpAddr, StatusError> {
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
        // Pitfall 40: a taken address is skipped; the allocator remembers it for this search.
        if objects.find(ip_addresses(), "", &ip.to_string())?.is_none() {
            return lock(objects, ip, key).map(|()| ip);
        }
    }
}

/// Semantics E3: a dry run returns the base of a range, which is never allocated.
fn dry_run_address(allocator: &IpAllocator, family: Family) -> Result<IpAddr, StatusError> {
    allocator.dry_run_address(family).ok_or_else(|| exhausted(family, AllocateError::Full))
}

/// Semantics E3: an exhausted range is an error of the cluster and not of the Service.
fn exhausted(family: Family, error: AllocateError) -> StatusError {
    StatusError::internal(format!("failed to allocate an {family} cluster IP: {error}; create a ServiceCIDR"))
}

fn lock(objects: &mut ObjectTxn<'_, '_>, ip: IpAddr, key: &ServiceKey) -> Result<(), StatusError> {
    let mut object = model::write::new_ip_address(ip, key);
    meta::prepare_new(&mut object, objects.now, objects.names.uid());
    objects.put(ip_addresses(), &mut object)
}

fn unlock(objects: &mut ObjectTxn<'_, '_>, ip: IpAddr, key: &ServiceKey) -> Result<(), StatusError> {
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
