//! Hostile clients over real connections. Each attack has its own source address; an honest client has another.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use envoy_types::pb::google::protobuf::Struct;
use fixtures::eventually_async;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2 as client;
use prost::Message;
use serde_json::json;
use tokio::net::TcpSocket;
use tokio::sync::mpsc;
use tonic::Status;

use super::*;
use crate::identity::{KEY, to_protobuf};
use crate::resource::{ResourceSet, ResourceType, XdsResource};

/// Bound of each wait; nothing is expected to take that long.
const WAIT: Duration = Duration::from_secs(60);
const HOSTILE: u8 = 2;
const HONEST: u8 = 3;
const MIB: usize = 1 << 20;

struct Same(watch::Sender<Option<Arc<PublishedResources>>>);

impl ResourceSource for Same {
    fn watch(&self, _: &EnvoyIdentity) -> Result<watch::Receiver<Option<Arc<PublishedResources>>>, String> {
        Ok(self.0.subscribe())
    }
}

struct World {
    address: SocketAddr,
    source: Arc<Same>,
    streams: Arc<StreamRegistry>,
    memory: Arc<MemoryPool>,
    _stop: watch::Sender<bool>,
}

/// One cluster with so many bytes.
fn published(number: u64, bytes: usize) -> Arc<PublishedResources> {
    let mut resources = ResourceSet::default();
    let mut content = vec![0; bytes];
    content.extend(number.to_be_bytes());
    resources.put(ResourceType::Cluster, XdsResource::new("a", content));
    Arc::new(PublishedResources { number, ..PublishedResources::first(Arc::new(resources)) })
}

impl World {
    async fn new(settings: XdsServerSettings, bytes: usize) -> World {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let source = Arc::new(Same(watch::Sender::new(Some(published(1, bytes)))));
        let streams = Arc::new(StreamRegistry::default());
        let memory = MemoryPool::new(settings.max_held_bytes);
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(serve_with(
            listener,
            settings,
            source.clone(),
            streams.clone(),
            memory.clone(),
            stopped,
        ));
        World { address, source, streams, memory, _stop: stop }
    }

    async fn connect(&self, source: u8) -> Client {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, source], 0))).unwrap();
        let stream = socket.connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut builder = client::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(65_535).initial_connection_window_size(2 << 20);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        let ended = tokio::spawn(async move { drop(connection.await) });
        Client { sender, ended }
    }

    /// An Envoy that has its configuration.
    async fn envoy(&self) -> Envoy {
        let mut client = self.connect(HONEST).await;
        let stream = client.open().await.unwrap();
        stream.send(&first_request()).await;
        let mut envoy = Envoy { client, stream };
        envoy.accept(1).await;
        envoy
    }

    async fn until(&self, what: &str, is_reached: impl Fn(&World) -> bool) {
        let held = || format!("{} bytes held", self.memory.used());
        eventually_async(what, async || is_reached(self).then_some(()).ok_or_else(held)).await;
    }
}

type RequestFrames = StreamBody<futures_util::stream::BoxStream<'static, Result<Frame<Bytes>, Status>>>;

struct Client {
    sender: client::SendRequest<RequestFrames>,
    ended: tokio::task::JoinHandle<()>,
}

impl Client {
    /// Opens a stream; the error is the gRPC status.
    async fn open(&mut self) -> Result<Stream, String> {
        let (requests, receiver) = mpsc::channel::<Bytes>(1);
        let frames = futures_util::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|bytes| (Ok(Frame::data(bytes)), receiver))
        });
        let path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
        let request = http::Request::post(format!("http://xds{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(StreamBody::new(futures_util::StreamExt::boxed(frames)))
            .unwrap();
        self.sender.ready().await.map_err(|error| error.to_string())?;
        let response = self.sender.send_request(request).await.map_err(|error| error.to_string())?;
        if let Some(status) = response.headers().get("grpc-status") {
            return Err(status.to_str().unwrap().to_owned());
        }
        Ok(Stream { requests, responses: response.into_body(), buffer: BytesMut::new() })
    }

    async fn is_closed(&mut self) {
        tokio::time::timeout(WAIT, &mut self.ended).await.expect("the connection is closed").unwrap();
    }
}

