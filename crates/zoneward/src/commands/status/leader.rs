//! The controller that leads, found by its Lease, and its status listener: by port-forward to its pod, or directly where
//! it is no pod (`zoneward up`, `zoneward demo`).

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use insight::status::StatusReport;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use model::annotation;
use plan::PlanningConfig;
use serde::Deserialize;

use super::StatusTarget;
use super::server::{CONFIGURATION_PATH, PLANNING};
use crate::commands::loopback::{HttpSession, forward};

const LEASE_NAME: &str = "zoneward-controller";
const LEASE_NAMESPACE: &str = "kube-system";
const TIMEOUT: Duration = Duration::from_secs(20);
const LISTENER: &str = "the status listener";
const START_ONE: &str = "start `zoneward controller` or `zoneward up`, or name its Lease with --lease";

/// Where reports come from.
pub(in crate::commands) struct StatusServer {
    client: Client,
    lease: Option<(String, String)>,
    server: Option<SocketAddr>,
}

impl StatusServer {
    /// That of the leading controller, found by its Lease.
    pub(crate) fn of_leader(client: Client) -> Self {
        Self { client, lease: None, server: None }
    }

    pub(crate) fn new(client: Client, target: &StatusTarget) -> Result<Self> {
        let lease = match &target.lease {
            None => None,
            Some(text) => match text.split_once('/') {
                Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                    Some((namespace.to_owned(), name.to_owned()))
                }
                _ => {
                    bail!("--lease {text}: expected NAMESPACE/NAME, such as kube-system/zoneward-controller")
                }
            },
        };
        Ok(Self { client, lease, server: target.server })
    }

    /// The report of the leader.
    pub(crate) async fn report(
        &self,
        namespace: Option<&str>,
        name: Option<&str>,
        window: Duration,
    ) -> Result<StatusReport> {
        let mut path = format!("/api/status?window={}", window.as_secs().max(1));
        for (key, value) in [("namespace", namespace), ("name", name)] {
            if let Some(value) = value {
                path += &format!("&{key}={}", encoded(value));
            }
        }
        let body = tokio::time::timeout(TIMEOUT, self.get(&path));
        let body = body.await.context("the leading controller did not answer within 20 s")??;
        serde_json::from_slice(&body)
            .context("reading the report of the leading controller: is it another version?")
    }

    /// The configuration that the leader decides with; `None` where no controller leads.
    pub(crate) async fn planning(&self) -> Result<Option<PlanningConfig>> {
        if !self.find_lease().await?.is_some_and(|lease| is_held(&lease)) {
            return Ok(None);
        }
        let body = tokio::time::timeout(TIMEOUT, self.get(CONFIGURATION_PATH));
        let body = body.await.context("the leading controller did not answer within 20 s")??;
        let read = serde_json::from_slice(&body)
            .and_then(|mut value: serde_json::Value| PlanningConfig::deserialize(value[PLANNING].take()));
        read.map(Some).context("reading the configuration of the leading controller: is it another version?")
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        if let Some(address) = self.server {
            return HttpSession::direct(address, LISTENER).await?.get(path).await;
        }
        let lease = self.lease().await?;
        let name = format!("{}/{}", lease.namespace().unwrap_or_default(), lease.name_any());
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        if holder.is_empty() {
            bail!("no Zoneward controller leads: Lease {name} has no holder; {START_ONE}");
        }
        let Some(address) = lease.annotations().get(annotation::STATUS_ADDRESS) else {
            bail!(
                "the leader {holder} of Lease {name} has no status listener: upgrade it, or start it with \
                 --status-bind-address"
            );
        };
        let address: SocketAddr = address
            .parse()
            .with_context(|| format!("annotation {} of Lease {name}", annotation::STATUS_ADDRESS))?;
        let session = match self.forwarded(&lease, holder, address.port()).await? {
            Some(session) => Ok(session),
            None => HttpSession::direct(address, LISTENER).await,
        };
        let mut session = session.with_context(|| {
            format!("the leader {holder} of Lease {name} does not answer: it has stopped, or runs elsewhere")
        })?;
        session.get(path).await.with_context(|| format!("asking the leader {holder}"))
    }

    /// The Lease: the named one, or the one of that name in any namespace.
    async fn lease(&self) -> Result<Lease> {
        self.find_lease().await?.with_context(|| match &self.lease {
            Some((namespace, name)) => format!("there is no Lease {namespace}/{name}: {START_ONE}"),
            None => format!("no Zoneward controller leads: there is no Lease {LEASE_NAME}; {START_ONE}"),
        })
    }

    async fn find_lease(&self) -> Result<Option<Lease>> {
        let get = async |namespace: &str, name: &str| {
            let api: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
            api.get_opt(name).await.with_context(|| format!("reading Lease {namespace}/{name}"))
        };
        if let Some((namespace, name)) = &self.lease {
            return get(namespace, name).await;
        }
        let fields = format!("metadata.name={LEASE_NAME}");
        let all: Api<Lease> = Api::all(self.client.clone());
        match all.list(&ListParams::default().fields(&fields)).await {
            Ok(found) => Ok(found.items.iter().find(|lease| is_held(lease)).or(found.items.first()).cloned()),
            // A user may read one namespace only.
            Err(kube::Error::Api(status)) if status.code == 403 => get(LEASE_NAMESPACE, LEASE_NAME).await,
            Err(error) => Err(error).context("listing the controllers' Leases"),
        }
    }

    /// A connection to the pod that holds the Lease: its name is the holder's without the random suffix.
    async fn forwarded(&self, lease: &Lease, holder: &str, port: u16) -> Result<Option<HttpSession>> {
        let Some((pod, _)) = holder.rsplit_once('_') else { return Ok(None) };
        let namespace = lease.namespace().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let found = pods.get_opt(pod).await.with_context(|| format!("reading Pod {namespace}/{pod}"))?;
        if found.is_none() {
            return Ok(None);
        }
        let stream = forward(&self.client, &namespace, pod, port).await?;
        HttpSession::new(stream).await.map(Some)
    }
}

fn is_held(lease: &Lease) -> bool {
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
    holder.is_some_and(|holder| !holder.is_empty())
}

/// Percent-encoding of a query value.
fn encoded(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}
