//! The cases of `vectors/ip-allocation.json`, checked by the function of each kind and, where possible, by a whole plan.

use std::net::IpAddr;

use apimachinery::cluster_ips::{
    self, AddressInput, AddressPlan, AllocateError, CidrAction, IpAddressRepair, IpAllocator, IpPool, IpRange,
};
use apimachinery::validate::{validate, validate_update};
use model::parse::{self, Object};
use model::{Family, Interner, IpAddress, Name, Service, ServiceCidr, ServiceKey, Timestamp};
use serde_json::{Value, json};

#[test]
fn every_case_of_the_vectors_holds() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/ip-allocation.json");
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let cases = vectors["vectors"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let id = case["id"].as_str().unwrap();
        check(id, case["kind"].as_str().unwrap(), &case["input"], &case["expect"]);
    }
}

fn check(id: &str, kind: &str, input: &Value, expect: &Value) {
    match kind {
        "bands" | "capacity" => check_range(id, input, expect),
        "search-order" => check_search_order(id, input, expect),
        "sequence" => check_sequence(id, input, expect),
        "servicecidr-create-validation" => {
            let violations = validate(&service_cidr(&input["spec"]["cidrs"]));
            assert_eq!(violations.is_empty(), expect["valid"], "{id}: {violations:?}");
        }
        "servicecidr-update-validation" => {
            let (old, new) = (service_cidr(&input["old"]["cidrs"]), service_cidr(&input["new"]["cidrs"]));
            let violations = validate_update(&old, &new);
            assert_eq!(violations.is_empty(), expect["valid"], "{id}: {violations:?}");
        }
        "servicecidr-can-delete" => {
            let (cidrs, ips) = (cidrs(&input["existingServiceCIDRs"]), managed_ips(&input["ipAddresses"]));
            let blocking = cluster_ips::blocking_address(&cidr(&input["delete"]), &refs(&cidrs), &refs(&ips));
            assert_eq!(blocking.is_none(), expect["canDelete"], "{id}");
        }
        "servicecidr-sync" => check_sync(id, input, expect),
        "servicecidr-containing-ip" => {
            let names = cluster_ips::containing(ip(&input["ip"]), &refs(&cidrs(&input["serviceCIDRs"])));
            assert_eq!(name_list(&names), expect["names"], "{id}");
        }
        "servicecidr-overlapping" => {
            let all = cidrs(&input["serviceCIDRs"]);
            let names = cluster_ips::overlapping(&cidr(&input["cidr"]), &refs(&all));
            assert_eq!(name_list(&names), expect["names"], "{id}");
        }
        "repair" => check_repair(id, input, expect),
        "repair-ipaddress" => check_repair_ip_address(id, input, expect),
        other => panic!("{id}: unknown kind {other:?}"),
    }
}

fn service_cidr(cidrs: &Value) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": cidrs}})
}

