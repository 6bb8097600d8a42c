//! One stream: messages in, the state machine, messages out.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::AggregatedDiscoveryService;
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use futures_util::Stream;
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use super::{Ledger, Settings, Source};
use crate::identity::Identity;
use crate::resource::Kind;
use crate::stream::{Delta, Heard, Published, TooMuch, Whole};

/// How long a client may take to say who it is.
const INTRODUCTION: Duration = Duration::from_secs(10);

/// The service behind every connection.
#[derive(Clone)]
pub(super) struct Service {
    settings: Arc<Settings>,
    source: Arc<dyn Source>,
    ledger: Arc<Ledger>,
    free: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
}

type Outgoing<R> = Pin<Box<dyn Stream<Item = Result<R, Status>> + Send>>;

impl Service {
    pub(super) fn new(
        settings: Settings,
        source: Arc<dyn Source>,
        ledger: Arc<Ledger>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let free = Arc::new(Semaphore::new(settings.streams));
        Self { settings: Arc::new(settings), source, ledger, free, stop }
    }

    /// Lets a client in, or says why not.
    fn admit<R>(&self, request: &Request<R>) -> Result<OwnedSemaphorePermit, Status> {
        if let Some(token) = &self.settings.token {
            let said = request.metadata().get("authorization").map(|value| value.as_bytes());
            let said = said.and_then(|value| value.strip_prefix(b"Bearer "));
            if !said.is_some_and(|said| is_same(said, token.as_bytes())) {
                self.ledger.turned_away();
                let advice = "print a bootstrap with `zoneward mesh bootstrap --token-file FILE`";
                return Err(Status::unauthenticated(format!("the token is missing or wrong: {advice}")));
            }
        }
        self.free.clone().try_acquire_owned().map_err(|_| {
            self.ledger.turned_away();
            let most = self.settings.streams;
            Status::resource_exhausted(format!(
                "{most} streams are open: raise --max-streams, or run another server"
            ))
        })
    }

    fn open<M: Machine>(&self, request: Request<Streaming<M::Heard>>) -> Result<Outgoing<M::Said>, Status> {
        let permit = self.admit(&request)?;
        // One response waits at most: what a slow client does not take is not made.
        let (sender, receiver) = mpsc::channel(1);
        let (service, incoming) = (self.clone(), request.into_inner());
        tokio::spawn(async move {
            let _permit = permit;
            let mut talk = Talk::<M> {
                service,
                incoming,
                sender,
                machine: M::default(),
                stream: None,
                again: Again::default(),
            };
            if let Err(status) = talk.run().await {
                let _ = talk.sender.send(Err(status)).await;
            }
            if let Some(stream) = talk.stream {
                talk.service.ledger.closed(stream);
            }
        });
        let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|item| (item, receiver))
        });
        Ok(Box::pin(stream))
    }
}

/// Compares without telling by the time how much is right.
fn is_same(said: &[u8], token: &[u8]) -> bool {
    let differ = said.iter().zip(token).fold(0, |differ, (a, b)| differ | (a ^ b));
    said.len() == token.len() && differ == 0
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Service {
    type StreamAggregatedResourcesStream = Outgoing<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Outgoing<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        self.open::<Whole>(request).map(Response::new)
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        self.open::<Delta>(request).map(Response::new)
    }
}

/// Either protocol.
trait Machine: Default + Send + 'static {
    const NAME: &'static str;
    type Heard: Message + Default + Send + 'static;
    type Said: Message + Send + 'static;

    /// Semantics, xDS 10: only the first message has it.
    fn node(request: &Self::Heard) -> Option<&Node>;
    fn hear(&mut self, request: &Self::Heard) -> Result<Vec<Heard>, TooMuch>;
    fn aim(&mut self, target: Arc<Published>);
    fn speak(&mut self) -> Option<Self::Said>;
    fn is_waiting(&self) -> bool;
    fn wait_no_longer(&mut self);
    /// Whether something was refused that may be taken though it stays as it is.
    fn may_try_again(&self) -> bool;
    fn try_again(&mut self);
    /// Whether the client still refuses this.
    fn refuses(&self, kind: Kind, name: &str) -> bool;
    /// The kind of a response, how many resources it has, and how many it takes back.
    fn size(said: &Self::Said) -> (Option<Kind>, usize, usize);
}

