//! One ADS stream over gRPC: requests into the state machine, responses out.

use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::AggregatedDiscoveryService;
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use futures_util::Stream;
use prost::Message;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use ::listener::ConnectionPlace;

use super::memory::StreamMemory;
use super::peer::{StreamSlot, StreamSlots, XdsPeer};
use super::{ResourceSource, StreamRegistry, XdsConnection, XdsServerSettings};
use crate::identity::EnvoyIdentity;
use crate::resource::ResourceType;
use crate::stream::{DeltaStream, PublishedResources, Reply, SotwStream, TooManyNames};

const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests of a stream: a burst when an Envoy connects, then a rate. More are read later, not refused.
const REQUEST_BURST: u32 = 1_000;
const REQUESTS_PER_SECOND: u32 = 100;

#[derive(Clone)]
pub(super) struct AdsService {
    settings: Arc<XdsServerSettings>,
    source: Arc<dyn ResourceSource>,
    streams: Arc<StreamRegistry>,
    slots: Arc<StreamSlots>,
    stop: watch::Receiver<bool>,
    peer: XdsPeer,
    connection: XdsConnection,
}

type ResponseStream<R> = Pin<Box<dyn Stream<Item = Result<R, Status>> + Send>>;

impl AdsService {
    pub(super) fn new(
        settings: XdsServerSettings,
        source: Arc<dyn ResourceSource>,
        streams: Arc<StreamRegistry>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let slots = StreamSlots::new(settings.max_streams);
        let peer = XdsPeer::anonymous(Ipv4Addr::UNSPECIFIED.into());
        let connection = XdsConnection::new(0, None);
        Self { settings: Arc::new(settings), source, streams, slots, stop, peer, connection }
    }

    /// The service of one connection.
    pub(super) fn of(&self, peer: XdsPeer, connection: XdsConnection) -> Self {
        Self { peer, connection, ..self.clone() }
    }

    pub(super) fn connection(&self) -> &XdsConnection {
        &self.connection
    }

    pub(super) fn peer_key(&self) -> Arc<str> {
        self.peer.key.clone()
    }

    pub(super) fn stall_timeout(&self) -> Duration {
        self.settings.stall_timeout
    }

    fn admit<R>(&self, request: &Request<R>) -> Result<StreamSlot, Status> {
        if let Some(token) = &self.settings.token {
            let given = request.metadata().get("authorization").map(|value| value.as_bytes());
            let given = given.and_then(|value| value.strip_prefix(b"Bearer "));
            if !given.is_some_and(|given| is_equal_constant_time(given, token.as_bytes())) {
                self.streams.stream_rejected();
                let advice = "print a bootstrap with `zoneward mesh bootstrap --token-file FILE`";
                return Err(Status::unauthenticated(format!("missing or wrong token; {advice}")));
            }
        }
        self.slots.acquire(&self.peer.key, self.connection.number).ok_or_else(|| {
            self.streams.stream_rejected();
            let max = self.settings.max_streams;
            Status::resource_exhausted(format!(
                "limit of {max} streams reached; raise --max-streams, or run another server"
            ))
        })
    }

    fn open<M: XdsProtocol>(
        &self,
        request: Request<Streaming<M::Request>>,
    ) -> Result<ResponseStream<M::Response>, Status> {
        let slot = self.admit(&request)?;
        let memory = request.extensions().get::<Arc<StreamMemory>>().cloned();
        // At most one response waits, so none are built for a slow client.
        let (sender, receiver) = mpsc::channel(1);
        let (service, incoming) = (self.clone(), request.into_inner());
        let ads = AdsStream::<M> {
            service,
            incoming,
            sender,
            machine: M::default(),
            stream: None,
            retry: RetryBackoff::default(),
            wait_ends: None,
            rate: RequestRate::new(Instant::now()),
            memory,
            slot,
        };
        tokio::spawn(ads.run_to_end());
        let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|item| (item, receiver))
        });
        Ok(Box::pin(stream))
    }
}

/// The time does not depend on the number of equal bytes.
fn is_equal_constant_time(given: &[u8], token: &[u8]) -> bool {
    let differ = given.iter().zip(token).fold(0, |differ, (a, b)| differ | (a ^ b));
    given.len() == token.len() && differ == 0
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for AdsService {
    type StreamAggregatedResourcesStream = ResponseStream<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = ResponseStream<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        self.open::<SotwStream>(request).map(Response::new)
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        self.open::<DeltaStream>(request).map(Response::new)
    }
}

