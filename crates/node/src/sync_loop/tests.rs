//! The sync loop over a fake kernel: refused Services and stale UDP flows across failures and rebuilds.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::SystemTime;

use clock::ManualTime;
use cluster::InformerEvent;
use dataplane::conntrack::{ConntrackEntry, DumpFault, FakeConntrack, UDP};
use dataplane::nftables::NftablesBackend;
use dataplane::nftables::fake::{FakeKernel, FaultyKernel, KernelFault};
use dataplane::nftables::render::{SetName, TABLE};
use nix::errno::Errno;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::config::{Configuration, resolve};
use crate::health::ProxyHealth;
use crate::metrics::NodeMetrics;
use crate::object_contact::ObjectContact;

const KINDS: [ObjectKind; 4] =
    [ObjectKind::Service, ObjectKind::Slice, ObjectKind::Node, ObjectKind::ServiceCidr];

type SharedKernel = Arc<Mutex<FaultyKernel<FakeKernel>>>;

struct World {
    time: ManualTime,
    kernel: SharedKernel,
    conntrack: Arc<Mutex<FakeConntrack>>,
    notices: mpsc::Receiver<Notice>,
    programmed: watch::Receiver<ProgrammedState>,
    sync_loop: SyncLoop,
}

impl World {
    /// A node n1 in zone za with the Services s1 to s3, each with two endpoints; everything is programmed.
    fn programmed() -> Self {
        let kernel = Arc::new(Mutex::new(FaultyKernel::new(FakeKernel::new(), &[])));
        let mut world = World::starting_over(kernel, Arc::default());
        (1..=3).for_each(|number| world.set(number, 2));
        world.list_all();
        world.work();
        world.assert_endpoints([2, 2, 2]);
        world
    }