struct Stream {
    requests: mpsc::Sender<Bytes>,
    responses: Incoming,
    buffer: BytesMut,
}

fn frame(request: &DeltaDiscoveryRequest) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(request.encoded_len()).unwrap());
    request.encode(&mut frame).unwrap();
    frame.freeze()
}

fn first_request() -> DeltaDiscoveryRequest {
    let identity = to_protobuf(&json!({"namespace": "default", "from": "web", "outbounds": {}}));
    let metadata = Struct { fields: [(KEY.to_owned(), identity)].into() };
    let node = Node { id: "e1".to_owned(), metadata: Some(metadata), ..Node::default() };
    let type_url = ResourceType::Cluster.type_url().to_owned();
    DeltaDiscoveryRequest { node: Some(node), type_url, ..Default::default() }
}

impl Stream {
    async fn send(&self, request: &DeltaDiscoveryRequest) {
        self.requests.send(frame(request)).await.unwrap();
    }

    /// Reads one response.
    async fn receive(&mut self) -> Result<DeltaDiscoveryResponse, String> {
        loop {
            if let Some(prefix) = self.buffer.get(1..5) {
                let length = u32::from_be_bytes(prefix.try_into().unwrap()) as usize;
                if self.buffer.len() >= 5 + length {
                    let message = self.buffer.split_to(5 + length).split_off(5);
                    return Ok(DeltaDiscoveryResponse::decode(message.freeze()).unwrap());
                }
            }
            match self.responses.frame().await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.buffer.extend_from_slice(&data),
                    Err(_) => return Err("trailers".to_owned()),
                },
                Some(Err(error)) => return Err(error.to_string()),
                None => return Err("end".to_owned()),
            }
        }
    }
}

struct Envoy {
    client: Client,
    stream: Stream,
}

impl Envoy {
    /// Receives a publication; everything is acknowledged.
    async fn accept(&mut self, number: u64) {
        loop {
            let response =
                tokio::time::timeout(WAIT, self.stream.receive()).await.expect("a response").unwrap();
            let (type_url, response_nonce) = (response.type_url.clone(), response.nonce.clone());
            self.stream.send(&DeltaDiscoveryRequest { type_url, response_nonce, ..Default::default() }).await;
            if response.type_url == ResourceType::Cluster.type_url() {
                let content = &response.resources[0].resource.as_ref().unwrap().value;
                assert_eq!(content[content.len() - 8..], number.to_be_bytes());
                return;
            }
        }
    }

    /// Whether it gets the next publication, on the same stream.
    async fn is_served(&mut self, world: &World, number: u64) {
        world.source.0.send_replace(Some(published(number, 8)));
        self.accept(number).await;
        assert!(!self.client.ended.is_finished());
    }
}