fn check_range(id: &str, input: &Value, expect: &Value) {
    let range = IpRange::new(input["cidr"].as_str().unwrap().parse().unwrap());
    assert_eq!(range.capacity().to_string(), expect["availableAddresses"], "{id}");
    let cidr = cidr(&json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": [input["cidr"]]}}));
    let ranges = plan(&[], &[cidr], &[], None).ranges;
    let [report] = &ranges[..] else { panic!("{id}: {ranges:?}") };
    assert_eq!(report.cidr.to_string(), input["cidr"], "{id}: as written");
    assert_eq!(report.free.to_string(), expect["availableAddresses"], "{id}");
    let Some(offset) = expect.get("rangeOffset") else { return };
    assert_eq!(&json!(range.static_size()), offset, "{id}");
    let text = |address: Option<IpAddr>| address.map_or(Value::Null, |a| json!(a.to_string()));
    assert_eq!(text(range.first()), expect["firstAddress"], "{id}");
    assert_eq!(text(range.last()), expect["lastAddress"], "{id}");
    let band = |band: Option<cluster_ips::Band>| {
        band.map_or(Value::Null, |(a, b)| json!([a.to_string(), b.to_string()]))
    };
    assert_eq!(band(report.static_band), expect["staticBand"], "{id}");
    assert_eq!(band(report.dynamic_band), expect["dynamicBand"], "{id}");
}

fn check_search_order(id: &str, input: &Value, expect: &Value) {
    let offset = input["startOffset"].as_u64().unwrap();
    let visits = cluster_ips::search_order(ip(&input["first"]), ip(&input["last"]), offset);
    let visits: Vec<String> = visits.map(|address| address.to_string()).collect();
    if let Some(expected) = expect.get("visits") {
        assert_eq!(&json!(visits), expected, "{id}");
    }
    if let Some(count) = expect.get("visitCount") {
        assert_eq!(&json!(visits.len()), count, "{id}");
    }
}

/// An allocator with the ServiceCIDRs that steps add and delete.
struct Sequence {
    family: Family,
    service_cidrs: Vec<(String, Vec<IpPool>)>,
    allocator: IpAllocator,
    held: Vec<IpAddr>,
    tries: u64,
}

impl Sequence {
    fn add(&mut self, name: &str, cidrs: &Value) {
        let ranges = texts(cidrs).iter().map(|text| IpRange::new(text.parse().unwrap())).collect::<Vec<_>>();
        if let Some(range) = ranges.first() {
            self.family = range.family();
        }
        let pools = ranges.into_iter().map(|range| IpPool { range, ready: true }).collect();
        self.service_cidrs.push((name.to_owned(), pools));
        self.refresh();
    }

    fn refresh(&mut self) {
        self.allocator.set_pools(self.service_cidrs.iter().flat_map(|(_, pools)| pools.clone()));
    }

    fn allocate_next(&mut self) -> Result<(), AllocateError> {
        self.tries += 1;
        let offset = self.tries.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.held.push(self.allocator.allocate_next(self.family, offset)?);
        Ok(())
    }

    /// Does a step and counts the addresses that it obtained.
    fn step(&mut self, id: &str, step: &Value) -> Result<usize, AllocateError> {
        let before = self.held.len();
        match step["op"].as_str().unwrap() {
            "allocateNext" => self.allocate_next()?,
            "fillDynamic" => {
                // More than any range of the cases holds, so that an allocator that never fills up is
                // noticed.
                let filled = (0..100_000).any(|_| self.allocate_next().is_err());
                assert!(filled, "{id}: it never fills up");
            }
            "allocate" => {
                self.allocator.allocate(ip(&step["ip"]))?;
                self.held.push(ip(&step["ip"]));
            }
            "release" => {
                self.allocator.release(ip(&step["ip"]));
                self.held.retain(|held| *held != ip(&step["ip"]));
            }
            "releaseAll" => {
                for ip in self.held.drain(..) {
                    assert!(self.allocator.release(ip), "{id}: {ip}");
                }
            }
            "addServiceCIDR" => self.add(step["name"].as_str().unwrap(), &step["cidrs"]),
            "deleteServiceCIDR" => {
                self.service_cidrs.retain(|(name, _)| step["name"] != **name);
                self.refresh();
            }
            other => panic!("{id}: unknown step {other:?}"),
        }
        Ok(self.held.len().saturating_sub(before))
    }
}

fn check_sequence(id: &str, input: &Value, expect: &Value) {
    let mut sequence = Sequence {
        family: Family::V4,
        service_cidrs: Vec::new(),
        allocator: IpAllocator::default(),
        held: Vec::new(),
        tries: 0,
    };
    sequence.add("initial", &input["cidrs"]);
    let (steps, expected) = (input["steps"].as_array().unwrap(), expect["steps"].as_array().unwrap());
    assert_eq!(steps.len(), expected.len(), "{id}");
    for (i, (step, expected)) in steps.iter().zip(expected).enumerate() {
        let result = sequence.step(id, step);
        for (what, value) in expected.as_object().unwrap() {
            let seen = match what.as_str() {
                "ok" => json!(result.is_ok()),
                "count" => json!(result.unwrap()),
                "free" => json!(sequence.allocator.free_in_all(sequence.family)),
                "error" => json!(result.err().map(|error| match error {
                    AllocateError::Full => "full",
                    AllocateError::Taken => "allocated",
                    AllocateError::OutOfRange => "not in range",
                    AllocateError::NotReady => "not ready",
                })),
                other => panic!("{id}: unknown expectation {other:?}"),
            };
            assert_eq!(&seen, value, "{id} step {i}: {what}");
        }
    }
}

fn check_sync(id: &str, input: &Value, expect: &Value) {
    let (cidrs, ips) = (cidrs(&input["serviceCIDRs"]), managed_ips(&input["ipAddresses"]));
    let now = now(input).expect("the controller has a clock");
    let cidr = cidrs.iter().filter(|cidr| input["sync"] == *cidr.name);
    let actions = cidr.flat_map(|cidr| cluster_ips::sync_service_cidr(cidr, &refs(&cidrs), &refs(&ips), now));
    let patch = |action: CidrAction| match action {
        CidrAction::AddFinalizer | CidrAction::RemoveFinalizer => Some("spec-object (finalizer)"),
        CidrAction::SetReady | CidrAction::SetTerminating { .. } => Some("status (Ready condition)"),
        CidrAction::Wait(_) => None,
    };
    let patches: Vec<&str> = actions.filter_map(patch).collect();
    assert_eq!(json!(patches), expect["patches"], "{id}");
}

fn check_repair(id: &str, input: &Value, expect: &Value) {
    let services = services(&input["services"]);
    let cidrs = cidrs(&input["serviceCIDRs"]);
    let ips = ip_addresses(&input["ipAddresses"]);
    let plan = plan(&services, &cidrs, &ips, now(input));
    assert_eq!((&plan.assigned[..], &plan.rejected[..]), (&[][..], &[][..]), "{id}");
    assert_eq!(api_calls(&plan), sorted(&expect["apiCalls"]), "{id}");
    let mut reasons: Vec<&str> = plan.notices.iter().map(|notice| notice.reason).collect();
    reasons.sort();
    assert_eq!(reasons, sorted(&expect["eventReasons"]), "{id}");
    let kept = ips.iter().map(|ip| ip.address).filter(|ip| !plan.deletes.contains(ip));
    let after: Vec<IpAddr> = kept.chain(plan.creates.iter().map(|(ip, _)| *ip)).collect();
    for present in texts(&expect["ipsPresentAfter"]) {
        assert!(after.contains(&present.parse().unwrap()), "{id}: {present} is missing");
    }
}

fn check_repair_ip_address(id: &str, input: &Value, expect: &Value) {
    let services = services(&input["services"]);
    let ips = ip_addresses(&json!([input["ipAddress"]]));
    let key = ServiceKey::new(&ips[0].parent.namespace, &ips[0].parent.name);
    let parent = services.iter().find(|service| service.key == key);
    let repair = cluster_ips::repair_ip_address(&ips[0], parent, now(input));
    let calls: &[&str] = if matches!(repair, IpAddressRepair::Delete(_)) { &["delete"] } else { &[] };
    assert_eq!(json!(calls), expect["apiCalls"], "{id}");
    assert_eq!(api_calls(&plan(&services, &[], &ips, now(input))), calls, "{id}");
}

fn api_calls(plan: &AddressPlan) -> Vec<&'static str> {
    let creates = plan.creates.iter().map(|_| "create");
    creates.chain(plan.deletes.iter().map(|_| "delete")).collect()
}