    /// A process that starts over the rules and entries of a kernel, with no object yet.
    fn starting_over(kernel: SharedKernel, conntrack: Arc<Mutex<FakeConntrack>>) -> Self {
        let time = ManualTime::starting_at(SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000));
        let clock = time.clock();
        let configuration = Configuration { mode: "nftables".to_owned(), ..Configuration::default() };
        let (settings, _) = resolve(configuration, false).unwrap();
        let (sender, notices) = mpsc::channel(100);
        let (programmed, reported) = watch::channel(ProgrammedState::default());
        let shared = Arc::new(SharedState {
            health: Mutex::new(ProxyHealth::new(settings.sync_period)),
            metrics: NodeMetrics::default(),
            objects: ObjectContact::default(),
        });
        let mut sync_loop = SyncLoop::new(SyncLoopParts {
            settings,
            node: "n1".to_owned(),
            shared,
            events: EventRecorder::new(sender, "n1"),
            programmed,
            backend: Box::new(NftablesBackend::new(Box::new(kernel.clone()))),
            other_modes: Vec::new(),
            conntrack: Some(Box::new(conntrack.clone())),
            traffic: TrafficCounters::disabled(clock.now()),
            clock,
            local_addresses: crate::local_addresses::local(),
        });
        KINDS.iter().for_each(|kind| sync_loop.observe(InformerEvent::ListStarted(*kind)));
        World { time, kernel, conntrack, notices, programmed: reported, sync_loop }
    }

    /// Everything that the API has was passed.
    fn list_all(&mut self) {
        self.set_zone("za");
        KINDS.iter().for_each(|kind| self.sync_loop.observe(InformerEvent::ListCompleted(*kind)));
    }

    fn apply(&mut self, kind: ObjectKind, object: Value) {
        self.sync_loop.observe(InformerEvent::Applied(kind, serde_json::from_value(object).unwrap()));
    }

    /// A Service with a TCP and a UDP port and endpoints 10.1.`number`.1 to 10.1.`number`.`endpoints`.
    fn set(&mut self, number: u8, endpoints: u8) {
        let (service, slice) = objects(number, endpoints);
        self.apply(ObjectKind::Service, service);
        self.apply(ObjectKind::Slice, slice);
    }

    fn delete(&mut self, number: u8) {
        let (service, slice) = objects(number, 0);
        for (kind, object) in [(ObjectKind::Service, service), (ObjectKind::Slice, slice)] {
            let object = serde_json::from_value(object).unwrap();
            self.sync_loop.observe(InformerEvent::Deleted(kind, object));
        }
    }

    /// A change of the node's zone rebuilds all rules.
    fn set_zone(&mut self, zone: &str) {
        let labels = json!({"topology.kubernetes.io/zone": zone});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": labels},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
        self.apply(ObjectKind::Node, node);
    }

    /// Runs what is due within the next ten seconds.
    fn work(&mut self) {
        for _ in 0..100 {
            self.sync_loop.work();
            self.time.advance(Duration::from_millis(100));
        }
    }

    fn refuse_third_endpoint_of(&mut self, numbers: &[u8]) {
        let bytes = numbers.iter().map(|number| vec![10, 1, *number, 3, 0x1f, 0x90]).collect();
        self.kernel.lock().unwrap().refuse_transactions_with(bytes);
    }

    /// The next sync fails, and may have been applied or not.
    fn fail_next_sync(&mut self) {
        self.kernel.lock().unwrap().inject(KernelFault::Send(Errno::EIO));
    }

    /// How many endpoints the kernel has for the TCP ports of s1, s2, ...
    fn assert_endpoints<const N: usize>(&self, wanted: [usize; N]) {
        let kernel = self.kernel.lock().unwrap();
        let table = kernel.kernel.ruleset().tables.values().find(|table| !table.sets.is_empty());
        let sets = &table.unwrap_or_else(|| panic!("no table {TABLE}")).sets;
        let endpoints =
            sets.iter().filter(|(name, _)| matches!(SetName::parse(name), Some(SetName::Endpoints(..))));
        let keys: Vec<_> = endpoints.flat_map(|(_, set)| set.elements.keys()).collect();
        for (number, wanted) in (1_u8..).zip(wanted) {
            let tcp = [10, 96, 0, number, 6];
            let found = keys.iter().filter(|key| key.starts_with(&tcp)).count();
            assert_eq!(found, wanted, "endpoints of s{number}");
        }
    }

    fn refused(&self) -> Vec<String> {
        self.programmed.borrow().failed.clone()
    }

    fn reasons(&mut self) -> Vec<&'static str> {
        std::iter::from_fn(|| self.notices.try_recv().ok()).map(|notice| notice.reason).collect()
    }

    /// A client's UDP flow to Service `number` that endpoint `endpoint` serves.
    fn add_flow(&self, number: u8, endpoint: u8) {
        let address = |text: String| -> SocketAddr { text.parse().unwrap() };
        let src = address(format!("10.1.9.9:4{number}{endpoint}"));
        self.conntrack.lock().unwrap().entries.insert(ConntrackEntry {
            protocol: UDP,
            src,
            dst: address(format!("10.96.0.{number}:53")),
            reply_src: address(format!("10.1.{number}.{endpoint}:5353")),
            reply_dst: src,
            id: None,
        });
    }

    fn flows(&self) -> Vec<String> {
        let conntrack = self.conntrack.lock().unwrap();
        conntrack.entries.iter().map(|entry| entry.reply_src.ip().to_string()).collect()
    }
}

fn objects(number: u8, endpoints: u8) -> (Value, Value) {
    let name = format!("s{number}");
    let list: Vec<_> =
        (1..=endpoints).map(|i| json!({"addresses": [format!("10.1.{number}.{i}")]})).collect();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
        "spec": {"clusterIPs": [format!("10.96.0.{number}")],
            "ports": [{"name": "p", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]}});
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "endpoints": list,
        "ports": [{"name": "p", "port": 8080}, {"name": "dns", "port": 5353, "protocol": "UDP"}]});
    (service, slice)
}

#[test]
fn full_sync_leaves_a_refused_service_as_it_is_and_programs_the_others() {
    let mut world = World::programmed();
    world.refuse_third_endpoint_of(&[2]);
    world.set(2, 3);
    world.work();
    assert_eq!(world.refused(), ["default/s2"]);
    assert_eq!(world.reasons(), ["NotProgrammed"]);
    world.fail_next_sync();
    world.set(1, 4);
    world.work();
    world.assert_endpoints([4, 2, 2]);
    assert_eq!(world.refused(), ["default/s2"]);
    assert_eq!(world.reasons(), ["SyncFailed"], "the injected failure alone");
    world.set(3, 5);
    world.work();
    world.assert_endpoints([4, 2, 5]);
}

