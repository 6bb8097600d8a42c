//! The server on real sockets of loopback: encoding, limits, forwarding, and messages that are no queries.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

use std::time::Duration;

use cluster::{InformerEvent, ObjectKind};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::forwarder::upstreams;
use super::*;

/// A server with objects, and its address.
struct Served {
    address: SocketAddr,
    registry: Registry,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

fn objects() -> Vec<(ObjectKind, Value)> {
    let service = |name: &str, spec: Value| {
        (ObjectKind::Service, json!({"metadata": {"namespace": "default", "name": name}, "spec": spec}))
    };
    let many: Vec<Value> = (0..600u32)
        .map(|at| json!({"addresses": [format!("10.1.{}.{}", at / 250, at % 250 + 1)], "conditions": {"ready": true}}))
        .collect();
    let headless =
        json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"name": "http", "port": 80}]});
    vec![
        service(
            "web",
            json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ports": [{"port": 80}]}),
        ),
        service("many", headless),
        service("ext", json!({"type": "ExternalName", "externalName": "www.example.test"})),
        (
            ObjectKind::Slice,
            json!({"addressType": "IPv4", "ports": [{"name": "http", "port": 80}], "endpoints": many,
            "metadata": {"namespace": "default", "name": "many-1", "labels": {"kubernetes.io/service-name": "many"}}}),
        ),
    ]
}

/// A port that is free for both: somebody else may have the one that was free for TCP.
async fn one_port() -> (TcpListener, UdpSocket) {
    loop {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
            return (tcp, udp);
        }
    }
}

async fn serve(upstream: Vec<SocketAddr>) -> Served {
    let (tcp, udp) = one_port().await;
    let address = tcp.local_addr().unwrap();
    let asking = AskingNode { name: "n".to_owned(), zone: None, gates: FeatureGates::ALL };
    let mut table = DnsTable::new(DnsName::parse("cluster.local").unwrap(), address.ip(), asking);
    let now = model::Timestamp::from_seconds(1_000);
    for kind in [ObjectKind::Service, ObjectKind::Slice] {
        table.observe(InformerEvent::ListStarted(kind), now);
        for (_, value) in objects().into_iter().filter(|(of, _)| *of == kind) {
            table.observe(InformerEvent::Applied(kind, serde_json::from_value(value).unwrap()), now);
        }
        table.observe(InformerEvent::ListCompleted(kind), now);
    }
    let mut registry = Registry::default();
    let metrics = DnsMetrics::register(&mut registry);
    let forwarder = Forwarder::new(Upstreams::new(upstream, address, Clock::system()));
    let table = Arc::new(RwLock::new(table));
    let service = Arc::new(DnsService::new(table, forwarder, metrics, Clock::system()));
    let (stop, stopped) = watch::channel(false);
    let tasks = vec![
        tokio::spawn(server::serve_udp(udp, service.clone(), stopped.clone())),
        tokio::spawn(server::serve_tcp(tcp, service, stopped)),
    ];
    Served { address, registry, stop, tasks }
}

impl Served {
    async fn client(&self) -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(self.address).await.unwrap();
        socket
    }

    async fn ask_bytes(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let socket = self.client().await;
        socket.send(bytes).await.unwrap();
        let mut buffer = vec![0; 65_535];
        let received =
            tokio::time::timeout(Duration::from_millis(500), socket.recv(&mut buffer)).await.ok()?;
        buffer.truncate(received.unwrap());
        Some(buffer)
    }

    async fn ask(&self, query: &Message) -> Message {
        Message::from_vec(&self.ask_bytes(&query.to_vec().unwrap()).await.expect("a response")).unwrap()
    }

    async fn ask_tcp(&self, query: &Message) -> Message {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        forwarder::write_framed(&mut stream, &query.to_vec().unwrap()).await.unwrap();
        let length = stream.read_u16().await.unwrap();
        let mut bytes = vec![0; usize::from(length)];
        stream.read_exact(&mut bytes).await.unwrap();
        Message::from_vec(&bytes).unwrap()
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }

    async fn stop(self) {
        self.stop.send(true).unwrap();
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

fn query(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(4_711, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

fn with_edns(mut message: Message, size: u16, version: u8) -> Message {
    let mut edns = Edns::new();
    edns.set_max_payload(size).set_version(version);
    message.set_edns(edns);
    message
}

/// A nameserver that knows one address; responses above 512 bytes are not needed here.
async fn upstream(code: ResponseCode) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = vec![0; 4_096];
        loop {
            let (length, peer) = socket.recv_from(&mut buffer).await.unwrap();
            let request = Message::from_vec(&buffer[..length]).unwrap();
            let mut forged = Message::response(request.metadata.id.wrapping_add(1), OpCode::Query);
            forged.queries.clone_from(&request.queries);
            socket.send_to(&forged.to_vec().unwrap(), peer).await.unwrap();
            let mut response = Message::response(request.metadata.id, OpCode::Query);
            response.metadata.response_code = code;
            response.queries.clone_from(&request.queries);
            if code == ResponseCode::NoError {
                let data = RData::A(A("192.0.2.80".parse().unwrap()));
                response.add_answer(Record::from_rdata(request.queries[0].name().clone(), 60, data));
            }
            socket.send_to(&response.to_vec().unwrap(), peer).await.unwrap();
        }
    });
    address
}

