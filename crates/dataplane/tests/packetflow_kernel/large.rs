//! Changes that no send buffer of a user namespace takes at once, on the real kernel.

use std::net::SocketAddr;
use std::sync::Arc;

use dataplane::nfnetlink::wire::RawMessage;
use dataplane::nfnetlink::{NetlinkError, NetlinkSocket};
use dataplane::nftables::apply::{apply, apply_diff, load};
use dataplane::nftables::ir::Ruleset;
use dataplane::nftables::render::{RenderedChange, Renderer, initial_load};
use dataplane::nftables::trace::{NodeAddresses, TracedPacket, evaluate};
use dataplane::nftables::{DumpRequest, Kernel};
use model::forward::{
    EndpointSet, ForwardedEndpoint, ForwardedPort, Frontend, FrontendAction, FrontendKind, Masquerade,
};
use model::{ForwardingTable, Protocol, ServiceKey, TrafficPolicy};

use super::{assert_same, held};

const SERVICES: u16 = 2_000;

/// A Service with these endpoints, by number.
fn service(number: u16, endpoints: impl Iterator<Item = u16>) -> Frontend {
    let [high, low] = number.to_be_bytes();
    let endpoint = |endpoint: u16| {
        let [upper, lower] = endpoint.to_be_bytes();
        let address = SocketAddr::from(([10, 1 + high, low ^ upper, lower], 8080));
        ForwardedEndpoint::new(address, 1.0, false)
    };
    let mut endpoints: Vec<ForwardedEndpoint> = endpoints.map(endpoint).collect();
    endpoints.sort_by_key(|endpoint| endpoint.address());
    let port = ForwardedPort {
        service: ServiceKey::new(&"ns".into(), &format!("web-{number}").as_str().into()),
        name: "http".into(),
        cluster_ip: [10, 96, high, low].into(),
        protocol: Protocol::Tcp,
        number: 80,
        affinity_seconds: None,
        health_check_port: None,
        cluster: EndpointSet { endpoints: endpoints.into(), rounding: 0 },
        local: EndpointSet::default(),
    };
    Frontend {
        address: port.cluster_address(),
        kind: FrontendKind::ClusterIp,
        outside: FrontendAction::Send(TrafficPolicy::Cluster),
        inside: None,
        masquerade: Masquerade::NotPods,
        source_ranges: None,
        port: Arc::new(port),
    }
}

fn table(frontends: impl Iterator<Item = Frontend>) -> ForwardingTable {
    let mut table = ForwardingTable::default();
    frontends.for_each(|frontend| table.replace(&frontend.port.service.clone(), vec![frontend]));
    table
}

/// A socket with the send buffer that a user namespace has by default; after some transactions a sample of Services is
/// looked at, and each is as before or as after.
struct Watched<'t> {
    socket: NetlinkSocket,
    /// What Services have, before and after.
    tables: [&'t ForwardingTable; 2],
    transactions: usize,
}

impl Watched<'_> {
    fn look(&mut self) {
        let program = held(&mut self.socket);
        for number in (0..SERVICES).step_by(37) {
            let key = ServiceKey::new(&"ns".into(), &format!("web-{number}").as_str().into());
            let now = endpoints_in(&program, number);
            let allowed = self.tables.map(|table| endpoints_of(table.frontends(&key)));
            assert!(allowed.contains(&now), "web-{number}: {now:?} is none of {allowed:?}");
        }
    }
}

/// Where a packet to a Service goes by the rules.
fn endpoints_in(program: &Ruleset, number: u16) -> Vec<SocketAddr> {
    let [high, low] = number.to_be_bytes();
    let (client, vip) =
        (SocketAddr::from(([10, 200, 0, 1], 40_000)), SocketAddr::from(([10, 96, high, low], 80)));
    let found =
        evaluate(program, &TracedPacket::new(6, client, vip), &NodeAddresses { addresses: vec![] }).unwrap();
    found.endpoints.into_iter().map(|(endpoint, _)| endpoint).collect()
}

fn endpoints_of(frontends: &[Frontend]) -> Vec<SocketAddr> {
    frontends.iter().flat_map(|f| f.port.cluster.endpoints.iter().map(|e| e.address())).collect()
}