/// Incremental or state-of-the-world xDS.
trait XdsProtocol: Default + Send + 'static {
    const NAME: &'static str;
    type Request: Message + Default + Send + 'static;
    type Response: Message + Send + 'static;

    /// Semantics, xDS 10: only the first request has it.
    fn node(request: &Self::Request) -> Option<&Node>;
    fn handle_request(&mut self, request: &Self::Request) -> Result<Vec<Reply>, TooManyNames>;
    fn set_target(&mut self, target: Arc<PublishedResources>);
    fn next_response(&mut self) -> Option<Self::Response>;
    fn awaits_endpoints(&self) -> bool;
    fn stop_waiting(&mut self);
    fn has_retryable(&self) -> bool;
    /// Memory of subscribed names that no resource has.
    fn unknown_name_bytes(&self) -> usize;
    fn retry_rejected(&mut self);
    /// Whether the current version is rejected.
    fn is_rejected(&self, kind: ResourceType, name: &str) -> bool;
    /// The type of a response, with its numbers of resources and removals.
    fn size(response: &Self::Response) -> (Option<ResourceType>, usize, usize);
}

impl XdsProtocol for DeltaStream {
    const NAME: &'static str = "delta";
    type Request = DeltaDiscoveryRequest;
    type Response = DeltaDiscoveryResponse;

    fn node(request: &Self::Request) -> Option<&Node> {
        request.node.as_ref()
    }

    fn handle_request(&mut self, request: &Self::Request) -> Result<Vec<Reply>, TooManyNames> {
        DeltaStream::handle_request(self, request)
    }

    fn set_target(&mut self, target: Arc<PublishedResources>) {
        DeltaStream::set_target(self, target);
    }

    fn next_response(&mut self) -> Option<Self::Response> {
        DeltaStream::next_response(self)
    }

    fn awaits_endpoints(&self) -> bool {
        DeltaStream::awaits_endpoints(self)
    }

    fn stop_waiting(&mut self) {
        DeltaStream::stop_waiting(self);
    }

    fn has_retryable(&self) -> bool {
        DeltaStream::has_retryable(self)
    }

    fn unknown_name_bytes(&self) -> usize {
        DeltaStream::unknown_name_bytes(self)
    }

    fn retry_rejected(&mut self) {
        DeltaStream::retry_rejected(self);
    }

    fn is_rejected(&self, kind: ResourceType, name: &str) -> bool {
        self.rejected().any(|(of, rejected)| of == kind && **rejected == *name)
    }

    fn size(response: &Self::Response) -> (Option<ResourceType>, usize, usize) {
        (ResourceType::of(&response.type_url), response.resources.len(), response.removed_resources.len())
    }
}

impl XdsProtocol for SotwStream {
    const NAME: &'static str = "whole";
    type Request = DiscoveryRequest;
    type Response = DiscoveryResponse;

    fn node(request: &Self::Request) -> Option<&Node> {
        request.node.as_ref()
    }

    fn handle_request(&mut self, request: &Self::Request) -> Result<Vec<Reply>, TooManyNames> {
        SotwStream::handle_request(self, request)
    }

    fn set_target(&mut self, target: Arc<PublishedResources>) {
        SotwStream::set_target(self, target);
    }

    fn next_response(&mut self) -> Option<Self::Response> {
        SotwStream::next_response(self)
    }

    /// Routes are never held back for endpoints.
    fn awaits_endpoints(&self) -> bool {
        false
    }

    fn stop_waiting(&mut self) {}

    fn has_retryable(&self) -> bool {
        SotwStream::has_retryable(self)
    }

    fn unknown_name_bytes(&self) -> usize {
        SotwStream::unknown_name_bytes(self)
    }

    fn retry_rejected(&mut self) {
        SotwStream::retry_rejected(self);
    }

    /// A response is rejected as a whole, until the next one is accepted.
    fn is_rejected(&self, _: ResourceType, _: &str) -> bool {
        true
    }

    fn size(response: &Self::Response) -> (Option<ResourceType>, usize, usize) {
        (ResourceType::of(&response.type_url), response.resources.len(), 0)
    }
}

const TAKEN: &str =
    "limit of streams reached, and this peer has the most; raise --max-streams, or run another server";
const STOPPING: &str = "server is stopping; reconnect";
const NO_LONGER_SERVED: &str = "these resources are no longer served; reconnect";

struct AdsStream<M: XdsProtocol> {
    service: AdsService,
    incoming: Streaming<M::Request>,
    sender: mpsc::Sender<Result<M::Response, Status>>,
    machine: M,
    /// Its number in the registry, once identified.
    stream: Option<u64>,
    retry: RetryBackoff,
    /// When routes stop waiting for endpoints.
    wait_ends: Option<Instant>,
    rate: RequestRate,
    memory: Option<Arc<StreamMemory>>,
    slot: StreamSlot,
}

/// A token bucket of requests.
#[derive(Debug)]
struct RequestRate {
    /// When the bucket is full again.
    full_at: Instant,
}