fn settings() -> XdsServerSettings {
    XdsServerSettings { max_streams: 8, max_held_bytes: 32 << 20, ..XdsServerSettings::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_do_not_displace_an_envoy() {
    let world = World::new(settings(), 8).await;
    let mut envoy = world.envoy().await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, HOSTILE], 0))).unwrap();
        silent.push(socket.connect(world.address).await.unwrap());
    }
    envoy.is_served(&world, 2).await;
    // Another one comes in at once, on the connection of its first try.
    let mut late = world.connect(HONEST).await;
    let mut stream = tokio::time::timeout(WAIT, late.open()).await.expect("an answer").unwrap();
    stream.send(&first_request()).await;
    assert!(tokio::time::timeout(WAIT, stream.receive()).await.expect("a response").is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_one_client_do_not_displace_an_envoy() {
    let world = World::new(settings(), 8).await;
    let mut envoy = world.envoy().await;
    let (mut hostile, mut clients) = (Vec::new(), Vec::new());
    let mut refused = BTreeMap::<String, usize>::new();
    for _ in 0..4 {
        let mut client = world.connect(HOSTILE).await;
        for _ in 0..8 {
            match client.open().await {
                Ok(stream) => {
                    stream.send(&first_request()).await;
                    hostile.push(stream);
                }
                Err(status) => *refused.entry(status).or_default() += 1,
            }
        }
        clients.push(client);
    }
    assert!(refused.get("8").is_some_and(|refused| *refused >= 16), "resource exhausted: {refused:?}");
    envoy.is_served(&world, 2).await;
    let mut late = world.connect(HONEST).await;
    assert!(late.open().await.is_ok(), "a second honest stream takes one of the flood");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_are_bounded_and_others_are_served() {
    let world = World::new(settings(), 8 * MIB).await;
    let mut hostile = Vec::new();
    for _ in 0..7 {
        let mut client = world.connect(HOSTILE).await;
        let stream = client.open().await.unwrap();
        stream.send(&first_request()).await;
        hostile.push((client, stream));
    }
    let sent =
        |world: &World| world.streams.counters().get(&ResourceType::Cluster).map_or(0, |c| c.responses);
    world.until("each has its turn", |world| sent(world) == 7).await;
    let mut envoy = world.envoy().await;
    // One response too many for each thread that builds one at the same time.
    let (capacity, response) = (32 * MIB as u64, 9 * MIB as u64);
    assert!(world.memory.used() <= capacity + 2 * response, "{}", world.memory.used());
    envoy.is_served(&world, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_does_not_read_loses_its_connection() {
    let settings = XdsServerSettings { stall_timeout: Duration::from_millis(200), ..settings() };
    let world = World::new(settings, 8 * MIB).await;
    let mut client = world.connect(HOSTILE).await;
    let stream = client.open().await.unwrap();
    stream.send(&first_request()).await;
    client.is_closed().await;
    world.until("its memory is free", |world| world.memory.used() == 0).await;
    // Neither does one that ends its requests keep its response.
    let mut client = world.connect(HOSTILE).await;
    let Stream { requests, responses: _responses, .. } = {
        let stream = client.open().await.unwrap();
        stream.send(&first_request()).await;
        stream
    };
    drop(requests);
    client.is_closed().await;
    world.until("its memory is free", |world| world.memory.used() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_that_ended_its_requests_counts_until_its_response_is_read() {
    let world = World::new(settings(), MIB).await;
    let mut client = world.connect(HOSTILE).await;
    let mut unread = Vec::new();
    for _ in 0..8 {
        let Stream { requests, responses, .. } = {
            let stream = client.open().await.unwrap();
            stream.send(&first_request()).await;
            stream
        };
        drop(requests);
        unread.push(responses);
    }
    world.until("all have a response", |world| world.memory.used() >= 7 * MIB as u64).await;
    assert_eq!(client.open().await.err().as_deref(), Some("8"), "the limit of streams");
    // Reading them gives the slots back.
    for responses in unread {
        let read = tokio::time::timeout(WAIT, responses.collect()).await.expect("an end").unwrap();
        assert!(read.to_bytes().len() > MIB);
    }
    eventually_async("a slot is free", async || client.open().await).await;
    world.until("nothing is held", |world| world.memory.used() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_large_requests_are_bounded_and_those_of_others_are_read() {
    let world = World::new(XdsServerSettings { stall_timeout: WAIT, ..settings() }, 8).await;
    let mut envoy = world.envoy().await;
    // The prefix promises 30 MiB; 12 are sent on each of four streams, then nothing.
    let mut prefix = BytesMut::new();
    prefix.put_u8(0);
    prefix.put_u32(30 * MIB as u32);
    let mut hostile = Vec::new();
    for _ in 0..4 {
        let mut client = world.connect(HOSTILE).await;
        let stream = client.open().await.unwrap();
        stream.send(&first_request()).await;
        stream.requests.send(prefix.clone().freeze()).await.unwrap();
        for _ in 0..12 {
            if stream.requests.send(vec![0; MIB].into()).await.is_err() {
                break;
            }
        }
        hostile.push((client, stream));
    }
    world
        .until("a connection is closed", |_| hostile.iter().any(|(client, _)| client.ended.is_finished()))
        .await;
    assert!(world.memory.used() <= 32 * MIB as u64);
    // The large request of another client is read.
    let type_url = ResourceType::Endpoints.type_url().to_owned();
    let names = (0..20_000).map(|number| format!("{number:0>100}")).collect();
    let large = DeltaDiscoveryRequest { type_url, resource_names_subscribe: names, ..Default::default() };
    envoy.stream.send(&large).await;
    envoy.is_served(&world, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_without_end_close_the_connection_and_unsubscribed_ones_are_free() {
    let world = World::new(XdsServerSettings { max_held_bytes: 8 << 20, ..settings() }, 8).await;
    let mut envoy = world.envoy().await;
    let type_url = ResourceType::Endpoints.type_url().to_owned();
    let request = |first: usize, unsubscribe: bool| {
        let names = (first..first + 100).map(|number| format!("{number:0>10000}")).collect();
        let mut request = DeltaDiscoveryRequest { type_url: type_url.clone(), ..Default::default() };
        match unsubscribe {
            true => request.resource_names_unsubscribe = names,
            false => request.resource_names_subscribe = names,
        }
        request
    };
    let mut client = world.connect(HOSTILE).await;
    let mut stream = client.open().await.unwrap();
    stream.send(&first_request()).await;
    let requests = stream.requests.clone();
    let reader = tokio::spawn(async move { while stream.receive().await.is_ok() {} });
    // Twenty times as many names, but never more than a megabyte at once.
    for round in 0..20 {
        requests.send(frame(&request(100 * round, false))).await.unwrap();
        requests.send(frame(&request(100 * round, true))).await.unwrap();
    }
    // The last request has arrived when its names are gone.
    world.until("no names are held", |world| world.memory.used() == 0).await;
    assert!(!client.ended.is_finished());
    for round in 0..20 {
        if requests.send(frame(&request(100 * round, false))).await.is_err() {
            break;
        }
    }
    client.is_closed().await;
    reader.await.unwrap();
    envoy.is_served(&world, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_never_acknowledges_gets_no_more_responses() {
    let world = World::new(settings(), 8).await;
    let mut envoy = world.envoy().await;
    let mut client = world.connect(HOSTILE).await;
    let mut stream = client.open().await.unwrap();
    stream.send(&first_request()).await;
    stream.receive().await.unwrap();
    for number in 2..50 {
        envoy.is_served(&world, number).await;
    }
    // Only the first went to it; its memory is none.
    let sent = world.streams.counters()[&ResourceType::Cluster].responses;
    assert_eq!(sent, 2 + 48, "each publication to the honest one");
    world.until("nothing is held", |world| world.memory.used() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnects_leave_nothing_behind() {
    let world = World::new(settings(), MIB).await;
    let mut envoy = world.envoy().await;
    for round in 0..100 {
        let mut client = world.connect(HOSTILE).await;
        if let Ok(stream) = client.open().await {
            let _ = stream.requests.send(frame(&first_request())).await;
            // Every other one is cut while its response is on its way.
            if round % 2 == 0 {
                world.streams.streams();
                tokio::task::yield_now().await;
            }
        }
        client.ended.abort();
    }
    world.until("one stream is left", |world| world.streams.streams().len() == 1).await;
    world.until("nothing is held", |world| world.memory.used() == 0).await;
    envoy.is_served(&world, 2).await;
}