#[test]
fn rebuild_leaves_a_refused_service_as_it_is_and_programs_the_others() {
    let mut world = World::programmed();
    world.refuse_third_endpoint_of(&[2]);
    world.set(2, 3);
    world.work();
    world.set_zone("zb");
    world.set(1, 4);
    world.work();
    world.assert_endpoints([4, 2, 2]);
    assert_eq!(world.refused(), ["default/s2"]);
    assert_eq!(world.reasons(), ["NotProgrammed"]);
}

#[test]
fn services_that_are_refused_only_by_a_full_sync_are_found() {
    let mut world = World::programmed();
    world.refuse_third_endpoint_of(&[1, 2]);
    world.fail_next_sync();
    (1..=3).for_each(|number| world.set(number, 3));
    world.work();
    world.assert_endpoints([2, 2, 3]);
    assert_eq!(world.refused(), ["default/s1", "default/s2"]);
    let mut reasons = world.reasons();
    reasons.sort_unstable();
    assert_eq!(reasons, ["NotProgrammed", "NotProgrammed", "SyncFailed"]);
}

#[test]
fn restart_with_a_refused_service_programs_the_others() {
    let before = World::programmed();
    let mut world = World::starting_over(before.kernel.clone(), before.conntrack.clone());
    world.refuse_third_endpoint_of(&[2]);
    (1..=4).for_each(|number| world.set(number, 3));
    world.list_all();
    world.work();
    // The rules of the process before are gone: what they were made from is not known.
    world.assert_endpoints([3, 0, 3, 3]);
    assert_eq!(world.refused(), ["default/s2"]);
    assert_eq!(world.reasons(), ["NotProgrammed"]);
}

#[test]
fn refused_service_is_retried_with_backoff_and_on_a_change() {
    let mut world = World::programmed();
    world.refuse_third_endpoint_of(&[1, 2, 3]);
    (1..=3).for_each(|number| world.set(number, 3));
    world.work();
    assert_eq!(world.refused().len(), 3);
    world.refuse_third_endpoint_of(&[2]);
    world.work();
    world.work();
    world.assert_endpoints([3, 2, 3]);
    assert_eq!(world.refused(), ["default/s2"]);
    // Deleted or changed to what the kernel accepts, it is refused no longer.
    world.set(2, 1);
    world.work();
    world.assert_endpoints([3, 1, 3]);
    assert!(world.refused().is_empty());
    world.set(2, 3);
    world.work();
    assert_eq!(world.refused(), ["default/s2"]);
    world.delete(2);
    world.work();
    world.assert_endpoints([3, 0, 3]);
    assert!(world.refused().is_empty());
}

#[test]
fn stale_udp_flows_are_deleted_after_a_sync_that_failed_first() {
    let mut world = World::programmed();
    [(1, 1), (2, 1), (3, 1), (3, 2)].iter().for_each(|(number, endpoint)| world.add_flow(*number, *endpoint));
    world.fail_next_sync();
    world.delete(2);
    world.set(3, 1);
    world.work();
    assert_eq!(world.flows(), ["10.1.1.1", "10.1.3.1"]);
}

#[test]
fn stale_udp_flows_are_deleted_after_a_rebuild() {
    let mut world = World::programmed();
    [(1, 1), (2, 1), (3, 1), (3, 2)].iter().for_each(|(number, endpoint)| world.add_flow(*number, *endpoint));
    world.fail_next_sync();
    world.set_zone("zb");
    world.delete(2);
    world.set(3, 1);
    world.work();
    assert_eq!(world.flows(), ["10.1.1.1", "10.1.3.1"]);
}