impl RequestRate {
    fn new(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// When the next request may be read.
    fn ready_at(&self) -> Instant {
        self.full_at
            .checked_sub(Duration::from_secs(1) / REQUESTS_PER_SECOND * (REQUEST_BURST - 1))
            .unwrap_or(self.full_at)
    }

    fn take(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + Duration::from_secs(1) / REQUESTS_PER_SECOND;
    }
}

/// Backoff of retryable NACKs.
#[derive(Default)]
struct RetryBackoff {
    due: Option<Instant>,
    backoff: Duration,
}

const MIN_BACKOFF: Duration = Duration::from_secs(2);
const MAX_BACKOFF: Duration = Duration::from_secs(60);

impl RetryBackoff {
    /// Schedules the next retry while one is needed.
    fn schedule(&mut self, is_needed: bool) {
        if !is_needed {
            self.due = None;
        } else if self.due.is_none() {
            self.backoff = (self.backoff * 2).clamp(MIN_BACKOFF, MAX_BACKOFF);
            self.due = Some(Instant::now() + self.backoff);
        }
    }
}

/// The next request, not before a time. Cancel safe.
async fn next_request<R>(ready_at: Instant, incoming: &mut Streaming<R>) -> Result<Option<R>, Status> {
    tokio::time::sleep_until(ready_at).await;
    incoming.message().await
}

/// Returns when a client does not read its response.
async fn stalled(memory: Option<Arc<StreamMemory>>, period: Duration) {
    match memory {
        Some(memory) => memory.stalled(period).await,
        None => std::future::pending().await,
    }
}

/// Never returns if nothing is scheduled.
async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

impl<M: XdsProtocol> AdsStream<M> {
    /// Runs until the response is read, or the client does not read it: the slot is held as long as the memory.
    async fn run_to_end(mut self) {
        let connection = self.service.connection.clone();
        let _request = connection.place.as_ref().map(ConnectionPlace::begin_request);
        connection.active.fetch_add(1, Ordering::Relaxed);
        let (memory, taken) = (self.memory.clone(), self.slot.taken.clone());
        let stall_timeout = self.service.settings.stall_timeout;
        let ended = tokio::select! {
            biased;
            () = taken.notified() => Err(Status::resource_exhausted(TAKEN)),
            () = stalled(memory.clone(), stall_timeout) => {
                connection.close.notify_one();
                Ok(())
            }
            ended = self.run() => ended,
        };
        connection.active.fetch_sub(1, Ordering::Relaxed);
        if let Some(stream) = self.stream {
            self.service.streams.stream_closed(stream);
        }
        let AdsStream { sender, slot, incoming: _incoming, .. } = self;
        if let Err(status) = ended {
            // A client that does not read would keep this task.
            let _ = tokio::time::timeout(FIRST_REQUEST_TIMEOUT, sender.send(Err(status))).await;
        }
        drop(sender);
        if let Some(memory) = memory {
            tokio::select! {
                biased;
                () = memory.response_ended.notified() => {}
                () = slot.taken.notified() => connection.close.notify_one(),
                () = memory.stalled(stall_timeout) => connection.close.notify_one(),
            }
        }
    }

    /// The next response, once there is memory for it.
    async fn next_response(&mut self) -> Option<M::Response> {
        if let Some(memory) = &self.memory {
            tokio::select! {
                biased;
                () = self.sender.closed() => return None,
                () = memory.wait_for_room() => {}
            }
        }
        self.machine.next_response()
    }

    async fn run(&mut self) -> Result<(), Status> {
        let Some((first, mut published)) = self.first_request().await? else { return Ok(()) };
        if !self.wait_for_resources(&mut published).await? {
            return Ok(());
        }
        self.update_target(&mut published);
        self.handle_request(&first)?;
        let mut stop = self.service.stop.clone();
        loop {
            while let Some(response) = self.next_response().await {
                if self.send(response).await.is_none() {
                    return Ok(());
                }
            }
            self.retry.schedule(self.machine.has_retryable());
            self.schedule_end_of_wait();
            tokio::select! {
                // Requests come last: a client that sends without pause must not starve updates and deadlines. Updates
                // coalesce, so that they cannot starve requests.
                biased;
                _ = stop.wait_for(|stop| *stop) => return Err(Status::unavailable(STOPPING)),
                () = self.sender.closed() => return Ok(()),
                changed = published.changed() => match changed {
                    Ok(()) => self.update_target(&mut published),
                    Err(_) => return Err(Status::unavailable(NO_LONGER_SERVED)),
                },
                () = wait_until(self.wait_ends) => {
                    self.wait_ends = None;
                    self.machine.stop_waiting();
                }
                () = wait_until(self.retry.due) => {
                    self.retry.due = None;
                    self.machine.retry_rejected();
                }
                message = next_request(self.rate.ready_at(), &mut self.incoming) => match message {
                    Ok(Some(request)) => {
                        self.rate.take(Instant::now());
                        self.handle_request(&request)?;
                    }
                    // On reconnection the client lists the versions that it has.
                    Ok(None) | Err(_) => return Ok(()),
                },
            }
            // Requests that are always ready must not keep other tasks from this thread.
            tokio::task::consume_budget().await;
        }
    }