fn addresses(message: &Message) -> Vec<String> {
    message.answers.iter().filter(|r| r.record_type() == RecordType::A).map(|r| r.data.to_string()).collect()
}

#[tokio::test]
async fn names_keep_the_case_of_the_question_and_their_ttl() {
    let served = serve(vec![]).await;
    let response = served.ask(&query("WeB.default.SVC.cluster.local.", RecordType::A)).await;
    assert_eq!(response.metadata.id, 4_711);
    assert!(response.metadata.authoritative && response.metadata.recursion_available);
    assert_eq!(addresses(&response), ["10.96.0.7"]);
    assert_eq!(
        (response.answers[0].name.to_ascii().as_str(), response.answers[0].ttl),
        ("WeB.default.SVC.cluster.local.", 5)
    );
    let missing = served.ask(&query("no.default.svc.cluster.local.", RecordType::A)).await;
    assert_eq!(missing.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(missing.authorities[0].record_type(), RecordType::SOA);
    let metrics = served.metrics();
    let line =
        "zoneward_dns_requests_total{proto=\"udp\",type=\"A\",rcode=\"NXDOMAIN\",source=\"cluster\"} 1";
    assert!(metrics.contains(line), "{metrics}");
    served.stop().await;
}

#[tokio::test]
async fn answers_that_do_not_fit_are_truncated_and_whole_over_tcp() {
    let served = serve(vec![]).await;
    let many = query("many.default.svc.cluster.local.", RecordType::A);
    let bytes = served.ask_bytes(&many.to_vec().unwrap()).await.unwrap();
    assert!(bytes.len() <= 512, "{}", bytes.len());
    assert!(Message::from_vec(&bytes).unwrap().metadata.truncation);
    let large = served.ask_bytes(&with_edns(many.clone(), 65_000, 0).to_vec().unwrap()).await.unwrap();
    let response = Message::from_vec(&large).unwrap();
    assert!(large.len() <= 4_096 && response.metadata.truncation && response.edns.is_some());
    let (first, second) = (served.ask_tcp(&many).await, served.ask_tcp(&many).await);
    assert_eq!((addresses(&first).len(), first.metadata.truncation), (600, false));
    assert_ne!(addresses(&first)[0], addresses(&second)[0], "addresses are rotated");
    served.stop().await;
}

#[tokio::test]
async fn other_names_are_forwarded_and_aliases_followed() {
    let server = upstream(ResponseCode::NoError).await;
    let broken = upstream(ResponseCode::ServFail).await;
    let served = serve(vec![broken, server]).await;
    let response = served.ask(&query("www.example.test.", RecordType::A)).await;
    assert_eq!((response.metadata.id, addresses(&response)), (4_711, vec!["192.0.2.80".to_owned()]));
    let alias = served.ask(&query("ext.default.svc.cluster.local.", RecordType::A)).await;
    assert_eq!(alias.answers[0].record_type(), RecordType::CNAME);
    assert_eq!(addresses(&alias), ["192.0.2.80"]);
    let metrics = served.metrics();
    assert!(metrics.contains("source=\"forward\"} 1"), "{metrics}");
    served.stop().await;
    let served = serve(vec![broken]).await;
    for name in ["www.example.test.", "ext.default.svc.cluster.local."] {
        let response = served.ask(&query(name, RecordType::A)).await;
        assert_eq!(response.metadata.response_code, ResponseCode::ServFail, "{name}");
    }
    served.stop().await;
    // Without a nameserver, and never to itself.
    let served = serve(vec![]).await;
    assert_eq!(upstreams("nameserver 127.0.0.10", "", "127.0.0.10:53".parse().unwrap()), []);
    served.stop().await;
}

#[tokio::test]
async fn the_cluster_domain_is_never_forwarded() {
    let served = serve(vec![upstream(ResponseCode::NoError).await]).await;
    for name in ["cluster.local.", "x.cluster.local.", "a.b.c.d.e.svc.cluster.local."] {
        let response = served.ask(&query(name, RecordType::A)).await;
        assert_eq!((addresses(&response).len(), response.metadata.authoritative), (0, true), "{name}");
    }
    served.stop().await;
}

#[tokio::test]
async fn what_is_no_query_is_refused_or_ignored() {
    let served = serve(vec![]).await;
    let good = query("web.default.svc.cluster.local.", RecordType::A).to_vec().unwrap();
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    // Responses, and what has no header.
    for silent in [changed(2, 0x81), vec![], vec![0; 11]] {
        assert_eq!(served.ask_bytes(&silent).await, None, "{silent:?}");
    }
    let code = |bytes: Vec<u8>| {
        let served = &served;
        async move {
            let response = served.ask_bytes(&bytes).await.expect("a response");
            Message::from_vec(&response).unwrap().metadata.response_code
        }
    };
    let endless: Vec<u8> = [&good[..12], &[0xc0, 12, 0, 1, 0, 1]].concat();
    let long: Vec<u8> = [&good[..12], &[&[63; 64][..]; 5].concat(), &[0, 0, 1, 0, 1]].concat();
    for malformed in
        [changed(5, 2), changed(4, 0xff), changed(5, 0), changed(7, 1), good[..20].to_vec(), endless, long]
    {
        assert_eq!(code(malformed.clone()).await, ResponseCode::FormErr, "{malformed:?}");
    }
    assert_eq!(code(changed(2, 0x28)).await, ResponseCode::NotImp, "an update");
    assert_eq!(code(changed(good.len() - 1, 3)).await, ResponseCode::Refused, "class CH");
    let badvers = with_edns(query("web.default.svc.cluster.local.", RecordType::A), 1_232, 1);
    // The same number as BADSIG.
    assert_eq!(u16::from(served.ask(&badvers).await.metadata.response_code), 16);
    let transfer = served.ask(&query("cluster.local.", RecordType::AXFR)).await;
    assert_eq!(transfer.metadata.response_code, ResponseCode::Refused);
    // Every cut and every changed byte: no panic, and the server goes on.
    let socket = served.client().await;
    for at in 0..good.len() {
        socket.send(&good[..at]).await.unwrap();
        for value in [0, 1, 0x3f, 0x7f, 0xc0, 0xff] {
            socket.send(&changed(at, value)).await.unwrap();
        }
    }
    assert_eq!(
        addresses(&served.ask(&query("web.default.svc.cluster.local.", RecordType::A)).await),
        ["10.96.0.7"]
    );
    served.stop().await;
}

#[tokio::test]
async fn a_flood_is_bounded_and_names_of_the_cluster_are_still_answered() {
    // A nameserver that never answers.
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let served = serve(vec![silent.local_addr().unwrap()]).await;
    let flood = served.client().await;
    let outside = query("www.example.test.", RecordType::A).to_vec().unwrap();
    let mut refused = 0;
    let mut buffer = vec![0; 512];
    for _ in 0..1_000 {
        flood.send(&outside).await.unwrap();
        tokio::task::yield_now().await;
        while let Ok(length) = flood.try_recv(&mut buffer) {
            let response = Message::from_vec(&buffer[..length]).unwrap();
            refused += usize::from(response.metadata.response_code == ResponseCode::ServFail);
        }
    }
    assert!(refused > 0, "queries above the limit fail at once");
    let response = served.ask(&query("web.default.svc.cluster.local.", RecordType::A)).await;
    assert_eq!(addresses(&response), ["10.96.0.7"]);
    let mut held = Vec::new();
    for _ in 0..200 {
        held.push(TcpStream::connect(served.address).await.unwrap());
    }
    let mut closed = 0;
    for stream in &mut held {
        let ended = tokio::time::timeout(Duration::from_millis(20), stream.read_u8()).await;
        closed += usize::from(ended.is_ok());
    }
    assert!(closed >= 72, "{closed} of 200 connections were closed");
    drop(held);
    // A message that never ends does not hold the others up.
    let mut slow = TcpStream::connect(served.address).await.unwrap();
    let _ = slow.write_all(&[0xff, 0xff, 1]).await;
    let metrics = served.metrics();
    assert!(metrics.contains("zoneward_dns_failures_total{reason=\"overload\"}"), "{metrics}");
    served.stop().await;
}

#[test]
fn nameservers_are_those_behind_a_stub_and_never_this_server() {
    let own: SocketAddr = "127.0.0.10:53".parse().unwrap();
    let texts = |resolv: &str, resolved: &str| {
        upstreams(resolv, resolved, own).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let file =
        "# comment\nnameserver 192.0.2.1\nnameserver 127.0.0.10\nnameserver 2001:db8::1\noptions edns0\n";
    assert_eq!(texts(file, ""), ["192.0.2.1:53", "[2001:db8::1]:53"]);
    let behind = "nameserver 127.0.0.10\nnameserver 192.0.2.9\n";
    assert_eq!(texts("nameserver 127.0.0.53\noptions edns0 trust-ad\n", behind), ["192.0.2.9:53"]);
    assert_eq!(texts("nameserver 127.0.0.53\n", ""), Vec::<String>::new());
    let four: String = (1..5).map(|n| format!("nameserver 192.0.2.{n}\n")).collect();
    assert_eq!(texts(&four, "").len(), 3);
    assert_eq!(texts("nameserver\nnameserver x\nsearch a\n", ""), Vec::<String>::new());
}

#[test]
fn only_loopback_addresses_are_served() {
    assert_eq!(loopback_address("127.0.0.11"), Ok("127.0.0.11:53".parse().unwrap()));
    assert_eq!(loopback_address("[::1]:5353"), Ok("[::1]:5353".parse().unwrap()));
    assert!(loopback_address("0.0.0.0").unwrap_err().contains("loopback"));
    assert!(domain_name("").is_err() && domain_name("a_b.c").is_err());
    assert_eq!(domain_name("Example.Internal.").unwrap().to_string(), "example.internal.");
}