/// Conflict 2 of subsetting: a slice whose label changes leaves the view of other zones, and its endpoints live on.
#[test]
fn udp_flows_of_a_slice_that_left_the_view_stay_for_a_minute() {
    let mut world = World::programmed();
    world.sync_loop.settings.watch_own_zone = true;
    world.set_zone("za");
    let mut other = objects(3, 4).1;
    other["metadata"]["name"] = "s3-zb".into();
    other["metadata"]["labels"][model::annotation::FOR_ZONE] = "zb".into();
    world.apply(ObjectKind::Slice, other.clone());
    world.work();
    world.assert_endpoints([2, 2, 4]);
    (1..=4).for_each(|endpoint| world.add_flow(3, endpoint));
    let gone = InformerEvent::Deleted(ObjectKind::Slice, serde_json::from_value(other.clone()).unwrap());
    world.sync_loop.observe(gone);
    world.work();
    world.assert_endpoints([2, 2, 2]);
    assert_eq!(world.flows().len(), 4, "no clean-up for a label");
    // Another change of the Service clears what is known to have gone, and nothing else.
    world.set(3, 1);
    world.work();
    assert_eq!(
        world.flows(),
        ["10.1.3.1", "10.1.3.2", "10.1.3.3", "10.1.3.4"],
        "10.1.3.2 was in that slice, too"
    );
    // The reserve says that an endpoint does not serve.
    let mut reserve = objects(3, 3).1;
    reserve["endpoints"][2]["conditions"] = json!({"ready": false, "serving": false});
    world.apply(ObjectKind::Slice, reserve);
    world.work();
    assert_eq!(world.flows(), ["10.1.3.1", "10.1.3.2", "10.1.3.4"]);
    (0..6).for_each(|_| world.work());
    assert_eq!(world.flows(), ["10.1.3.1", "10.1.3.2"], "no view had it for a minute");
    // A slice that comes back is not forgotten.
    world.apply(ObjectKind::Slice, other);
    world.add_flow(3, 4);
    (0..7).for_each(|_| world.work());
    assert_eq!(world.flows(), ["10.1.3.1", "10.1.3.2", "10.1.3.4"]);
}

#[test]
fn the_view_follows_the_zone_of_the_node() {
    let mut world = World::programmed();
    assert_eq!(world.sync_loop.slice_view(Some(&SliceView::All)), None, "without the flag");
    world.sync_loop.settings.watch_own_zone = true;
    let za = SliceView::Zone("za".into());
    assert_eq!(world.sync_loop.slice_view(None), Some(za.clone()));
    assert_eq!(world.sync_loop.slice_view(Some(&za)), None);
    world.set(1, 3);
    world.work();
    assert_eq!(world.programmed.borrow().watched_zone, "za");
    world.set_zone("zb");
    assert_eq!(world.sync_loop.slice_view(Some(&za)), Some(SliceView::Zone("zb".into())));
    let mut starting = World::starting_over(world.kernel.clone(), world.conntrack.clone());
    starting.sync_loop.settings.watch_own_zone = true;
    assert_eq!(starting.sync_loop.slice_view(None), None, "the Node is not known yet");
    starting.time.advance(NODE_TIMEOUT);
    assert_eq!(starting.sync_loop.slice_view(None), Some(SliceView::All));
}

#[test]
fn deletion_of_stale_udp_flows_is_retried() {
    let mut world = World::programmed();
    world.add_flow(3, 1);
    world.add_flow(3, 2);
    world.conntrack.lock().unwrap().faults.extend([DumpFault::Interrupted; 12]);
    world.set(3, 1);
    world.work();
    assert_eq!(world.flows(), ["10.1.3.1"]);
}

#[test]
fn address_that_is_served_again_keeps_its_flows() {
    let mut world = World::programmed();
    world.add_flow(2, 1);
    world.fail_next_sync();
    world.delete(2);
    world.sync_loop.work();
    world.set(2, 2);
    world.work();
    world.assert_endpoints([2, 2, 2]);
    assert_eq!(world.flows(), ["10.1.2.1"]);
}

#[test]
fn a_refused_service_does_not_wake_the_loop_while_a_full_sync_waits() {
    let mut world = World::programmed();
    world.refuse_third_endpoint_of(&[1]);
    world.set(1, 3);
    world.work();
    assert_eq!(world.refused(), ["default/s1"]);
    world.set_zone("zb");
    for _ in 0..5 {
        world.fail_next_sync();
    }
    for _ in 0..200 {
        // The second call runs what the first one made due at once.
        world.sync_loop.work();
        world.sync_loop.work();
        assert!(world.sync_loop.wake_at() > world.time.clock().now(), "the loop would spin");
        world.time.advance(Duration::from_millis(100));
    }
}

#[test]
fn changes_wait_for_the_end_of_a_relist() {
    let mut world = World::programmed();
    world.sync_loop.observe(InformerEvent::ListStarted(ObjectKind::Slice));
    world.set(1, 1);
    for _ in 0..50 {
        world.sync_loop.work();
        assert!(world.sync_loop.wake_at() > world.time.clock().now(), "no busy loop while it waits");
        world.time.advance(Duration::from_millis(100));
    }
    world.assert_endpoints([2, 2, 2]);
    world.sync_loop.observe(InformerEvent::ListCompleted(ObjectKind::Slice));
    world.sync_loop.work();
    // The list has no slices of s2 and s3.
    world.assert_endpoints([1, 0, 0]);
}