    /// Routes wait for endpoints for a limited time, however many requests and updates come meanwhile.
    fn schedule_end_of_wait(&mut self) {
        let timeout = self.service.settings.endpoints_timeout;
        self.wait_ends = match self.machine.awaits_endpoints() {
            true => self.wait_ends.or_else(|| Some(Instant::now() + timeout)),
            false => None,
        };
    }

    /// Waits for the first publication. After a restart that takes a moment, and comparing a client's versions with an
    /// empty set would remove its whole configuration. `false`: the client disconnected.
    async fn wait_for_resources(
        &mut self,
        published: &mut watch::Receiver<Option<Arc<PublishedResources>>>,
    ) -> Result<bool, Status> {
        let mut stop = self.service.stop.clone();
        let known = async { published.wait_for(Option::is_some).await.map(drop) };
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => Err(Status::unavailable(STOPPING)),
            () = self.sender.closed() => Ok(false),
            known = known => known.map(|()| true).map_err(|_| Status::unavailable(NO_LONGER_SERVED)),
        }
    }

    /// Waits for the first request, which identifies the client.
    #[allow(clippy::type_complexity)]
    async fn first_request(
        &mut self,
    ) -> Result<Option<(M::Request, watch::Receiver<Option<Arc<PublishedResources>>>)>, Status> {
        let first = tokio::time::timeout(FIRST_REQUEST_TIMEOUT, self.incoming.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no request received"))??;
        let Some(first) = first else { return Ok(None) };
        let anonymous = Node::default();
        let node = M::node(&first).unwrap_or(&anonymous);
        let reject = |error: String| {
            self.service.streams.stream_rejected();
            Status::invalid_argument(error)
        };
        let identity = EnvoyIdentity::parse(node).map_err(|error| reject(error.to_string()))?;
        if let Err(refusal) = self.service.peer.check(&identity) {
            self.service.streams.stream_rejected();
            tracing::warn!(envoy = %node.id, role = %identity.title(), peer = %self.service.peer.key, "Envoy declares a role that its certificate does not have");
            return Err(refusal);
        }
        let published = self.service.source.watch(&identity).map_err(reject)?;
        tracing::info!(envoy = %node.id, role = %identity.title(), protocol = M::NAME, "Envoy connected");
        self.stream = Some(self.service.streams.stream_opened(
            &identity,
            &node.id,
            M::NAME,
            self.service.peer.proves_identity(),
        ));
        Ok(Some((first, published)))
    }

    fn update_target(&mut self, published: &mut watch::Receiver<Option<Arc<PublishedResources>>>) {
        let Some(target) = published.borrow_and_update().clone() else { return };
        let number = target.number;
        self.machine.set_target(target);
        // The change may have removed the cause of a NACK.
        self.retry.backoff = Duration::ZERO;
        if let Some(stream) = self.stream {
            self.service.streams.target_set(stream, number);
            self.service.streams.retain_rejected(stream, |kind, name| self.machine.is_rejected(kind, name));
        }
    }

    fn handle_request(&mut self, request: &M::Request) -> Result<(), Status> {
        let replies = self
            .machine
            .handle_request(request)
            .map_err(|error| Status::resource_exhausted(error.to_string()))?;
        if let Some(memory) = &self.memory {
            memory.request_completed();
            memory.set_names(self.machine.unknown_name_bytes());
        }
        for reply in &replies {
            if matches!(reply, Reply::Ack { .. }) {
                self.slot.acknowledged();
            }
            if let Reply::Nack(nack) = reply {
                let resource = nack.resource.as_deref().unwrap_or("one of several");
                tracing::warn!(kind = %nack.kind, resource, message = nack.message, "Envoy rejected a resource and keeps the previous version");
            }
            if let Some(stream) = self.stream {
                self.service.streams.replied(stream, reply);
            }
        }
        Ok(())
    }

    /// `None`: the client disconnected.
    async fn send(&mut self, response: M::Response) -> Option<()> {
        if let (Some(kind), resources, removed) = M::size(&response) {
            self.service.streams.response_sent(kind, resources, removed, response.encoded_len());
        }
        if let Some(memory) = &self.memory {
            memory.response_sent(response.encoded_len());
        }
        self.sender.send(Ok(response)).await.ok()
    }
}

#[cfg(test)]
mod tests;