impl Machine for Delta {
    const NAME: &'static str = "delta";
    type Heard = DeltaDiscoveryRequest;
    type Said = DeltaDiscoveryResponse;

    fn node(request: &Self::Heard) -> Option<&Node> {
        request.node.as_ref()
    }

    fn hear(&mut self, request: &Self::Heard) -> Result<Vec<Heard>, TooMuch> {
        Delta::hear(self, request)
    }

    fn aim(&mut self, target: Arc<Published>) {
        Delta::aim(self, target);
    }

    fn speak(&mut self) -> Option<Self::Said> {
        Delta::speak(self)
    }

    fn is_waiting(&self) -> bool {
        Delta::is_waiting(self)
    }

    fn wait_no_longer(&mut self) {
        Delta::wait_no_longer(self);
    }

    fn may_try_again(&self) -> bool {
        Delta::may_try_again(self)
    }

    fn try_again(&mut self) {
        Delta::try_again(self);
    }

    fn refuses(&self, kind: Kind, name: &str) -> bool {
        self.refused().any(|(of, refused)| of == kind && **refused == *name)
    }

    fn size(said: &Self::Said) -> (Option<Kind>, usize, usize) {
        (Kind::of(&said.type_url), said.resources.len(), said.removed_resources.len())
    }
}

impl Machine for Whole {
    const NAME: &'static str = "whole";
    type Heard = DiscoveryRequest;
    type Said = DiscoveryResponse;

    fn node(request: &Self::Heard) -> Option<&Node> {
        request.node.as_ref()
    }

    fn hear(&mut self, request: &Self::Heard) -> Result<Vec<Heard>, TooMuch> {
        Whole::hear(self, request)
    }

    fn aim(&mut self, target: Arc<Published>) {
        Whole::aim(self, target);
    }

    fn speak(&mut self) -> Option<Self::Said> {
        Whole::speak(self)
    }

    fn is_waiting(&self) -> bool {
        Whole::is_waiting(self)
    }

    /// Nothing is held back here for others.
    fn wait_no_longer(&mut self) {}

    fn may_try_again(&self) -> bool {
        Whole::may_try_again(self)
    }

    fn try_again(&mut self) {
        Whole::try_again(self);
    }

    /// Here a response is refused whole, and forgotten when the next is taken.
    fn refuses(&self, _: Kind, _: &str) -> bool {
        true
    }

    fn size(said: &Self::Said) -> (Option<Kind>, usize, usize) {
        (Kind::of(&said.type_url), said.resources.len(), 0)
    }
}

struct Talk<M: Machine> {
    service: Service,
    incoming: Streaming<M::Heard>,
    sender: mpsc::Sender<Result<M::Said, Status>>,
    machine: M,
    /// Its number in the ledger, once it is known who it is.
    stream: Option<u64>,
    again: Again,
}

/// When something is tried again that was refused and may be taken by now.
#[derive(Default)]
struct Again {
    due: Option<Instant>,
    pause: Duration,
}

/// The first pause, and the longest: a port that stays taken is not worth more.
const AGAIN_SOON: Duration = Duration::from_secs(2);
const AGAIN_LATE: Duration = Duration::from_secs(60);

impl Again {
    /// Plans the next try while there is something to try, each later than the one before.
    fn plan(&mut self, is_needed: bool) {
        if !is_needed {
            self.due = None;
        } else if self.due.is_none() {
            self.pause = (self.pause * 2).clamp(AGAIN_SOON, AGAIN_LATE);
            self.due = Some(Instant::now() + self.pause);
        }
    }

