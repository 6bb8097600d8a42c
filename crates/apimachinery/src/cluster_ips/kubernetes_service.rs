//! Service default/kubernetes, which exposes the API server. In-cluster clients and certificates contain its address, so
//! the first address of the default ServiceCIDR's first range is reserved for it.

use std::net::IpAddr;

use ipnet::IpNet;
use model::{IpAddress, Notice, ObjectRef, Service, ServiceCidr, ServiceKey};

use super::ip_range::IpRange;
use super::repair;
use super::service_cidr::DEFAULT_NAME;

pub const NAMESPACE: &str = "default";
pub const NAME: &str = "kubernetes";

pub fn is_api_service(key: &ServiceKey) -> bool {
    key.namespace == *NAMESPACE && key.name == *NAME
}

/// The reserved address. `configured` is used while the default ServiceCIDR does not exist.
pub fn api_address(cidrs: &[&ServiceCidr], configured: &[IpNet]) -> Option<IpAddr> {
    let stored = cidrs.iter().find(|cidr| cidr.name == *DEFAULT_NAME).and_then(|cidr| cidr.cidrs.first());
    stored.or(configured.first()).and_then(|range| IpRange::new(*range).first())
}

/// Notices for other objects that have the reserved address: Services that list it, and an IPAddress of another object.
/// Older versions could allocate it.
pub fn check_api_address(address: IpAddr, services: &[&Service], locks: &[&IpAddress]) -> Vec<Notice> {
    let lists = |service: &&&Service| {
        service.cluster_ips.addresses().contains(&address) && !is_api_service(&service.key)
    };
    let mut holders: Vec<&Service> = services.iter().filter(lists).copied().collect();
    holders.sort_by(|a, b| a.key.cmp(&b.key));
    let mut notices: Vec<Notice> = holders.iter().map(|holder| held_by(address, &holder.key)).collect();
    let own = ServiceKey::new(&model::Name::new(NAMESPACE), &model::Name::new(NAME));
    let lock = locks.iter().find(|lock| lock.address == address && !repair::refers_to(lock, &own));
    if let Some(lock) = lock.filter(|lock| !holders.iter().any(|holder| repair::refers_to(lock, &holder.key)))
    {
        let parent = &lock.parent;
        let message = format!(
            "it is allocated to {} {}/{}, but reserved for Service {own}: run `kubectl delete ipaddress {address}`, then \
             `kubectl delete service {NAME} -n {NAMESPACE}`, which is recreated with its address",
            parent.resource, parent.namespace, parent.name
        );
        notices.push(Notice::new(ObjectRef::new("IPAddress", "", &address.to_string()), REASON, message));
    }
    notices
}

const REASON: &str = "APIServiceAddressTaken";

fn held_by(address: IpAddr, holder: &ServiceKey) -> Notice {
    let (namespace, name) = (&holder.namespace, &holder.name);
    let message = format!(
        "it has {address}, which is reserved for Service {NAMESPACE}/{NAME}: save it with `kubectl get service {name} \
         -n {namespace} -o yaml`, run `kubectl delete service {name} -n {namespace}`, then `kubectl delete service \
         {NAME} -n {NAMESPACE}`, which is recreated with its address, and create {namespace}/{name} again without \
         clusterIP and clusterIPs"
    );
    Notice::new(ObjectRef::service(holder), REASON, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{Interner, Object, parse};
    use serde_json::{Value, json};

    fn read(object: Value) -> Object {
        parse::object(&object, &mut Interner::default()).0.expect("it can be read")
    }

    fn cidr(name: &str, cidrs: &[&str]) -> ServiceCidr {
        let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": {"name": name}, "spec": {"cidrs": cidrs}});
        match read(object) {
            Object::ServiceCidr(cidr) => cidr,
            other => panic!("{other:?}"),
        }
    }

    fn service(namespace: &str, name: &str, ip: &str) -> Service {
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
            "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": 80}]}});
        match read(object) {
            Object::Service(service) => *service,
            other => panic!("{other:?}"),
        }
    }

    fn lock(ip: &str, namespace: &str, name: &str) -> IpAddress {
        let parent = json!({"group": "", "resource": "services", "namespace": namespace, "name": name});
        let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
            "metadata": {"name": ip}, "spec": {"parentRef": parent}});
        match read(object) {
            Object::IpAddress(ip) => ip,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_address_of_the_default_range_is_reserved() {
        let more = cidr("more", &["10.97.0.0/24"]);
        let default = cidr("kubernetes", &["10.96.0.0/16", "fd00:10:96::/112"]);
        let configured = ["10.95.0.0/16".parse().unwrap()];
        assert_eq!(api_address(&[&more, &default], &configured), Some("10.96.0.1".parse().unwrap()));
        assert_eq!(api_address(&[&more], &configured), Some("10.95.0.1".parse().unwrap()));
        assert_eq!(api_address(&[], &[]), None);
    }

    #[test]
    fn another_service_with_the_reserved_address_is_named_with_a_repair() {
        let ip: IpAddr = "10.96.0.1".parse().unwrap();
        let (own, taker) =
            (service("default", "kubernetes", "10.96.0.1"), service("shop", "web", "10.96.0.1"));
        let other = service("shop", "other", "10.96.0.9");
        assert_eq!(
            check_api_address(ip, &[&own, &other], &[&lock("10.96.0.1", "default", "kubernetes")]),
            []
        );
        let found = check_api_address(ip, &[&other, &taker], &[&lock("10.96.0.1", "shop", "web")]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].object.to_string(), "Service shop/web");
        assert!(found[0].message.contains("kubectl delete service web -n shop"), "{}", found[0].message);
        let found = check_api_address(ip, &[&other], &[&lock("10.96.0.1", "shop", "gone")]);
        assert_eq!(found[0].object.to_string(), "IPAddress 10.96.0.1");
    }
}