impl Kernel for Watched<'_> {
    fn transact(&mut self, batch: &[u8]) -> Result<(), NetlinkError> {
        assert!(batch.len() <= self.longest_batch(), "{} bytes", batch.len());
        self.socket.transact(batch)?;
        self.transactions += 1;
        if self.transactions.is_multiple_of(4) {
            self.look();
        }
        Ok(())
    }
    fn dump(&mut self, query: &DumpRequest) -> Result<Vec<u8>, NetlinkError> {
        self.socket.dump(query)
    }
    fn each(
        &mut self,
        query: &DumpRequest,
        take: &mut dyn FnMut(RawMessage<'_>),
    ) -> Result<(), NetlinkError> {
        self.socket.each(query, take)
    }
    fn generation(&mut self) -> Result<u32, NetlinkError> {
        self.socket.generation()
    }
    fn longest_batch(&self) -> usize {
        212_960
    }
}

/// Every Service has other endpoints, some are gone, some are new, and the sets are too small for it.
#[test]
fn resync_of_thousands_of_services_goes_in_parts_that_leave_each_whole() {
    toolbox::in_own_namespaces!();
    let before = table((0..SERVICES).filter(|n| n % 7 != 0).map(|n| service(n, 0..3)));
    let count = |n: u16| 2 + n % 9;
    let after = table((0..SERVICES).filter(|n| n % 11 != 0).map(|n| service(n, 2..2 + count(n))));
    let mut socket = NetlinkSocket::open().unwrap();
    load(&mut socket, initial_load(&mut Renderer::new(&before), &before)).unwrap();
    let old = held(&mut socket);
    let (mut renderer, new) = Renderer::start(&after);
    let mut kernel = Watched { socket, tables: [&before, &after], transactions: 0 };
    let done = apply_diff(&mut kernel, &old, &new).unwrap_or_else(|error| panic!("{error}"));
    println!("{SERVICES} Services changed in {done} transactions");
    assert!(done > 8 && done == kernel.transactions, "{done}");
    assert_same("in parts", &held(&mut kernel.socket), &new);

    // The way back as one long list of changes, as a node makes it that looks at many Services at once.
    let all = (0..SERVICES).map(|n| ServiceKey::new(&"ns".into(), &format!("web-{n}").as_str().into()));
    let pairs: Vec<_> =
        all.map(|key| (after.frontends(&key).to_vec(), before.frontends(&key).to_vec())).collect();
    let pairs: Vec<_> = pairs.iter().map(|(old, new)| (&old[..], &new[..])).collect();
    let RenderedChange::Changes(changes) = renderer.change(&pairs) else {
        panic!("fewer endpoints need no room")
    };
    let seen = kernel.transactions;
    apply(&mut kernel, &changes).unwrap_or_else(|error| panic!("{error}"));
    assert!(kernel.transactions > seen + 3, "one list, several transactions");
    for number in 0..SERVICES {
        let key = ServiceKey::new(&"ns".into(), &format!("web-{number}").as_str().into());
        assert_eq!(before.frontends(&key).is_empty(), number % 7 == 0);
    }
    kernel.tables = [&before, &before];
    kernel.look();
}

/// One Service alone is longer than the buffer.
#[test]
fn service_of_thousands_of_endpoints_changes_in_steps() {
    toolbox::in_own_namespaces!();
    let before = table(std::iter::once(service(0, 0..6_000)));
    let after = table(std::iter::once(service(0, 1..6_000)));
    let mut socket = NetlinkSocket::open().unwrap();
    let mut renderer = Renderer::new(&before);
    load(&mut socket, initial_load(&mut renderer, &before)).unwrap_or_else(|error| panic!("{error}"));
    let key = ServiceKey::new(&"ns".into(), &"web-0".into());
    let RenderedChange::Changes(changes) =
        renderer.change(&[(before.frontends(&key), after.frontends(&key))])
    else {
        panic!("one endpoint less needs no room")
    };
    let mut kernel = Narrow(socket);
    apply(&mut kernel, &changes).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(endpoints_in(&held(&mut kernel.0), 0), endpoints_of(after.frontends(&key)));
}

/// A socket with that buffer, and nothing else.
struct Narrow(NetlinkSocket);

impl Kernel for Narrow {
    fn transact(&mut self, batch: &[u8]) -> Result<(), NetlinkError> {
        assert!(batch.len() <= self.longest_batch(), "{} bytes", batch.len());
        self.0.transact(batch)
    }
    fn dump(&mut self, query: &DumpRequest) -> Result<Vec<u8>, NetlinkError> {
        self.0.dump(query)
    }
    fn generation(&mut self) -> Result<u32, NetlinkError> {
        self.0.generation()
    }
    fn longest_batch(&self) -> usize {
        212_960
    }
}