    /// Waits for it; for ever where nothing is planned.
    async fn wait(&self) {
        match self.due {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }
}

impl<M: Machine> Talk<M> {
    async fn run(&mut self) -> Result<(), Status> {
        let Some((first, mut published)) = self.introduction().await? else { return Ok(()) };
        if !self.has_something(&mut published).await? {
            return Ok(());
        }
        self.aim(&mut published);
        self.hear(&first)?;
        let mut stop = self.service.stop.clone();
        loop {
            while let Some(response) = self.machine.speak() {
                if self.say(response).await.is_none() {
                    return Ok(());
                }
            }
            let patience = self.service.settings.patience;
            self.again.plan(self.machine.may_try_again());
            tokio::select! {
                message = self.incoming.message() => match message {
                    Ok(Some(request)) => self.hear(&request)?,
                    // It went, or its connection broke: it comes again and says what it has.
                    Ok(None) | Err(_) => return Ok(()),
                },
                changed = published.changed() => match changed {
                    Ok(()) => self.aim(&mut published),
                    Err(_) => return Err(Status::unavailable("what was served here is gone: connect again")),
                },
                () = tokio::time::sleep(patience), if self.machine.is_waiting() => self.machine.wait_no_longer(),
                () = self.again.wait() => {
                    self.again.due = None;
                    self.machine.try_again();
                }
                () = self.sender.closed() => return Ok(()),
                _ = stop.wait_for(|stop| *stop) => {
                    return Err(Status::unavailable("the server stops: connect again"));
                }
            }
        }
    }

    /// Waits until it is known what the client is to have. After a restart that takes a moment, and what a client says
    /// that it has must not be held against nothing: it would be told to forget everything. `false`: it went.
    async fn has_something(
        &mut self,
        published: &mut watch::Receiver<Option<Arc<Published>>>,
    ) -> Result<bool, Status> {
        let mut stop = self.service.stop.clone();
        let known = async { published.wait_for(Option::is_some).await.map(drop) };
        tokio::select! {
            known = known => known
                .map(|()| true)
                .map_err(|_| Status::unavailable("what was served here is gone: connect again")),
            () = self.sender.closed() => Ok(false),
            _ = stop.wait_for(|stop| *stop) => Err(Status::unavailable("the server stops: connect again")),
        }
    }

    /// Waits for the first message and finds out what the client is to have.
    #[allow(clippy::type_complexity)]
    async fn introduction(
        &mut self,
    ) -> Result<Option<(M::Heard, watch::Receiver<Option<Arc<Published>>>)>, Status> {
        let first = tokio::time::timeout(INTRODUCTION, self.incoming.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no request came"))??;
        let Some(first) = first else { return Ok(None) };
        let nobody = Node::default();
        let node = M::node(&first).unwrap_or(&nobody);
        let turn_away = |error: String| {
            self.service.ledger.turned_away();
            Status::invalid_argument(error)
        };
        let identity = Identity::parse(node).map_err(|error| turn_away(error.to_string()))?;
        let published = self.service.source.watch(&identity).map_err(turn_away)?;
        tracing::info!(envoy = %node.id, role = %identity.title(), protocol = M::NAME, "an Envoy has connected");
        self.stream = Some(self.service.ledger.opened(&identity, &node.id, M::NAME));
        Ok(Some((first, published)))
    }

    fn aim(&mut self, published: &mut watch::Receiver<Option<Arc<Published>>>) {
        let Some(target) = published.borrow_and_update().clone() else { return };
        let number = target.number;
        self.machine.aim(target);
        // What changed may be what was in the way.
        self.again.pause = Duration::ZERO;
        if let Some(stream) = self.stream {
            self.service.ledger.aimed(stream, number);
            self.service.ledger.keep(stream, |kind, name| self.machine.refuses(kind, name));
        }
    }

    fn hear(&mut self, request: &M::Heard) -> Result<(), Status> {
        let heard =
            self.machine.hear(request).map_err(|error| Status::resource_exhausted(error.to_string()))?;
        for heard in &heard {
            if let Heard::Refused(refusal) = heard {
                let resource = refusal.resource.as_deref().unwrap_or("one of several");
                tracing::warn!(kind = %refusal.kind, resource, said = refusal.message, "an Envoy refuses a resource and keeps what it had");
            }
            if let Some(stream) = self.stream {
                self.service.ledger.heard(stream, heard);
            }
        }
        Ok(())
    }

    /// `None`: nobody listens any more.
    async fn say(&mut self, response: M::Said) -> Option<()> {
        if let (Some(kind), resources, removed) = M::size(&response) {
            self.service.ledger.sent(kind, resources, removed, response.encoded_len());
        }
        self.sender.send(Ok(response)).await.ok()
    }
}
