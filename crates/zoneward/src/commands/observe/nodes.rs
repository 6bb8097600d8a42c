//! The logs of nodes: found by the Leases of the node proxies, read by port-forward to their pods, or directly where they
//! are no pods.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use model::annotation;
use node::running_config;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::directory::LoggedConnection;
use crate::commands::loopback::{HttpSession, forward};

/// Nodes that are read at a time, unless named.
const MAX_NODES: usize = 20;
const INTERVAL: Duration = Duration::from_millis(500);
const RETRY: Duration = Duration::from_secs(5);
/// Attempts before a node is given up.
const ATTEMPTS: u32 = 3;
/// Pods of node proxies.
const POD_LABELS: &str = "app.kubernetes.io/name=zoneward-node";

/// What a node says.
pub(super) enum NodeMessage {
    Connection(String, LoggedConnection),
    /// Connections that its log has no place for.
    Skipped(u64),
    Failed(String, String),
}

/// The log of one node.
pub(super) struct NodeLog {
    node: String,
    address: SocketAddr,
    /// Namespace and name of its pod.
    pod: Option<(String, String)>,
}

#[derive(Deserialize)]
struct LogPage {
    next: u64,
    skipped: u64,
    failure: Option<String>,
    connections: Vec<LoggedConnection>,
}

impl NodeLog {
    pub(super) fn direct(node: &str, address: SocketAddr) -> Self {
        Self { node: node.to_owned(), address, pod: None }
    }

    /// The logs of these nodes, or of all, and why others cannot be read from here.
    pub(super) async fn find(
        client: &Client,
        namespace: &str,
        nodes: &[String],
    ) -> Result<(Vec<Self>, Vec<String>)> {
        let api: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let labels = format!("{}={}", annotation::COMPONENT, annotation::NODE_PROXY);
        let leases = api.list(&ListParams::default().labels(&labels)).await;
        let leases = leases.with_context(|| format!("listing the Leases of node proxies in {namespace}"))?;
        let mut logs = Vec::new();
        for lease in &leases.items {
            let name = lease.name_any();
            let Some(node) = name.strip_prefix(annotation::NODE_LEASE_PREFIX) else { continue };
            let address = lease.annotations().get(annotation::STATUS_ADDRESS);
            let address = address.and_then(|address| address.parse().ok());
            if nodes.is_empty() || nodes.iter().any(|wanted| wanted == node) {
                logs.extend(address.map(|address| Self { node: node.to_owned(), address, pod: None }));
            }
        }
        if let Some(missing) = nodes.iter().find(|wanted| logs.iter().all(|log| log.node != **wanted)) {
            bail!(
                "node {missing} has no node proxy with a metrics server: no Lease in {namespace} names its address"
            );
        }
        if logs.is_empty() {
            bail!(
                "no node proxy is running: there is no Lease of one in {namespace}; name another namespace with \
                 --lease-namespace"
            );
        }
        let pods: Api<Pod> = Api::all(client.clone());
        let pods = pods.list(&ListParams::default().labels(POD_LABELS)).await;
        for pod in pods.context("listing the pods of node proxies")?.items {
            let on = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
            let key = (pod.namespace().unwrap_or_default(), pod.name_any());
            logs.iter_mut().filter(|log| log.node == on).for_each(|log| log.pod = Some(key.clone()));
        }
        let running = running_config::ask().ok().flatten().map(|running| running.node);
        let here = running.unwrap_or_else(cluster::hostname);
        let elsewhere: Vec<String> = logs.iter().filter_map(|log| log.unreadable(&here)).collect();
        logs.retain(|log| log.unreadable(&here).is_none());
        if logs.is_empty() || (!nodes.is_empty() && !elsewhere.is_empty()) {
            bail!("{}", elsewhere.join("; "));
        }
        logs.truncate(if nodes.is_empty() { MAX_NODES } else { nodes.len() });
        Ok((logs, elsewhere))
    }

    /// Why the log cannot be read from the machine with this node: it is on the loopback of another one, which only a pod
    /// can be reached on.
    fn unreadable(&self, here: &str) -> Option<String> {
        let is_readable = self.pod.is_some() || self.node == here || !self.address.ip().is_loopback();
        let Self { node, address, .. } = self;
        (!is_readable).then(|| {
            format!(
                "{node}: its node proxy serves connections to its own machine only, at {address}: forward the port with \
                 `ssh -L 10349:{address} {node}`, and observe it with --node {node} --server 127.0.0.1:10349"
            )
        })
    }

    /// Reads the log until the receiver is dropped.
    pub(super) fn follow(self, client: Client, messages: mpsc::Sender<NodeMessage>) {
        tokio::spawn(async move {
            let mut failures = 0;
            while failures < ATTEMPTS && !messages.is_closed() {
                let error = match self.read(&client, &messages, &mut failures).await {
                    Ok(()) => return,
                    Err(error) => error,
                };
                failures += 1;
                let message = NodeMessage::Failed(self.node.clone(), cluster::failure::text(&error));
                if messages.send(message).await.is_err() {
                    return;
                }
                tokio::time::sleep(RETRY).await;
            }
        });
    }

    async fn connect(&self, client: &Client) -> Result<HttpSession> {
        match &self.pod {
            Some((namespace, pod)) => {
                HttpSession::new(forward(client, namespace, pod, self.address.port()).await?).await
            }
            None => HttpSession::direct(self.address, "the node proxy").await,
        }
    }

    async fn read(
        &self,
        client: &Client,
        messages: &mpsc::Sender<NodeMessage>,
        failures: &mut u32,
    ) -> Result<()> {
        let mut session = self.connect(client).await?;
        let (mut after, mut skipped) = (None, None);
        while !messages.is_closed() {
            let path = match after {
                None => "/connections".to_owned(),
                Some(after) => format!("/connections?after={after}"),
            };
            let body = session.get(&path).await?;
            let page: LogPage = serde_json::from_slice(&body).context("reading the node's log")?;
            if let Some(failure) = page.failure {
                bail!("the node cannot read conntrack events: {failure}");
            }
            *failures = 0;
            after = Some(page.next);
            for connection in page.connections {
                let message = NodeMessage::Connection(self.node.clone(), connection);
                if messages.send(message).await.is_err() {
                    return Ok(());
                }
            }
            let more = page.skipped - skipped.replace(page.skipped).unwrap_or(page.skipped).min(page.skipped);
            if more > 0 && messages.send(NodeMessage::Skipped(more)).await.is_err() {
                return Ok(());
            }
            tokio::time::sleep(INTERVAL).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_of_another_machine_is_not_read() {
        let log = |node: &str, address: &str, pod: bool| NodeLog {
            node: node.to_owned(),
            address: address.parse().expect("an address"),
            pod: pod.then(|| ("kube-system".to_owned(), "p".to_owned())),
        };
        for (node, address, pod) in [
            ("box-1", "127.0.0.1:10249", false),
            ("box-2", "127.0.0.1:10249", true),
            ("box-2", "10.0.0.2:10249", false),
        ] {
            assert_eq!(log(node, address, pod).unreadable("box-1"), None, "{node} {address}");
        }
        let why = log("box-2", "127.0.0.1:10249", false).unreadable("box-1").unwrap_or_default();
        assert!(why.contains("ssh -L 10349:127.0.0.1:10249 box-2"), "{why}");
    }
}