/// The API was away for longer than changes wait: the first lists had no answer.
#[test]
fn changes_wait_for_the_end_of_a_relist_after_an_outage() {
    let mut world = World::programmed();
    world.sync_loop.observe(InformerEvent::ListStarted(ObjectKind::Slice));
    world.time.advance(Duration::from_secs(15));
    world.sync_loop.work();
    world.sync_loop.observe(InformerEvent::ListStarted(ObjectKind::Slice));
    world.set(1, 1);
    for _ in 0..50 {
        world.sync_loop.work();
        world.time.advance(Duration::from_millis(100));
    }
    world.assert_endpoints([2, 2, 2]);
    (2..=3).for_each(|number| world.set(number, 2));
    world.sync_loop.observe(InformerEvent::ListCompleted(ObjectKind::Slice));
    world.sync_loop.work();
    world.assert_endpoints([1, 2, 2]);
}

#[test]
fn changes_do_not_wait_for_a_relist_without_end() {
    let mut world = World::programmed();
    world.sync_loop.observe(InformerEvent::ListStarted(ObjectKind::Slice));
    world.set(1, 1);
    for _ in 0..3 {
        world.time.advance(Duration::from_secs(4));
        world.sync_loop.work();
        world.sync_loop.observe(InformerEvent::ListStarted(ObjectKind::Slice));
    }
    world.assert_endpoints([1, 2, 2]);
}

#[test]
fn revisions_of_a_list_are_reported_when_it_is_complete() {
    let mut world = World::programmed();
    let before = world.programmed.borrow().revision;
    world.sync_loop.observe(InformerEvent::ListStarted(ObjectKind::Slice));
    let (_, mut slice) = objects(1, 1);
    slice["metadata"]["resourceVersion"] = json!("900");
    world.apply(ObjectKind::Slice, slice);
    // Longer than changes wait.
    world.work();
    world.work();
    world.assert_endpoints([1, 2, 2]);
    assert_eq!(world.programmed.borrow().revision, before);
    (2..=3).for_each(|number| world.set(number, 2));
    world.sync_loop.observe(InformerEvent::ListCompleted(ObjectKind::Slice));
    world.work();
    assert_eq!(world.programmed.borrow().revision, Some(900));
}

/// Pitfall 20: what is deleted before the rules change is created again by the old ones.
#[test]
fn a_retry_of_deletions_does_not_get_ahead_of_a_failing_sync() {
    let mut world = World::programmed();
    world.add_flow(1, 2);
    world.conntrack.lock().unwrap().faults.extend([DumpFault::Half; 10]);
    world.set(1, 1);
    world.sync_loop.work();
    assert_eq!(world.flows(), ["10.1.1.2"], "the deletion fails");
    world.delete(2);
    world.set_zone("zb");
    (0..3).for_each(|_| world.fail_next_sync());
    for _ in 0..30 {
        world.sync_loop.work();
        world.time.advance(Duration::from_millis(100));
    }
    world.assert_endpoints([1, 2, 2]);
    // The old rules are in force.
    world.add_flow(2, 1);
    world.work();
    world.assert_endpoints([1, 0, 2]);
    assert!(world.flows().is_empty(), "{:?}", world.flows());
}

/// The same of the sync after it, which is a full one.
#[test]
fn flows_of_a_service_whose_full_sync_failed_are_deleted_with_it() {
    let mut world = World::programmed();
    world.fail_next_sync();
    world.set(3, 1);
    world.sync_loop.work();
    // Only the full sync has the new Service, and its reply is lost.
    world.set(4, 2);
    world.kernel.lock().unwrap().inject(KernelFault::LoseReply);
    world.time.advance(Duration::from_secs(5));
    world.sync_loop.work();
    world.add_flow(4, 1);
    world.delete(4);
    world.work();
    assert!(world.flows().is_empty(), "{:?}", world.flows());
}

/// A transaction whose reply is lost may be in force.
#[test]
fn flows_of_a_service_whose_sync_failed_are_deleted_with_it() {
    let mut world = World::programmed();
    world.kernel.lock().unwrap().inject(KernelFault::LoseReply);
    world.set(4, 2);
    world.sync_loop.work();
    world.add_flow(4, 1);
    world.delete(4);
    world.work();
    assert!(world.flows().is_empty(), "{:?}", world.flows());
}
