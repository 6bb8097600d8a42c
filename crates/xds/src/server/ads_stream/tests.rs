//! A client that sends requests without pause.

use bytes::{BufMut, Bytes, BytesMut};
use envoy_types::pb::google::protobuf::Struct;
use fixtures::eventually_async;
use http_body_util::StreamBody;
use hyper::body::Frame;
use serde_json::json;
use tonic::codec::{DecodeBuf, Decoder};

use super::*;
use crate::identity::{KEY, to_protobuf};
use crate::resource::{ResourceSet, XdsResource};

struct Same(watch::Sender<Option<Arc<PublishedResources>>>);

impl ResourceSource for Same {
    fn watch(&self, _: &EnvoyIdentity) -> Result<watch::Receiver<Option<Arc<PublishedResources>>>, String> {
        Ok(self.0.subscribe())
    }
}

struct RequestDecoder;

impl Decoder for RequestDecoder {
    type Item = DeltaDiscoveryRequest;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<DeltaDiscoveryRequest>, Status> {
        Message::decode(buffer).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

/// The same request again and again; there is always one more to read.
fn endless_requests() -> Request<Streaming<DeltaDiscoveryRequest>> {
    let identity = to_protobuf(&json!({"namespace": "default", "from": "web", "outbounds": {}}));
    let metadata = Struct { fields: [(KEY.to_owned(), identity)].into() };
    let node = Node { id: "e1".to_owned(), metadata: Some(metadata), ..Node::default() };
    let type_url = ResourceType::Cluster.type_url().to_owned();
    let request = DeltaDiscoveryRequest { node: Some(node), type_url, ..Default::default() };
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(request.encoded_len()).unwrap());
    request.encode(&mut frame).unwrap();
    let frame: Bytes = frame.freeze();
    let frames = futures_util::stream::repeat_with(move || Ok::<_, Status>(Frame::data(frame.clone())));
    Request::new(Streaming::new_request(RequestDecoder, StreamBody::new(frames), None, None))
}

fn published(number: u64) -> Option<Arc<PublishedResources>> {
    let mut resources = ResourceSet::default();
    resources.put(ResourceType::Cluster, XdsResource::new("a", number.to_be_bytes().to_vec()));
    Some(Arc::new(PublishedResources { number, ..PublishedResources::first(Arc::new(resources)) }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_pause_do_not_starve_updates() {
    let source = Arc::new(Same(watch::Sender::new(published(1))));
    let streams = Arc::new(StreamRegistry::default());
    let (_stop, stopped) = watch::channel(false);
    let service = AdsService::new(XdsServerSettings::default(), source.clone(), streams.clone(), stopped);
    let responses = service.open::<DeltaStream>(endless_requests()).unwrap();
    let is_at = |number| streams.streams().iter().any(|stream| stream.number == number);
    eventually_async("the stream is open", async || is_at(1)).await;
    source.0.send_replace(published(2));
    eventually_async("the update is handled between requests", async || is_at(2)).await;
    drop(responses);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_streams_by_one_peer_leaves_room_for_others() {
    let source = Arc::new(Same(watch::Sender::new(published(1))));
    let (_stop, stopped) = watch::channel(false);
    let settings = XdsServerSettings { max_streams: 8, ..XdsServerSettings::default() };
    let service = AdsService::new(settings, source, Arc::default(), stopped);
    let peer = |address: &str, number| {
        service.of(XdsPeer::anonymous(address.parse().unwrap()), XdsConnection::new(number, None))
    };
    let (hostile, honest) = (peer("192.0.2.1", 1), peer("192.0.2.2", 2));
    let mut flood: Vec<_> =
        (0..8).map(|_| hostile.open::<DeltaStream>(endless_requests()).unwrap()).collect();
    assert!(hostile.open::<DeltaStream>(endless_requests()).is_err(), "the limit");
    let _own = honest.open::<DeltaStream>(endless_requests()).unwrap();
    let mut evicted = flood.remove(0);
    let end = async {
        loop {
            match futures_util::StreamExt::next(&mut evicted).await {
                Some(Err(status)) => return status,
                Some(Ok(_)) => {}
                None => panic!("the stream ended without a reason"),
            }
        }
    };
    let status = tokio::time::timeout(Duration::from_secs(30), end).await.expect("it is evicted");
    assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status}");
    assert!(hostile.open::<DeltaStream>(endless_requests()).is_err(), "it cannot take it back");
}

#[test]
fn requests_beyond_a_burst_are_read_later() {
    let now = Instant::now();
    let mut rate = RequestRate::new(now);
    for _ in 0..REQUEST_BURST {
        assert!(rate.ready_at() <= now);
        rate.take(now);
    }
    assert_eq!(rate.ready_at() - now, Duration::from_secs(1) / REQUESTS_PER_SECOND);
    // Time fills the bucket up to the burst, and no further.
    let later = now + Duration::from_secs(3600);
    rate.take(later);
    assert!(rate.ready_at() < later);
    assert_eq!(rate.full_at - later, Duration::from_secs(1) / REQUESTS_PER_SECOND);
}
