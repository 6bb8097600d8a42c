//! A server of ours, and a bootstrap for an Envoy that knows nothing but where it is.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use xds::bootstrap::Bootstrap;
use xds::identity::{EnvoyIdentity, EnvoyRole};
use xds::resource::{ResourceSet, ResourceType};
use xds::server::{ResourceSource, StreamRegistry, XdsServerSettings, serve};
use xds::stream::PublishedResources;

use crate::process::Envoy;
use toolbox::ports::free_port;

/// One configuration for everybody who connects.
struct Same(watch::Sender<Option<Arc<PublishedResources>>>);

impl ResourceSource for Same {
    fn watch(&self, _: &EnvoyIdentity) -> Result<watch::Receiver<Option<Arc<PublishedResources>>>, String> {
        Ok(self.0.subscribe())
    }
}

/// A server of ours.
pub struct Control {
    pub address: SocketAddr,
    pub streams: Arc<StreamRegistry>,
    source: Arc<Same>,
    stop: watch::Sender<bool>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Control {
    pub fn start(resources: &Arc<ResourceSet>) -> Self {
        Self::start_at(free_port(), resources, XdsServerSettings::default())
    }

    pub fn start_at(address: SocketAddr, resources: &Arc<ResourceSet>, settings: XdsServerSettings) -> Self {
        Self::start_with(address, Some(PublishedResources::first(resources.clone())), settings)
    }

    /// One that does not know yet what anybody is to have, as after a restart.
    pub fn start_without(address: SocketAddr) -> Self {
        Self::start_with(address, None, XdsServerSettings::default())
    }

    fn start_with(
        address: SocketAddr,
        published: Option<PublishedResources>,
        settings: XdsServerSettings,
    ) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (sender, _) = watch::channel(published.map(Arc::new));
        let source = Arc::new(Same(sender));
        let (stop, stopped) = watch::channel(false);
        let streams = Arc::new(StreamRegistry::default());
        let listener = runtime.block_on(tokio::net::TcpListener::bind(address)).unwrap();
        runtime.spawn(serve(listener, settings, source.clone(), streams.clone(), stopped));
        Self { address, streams, source, stop, runtime: Some(runtime) }
    }

    pub fn publish(&self, resources: &Arc<ResourceSet>) {
        for kind in ResourceType::ALL {
            for resource in resources.of(kind).values() {
                let shown = xds::config_dump::value(kind, resource).to_string();
                assert!(!shown.contains("\"field "), "config_dump/fields.txt lacks a name: {shown}");
                // "-----BEGIN PRIVATE" in base64.
                assert!(!shown.contains("LS0tLS1CRUdJTiBQUklWQVRF"), "a private key is shown: {shown}");
            }
        }
        self.source.0.send_modify(|held| {
            let next = match held {
                Some(held) => held.next(resources.clone()),
                None => Some(PublishedResources::first(resources.clone())),
            };
            if let Some(next) = next {
                *held = Some(Arc::new(next));
            }
        });
    }

    /// How many resources of each kind were sent.
    pub fn sent(&self) -> BTreeMap<ResourceType, u64> {
        self.streams.counters().into_iter().map(|(kind, count)| (kind, count.resources)).collect()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(3));
        }
    }
}

/// Some gateway: the server of these tests serves everybody the same.
pub fn bootstrap(server: SocketAddr) -> Bootstrap {
    Bootstrap {
        identity: EnvoyIdentity {
            namespace: "ns".to_owned(),
            role: EnvoyRole::Gateway {
                name: "edge".to_owned(),
                bind: "127.0.0.1".parse().unwrap(),
                port_overrides: BTreeMap::new(),
            },
            node: String::new(),
            zone: None,
        },
        id: "envoy-1".to_owned(),
        host: server.ip().to_string(),
        port: server.port(),
        tls: None,
        token: None,
        admin: Some(free_port()),
        state_of_the_world: false,
    }
}

/// An Envoy that is started with this.
pub fn envoy(bootstrap: &Bootstrap) -> Envoy {
    Envoy::start(&bootstrap.value().to_string(), "json")
}
