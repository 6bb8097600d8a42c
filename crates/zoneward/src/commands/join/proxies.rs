//! The flags of sidecars and gateways on a joined machine; those of `zoneward up`, but that gateways have to be asked for.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Result, bail};
use clap::Args;
use clock::Clock;
use kube::Client;

use super::proxy_credentials::ProxyCredentials;
use crate::cli;
use crate::commands::up::mesh::{ProxyAccess, ProxySupervisor, ProxySupervisorSettings};
use crate::edge::GatewayEdgeArgs;
use cluster::admin_server::access::AdminAccessArgs;
use cluster::log::LogFormat;

#[derive(Debug, Args)]
pub struct ProxyFlags {
    /// Run the gateways of the API on this machine, too; its token needs --gateways
    #[arg(long)]
    pub gateways: bool,
    /// Listen address of MeshGateways; repeatable [default: all addresses]
    #[arg(long, value_name = "IP", requires = "gateways")]
    pub mesh_bind: Vec<IpAddr>,
    /// Address of Gateways of the Gateway API on this machine, or a range of at most 256; repeatable. A port of an
    /// address is that of one Gateway [default: those of --mesh-bind, or the machine's address]
    #[arg(long, value_name = "IP|CIDR", requires = "gateways")]
    pub gateway_address: Vec<cli::GatewayAddressRange>,
    /// Loopback port of a sidecar for a client and a Service, such as frontend:8081=backend; repeatable. The token needs
    /// --sidecars
    #[arg(long, value_name = "CLIENT:PORT=SERVICE[:PORT]")]
    pub sidecar: Vec<String>,
    /// Listen address of /healthz, /livez, /readyz and /metrics of the first L7 proxy; further proxies use the ports
    /// after it, sidecars in flag order, then gateways; port 0 picks free ports
    #[arg(long, value_name = "[ADDRESS:]PORT", default_value = "127.0.0.1:10280", value_parser = cli::listen_address)]
    pub mesh_metrics_bind_address: SocketAddr,
    #[command(flatten)]
    pub edge: GatewayEdgeArgs,
}

impl ProxyFlags {
    /// `None` if there are neither sidecars nor gateways.
    pub fn supervisor(
        &self,
        node: &str,
        zone: Option<&str>,
        access: &AdminAccessArgs,
        log: LogFormat,
    ) -> Result<Option<ProxySupervisor>> {
        if !self.gateways && self.sidecar.is_empty() {
            return Ok(None);
        }
        let mut common = access.words();
        common.extend(self.edge.words()?);
        common.extend(["--node".into(), node.into()]);
        ProxySupervisor::with(ProxySupervisorSettings {
            common,
            zone,
            bind: &self.mesh_bind,
            machine: cli::gateway_addresses(&self.gateway_address, &self.mesh_bind),
            sidecars: &self.sidecar,
            runs_gateways: self.gateways,
            metrics: self.mesh_metrics_bind_address,
            log,
        })
        .map(Some)
    }

    /// Fails early for flags that are malformed.
    pub fn check(&self) -> Result<()> {
        if self.edge.proxy_protocol && !self.gateways {
            bail!("--proxy-protocol is for gateways: use --gateways");
        }
        self.supervisor("", None, &AdminAccessArgs::default(), LogFormat::Text).map(drop)
    }
}

/// The way of proxies to the API.
pub(super) fn access(client: Client, kubeconfig: &Path, node: &str, clock: &Clock) -> Result<ProxyAccess> {
    Ok(ProxyAccess::Credentials(ProxyCredentials::open(client, kubeconfig, node, clock)?))
}
