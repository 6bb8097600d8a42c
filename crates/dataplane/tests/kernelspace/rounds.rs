//! Random worlds with faults: whatever calls fail and whatever other programs do, a sync without faults ends in what the
//! table says, touches nothing foreign, and finds nothing to do the second time.

use model::random::Random;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::Value;

use super::*;

const ROUNDS: u64 = 1_200;
/// Rounds in a row on one HNS.
const IN_A_ROW: u64 = 20;

struct Node {
    fake: Arc<Mutex<FakeHcn>>,
    backend: KernelspaceBackend,
    network: Network,
    settings: KernelspaceSettings,
}

impl Node {
    fn new(random: &mut Random) -> Self {
        let network = if random.below(2) == 0 { overlay() } else { Network::l2bridge("pods") };
        let mut fake = FakeHcn::new(&network);
        if random.below(2) == 0 {
            fake.set_version(13, 2);
        }
        let fake = Arc::new(Mutex::new(fake));
        let settings = KernelspaceSettings {
            source_vip: Some(address("10.1.9.1")),
            enable_dsr: random.below(2) == 0,
            ..settings()
        };
        let backend = KernelspaceBackend::new(Box::new(fake.clone()), settings.clone());
        Self { fake, backend, network, settings }
    }

    /// Pods come and go, another program has load balancers, and someone deletes objects of ours.
    fn disturb(&mut self, table: &ForwardingTable, random: &mut Random) {
        let mut fake = self.fake.lock().unwrap();
        for (id, value) in FakeHcn::with_pods(&self.network, table).objects(HcnKind::Endpoint, false) {
            match random.below(4) {
                0 => fake.remove(HcnKind::Endpoint, &id),
                _ => {
                    let pod: HcnEndpoint = serde_json::from_value(value).unwrap();
                    pod.addresses().for_each(|address| drop(fake.add_pod(&self.network, address)));
                }
            }
        }
        if random.below(3) == 0 {
            let vip = [address("10.96.0.2"), address("192.0.2.1")][random.below(2)];
            fake.add_foreign_load_balancer(vip, 6, 80);
        }
        if random.below(3) == 0 {
            let foreign: Vec<Guid> = fake.objects(HcnKind::LoadBalancer, false).into_keys().collect();
            foreign.iter().for_each(|id| fake.remove(HcnKind::LoadBalancer, id));
        }
        let ours: Vec<Guid> = fake.objects(HcnKind::LoadBalancer, true).into_keys().collect();
        if let Some(id) = random.pick(&ours) {
            fake.remove(HcnKind::LoadBalancer, id);
        }
        if random.below(8) == 0 && self.network.is_overlay() {
            let mut subnets = self.network.remote_subnets();
            subnets[0].provider = [address("192.168.0.8"), address("192.168.0.9")][random.below(2)];
            self.network = Network::overlay("pods", &subnets);
            fake.set_network(&self.network);
        }
    }

    fn foreign(&self) -> Vec<BTreeMap<Guid, Value>> {
        let fake = self.fake.lock().unwrap();
        [HcnKind::Network, HcnKind::Endpoint, HcnKind::LoadBalancer]
            .map(|kind| fake.objects(kind, false))
            .into()
    }

    /// One sync with faults, then one without.
    fn round(&mut self, table: &ForwardingTable, random: &mut Random) {
        self.disturb(table, random);
        let foreign = self.foreign();
        self.fake.lock().unwrap().set_faults(random.next_u64(), 2 + random.below(40));
        let _ = self.backend.load(table);
        self.fake.lock().unwrap().set_faults(0, 0);
        let outcome = self.backend.load(table);
        assert_eq!(self.foreign(), foreign, "foreign objects are untouched");
        let fake = self.fake.lock().unwrap().clone();
        let wanted = render(table, &self.settings, &self.network, &held_endpoints(&fake));
        let held = fake.objects(HcnKind::LoadBalancer, true);
        let taken: Vec<&Guid> = wanted.load_balancers.keys().filter(|id| !held.contains_key(id)).collect();
        for (id, value) in &held {
            let wanted =
                wanted.load_balancers.get(id).map(|wanted| serde_json::to_value(&wanted.object).unwrap());
            assert_eq!(wanted.as_ref(), Some(value), "{id}");
        }
        match outcome {
            Ok(_) => assert!(taken.is_empty(), "{taken:?}"),
            // Another program has the address and port of a load balancer of ours.
            Err(error) => {
                assert!(error.is_refusal() && !error.services().is_empty() && !taken.is_empty(), "{error}");
                assert!(error.to_string().contains("another load balancer has this address"), "{error}");
            }
        }
        let made: Vec<Guid> = fake.objects(HcnKind::Endpoint, true).into_keys().collect();
        assert_eq!(made, wanted.endpoints.keys().cloned().collect::<Vec<_>>(), "endpoints that we made");
        assert!(fake.violations().is_empty(), "{:?}", fake.violations());
        if taken.is_empty() {
            assert_eq!(self.backend.reconcile(table).unwrap().transactions, 0, "nothing is left to do");
        }
    }
}

#[test]
fn random_worlds_with_faults_converge() {
    let mut runner = TestRunner::deterministic();
    let mut random = Random::seeded(30);
    let mut node = Node::new(&mut random);
    for round in 0..ROUNDS {
        if round % IN_A_ROW == 0 {
            node = Node::new(&mut random);
        }
        let mut world = world::world().new_tree(&mut runner).unwrap().current();
        world.settings.mode = ForwardingMode::Kernelspace;
        let (table, _) = table(&world.snapshot(), &world.config());
        node.round(&table, &mut random);
    }
}