fn plan(
    services: &[Service],
    cidrs: &[ServiceCidr],
    ips: &[IpAddress],
    now: Option<Timestamp>,
) -> AddressPlan {
    cluster_ips::plan(&AddressInput {
        services: &refs(services),
        unreadable: &[],
        service_cidrs: &refs(cidrs),
        ip_addresses: &refs(ips),
        seed: 1,
        now,
    })
}

fn now(input: &Value) -> Option<Timestamp> {
    input["now"].as_str().map(|text| Timestamp::parse(text).expect("a time"))
}

fn ip(value: &Value) -> IpAddr {
    value.as_str().unwrap().parse().unwrap()
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn sorted(list: &Value) -> Vec<String> {
    let mut texts = texts(list);
    texts.sort();
    texts
}

fn name_list(names: &[Name]) -> Value {
    names.iter().map(|name| name.as_str()).collect()
}

fn refs<T>(list: &[T]) -> Vec<&T> {
    list.iter().collect()
}

fn object(api_version: &str, kind: &str, value: &Value) -> Object {
    let mut value = value.clone();
    value["apiVersion"] = api_version.into();
    value["kind"] = kind.into();
    let (object, notices) = parse::object(&value, &mut Interner::default());
    assert_eq!(notices, [], "{value}");
    object.unwrap()
}

fn cidr(value: &Value) -> ServiceCidr {
    match object("networking.k8s.io/v1", "ServiceCIDR", value) {
        Object::ServiceCidr(cidr) => cidr,
        other => panic!("{other:?}"),
    }
}

fn cidrs(list: &Value) -> Vec<ServiceCidr> {
    list.as_array().unwrap().iter().map(cidr).collect()
}

fn services(list: &Value) -> Vec<Service> {
    let service = |value| match object("v1", "Service", value) {
        Object::Service(service) => *service,
        other => panic!("{other:?}"),
    };
    list.as_array().into_iter().flatten().map(service).collect()
}

fn ip_addresses(list: &Value) -> Vec<IpAddress> {
    let ip = |value| match object("networking.k8s.io/v1", "IPAddress", value) {
        Object::IpAddress(ip) => ip,
        other => panic!("{other:?}"),
    };
    list.as_array().into_iter().flatten().map(ip).collect()
}

/// IPAddresses that a case names by address alone: as the allocator writes them.
fn managed_ips(list: &Value) -> Vec<IpAddress> {
    let key = ServiceKey::new(&"bar".into(), &"foo".into());
    let object = |text: String| model::write::new_ip_address(text.parse().unwrap(), &key);
    ip_addresses(&texts(list).into_iter().map(object).collect())
}
