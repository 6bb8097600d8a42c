//! `zoneward mesh ...`: L7 traffic, by the embedded proxy or by Envoy.

pub mod bootstrap;
pub mod control;
pub mod proxy;

use anyhow::Result;
use clap::Subcommand;

/// `zoneward mesh ...`
#[derive(Debug, Subcommand)]
pub enum MeshCommand {
    /// Run an L7 proxy as a gateway or as the sidecar of a client
    ///
    /// Serves MeshHTTPRoutes, MeshGatewayHTTPRoutes and MeshTCPRoutes, and balances over the endpoints that the
    /// traffic distribution selects for its node and zone. Updates of routes and endpoints drop no requests. On
    /// SIGINT and SIGTERM it stops accepting connections and drains the open ones.
    #[command(after_help = "\
Examples:
  zoneward mesh proxy --gateway edge
  zoneward mesh proxy --from frontend --outbound 8081=backend --outbound 8082=orders:grpc
  zoneward mesh proxy --from frontend,version=v2 --redirect --node node-a1
  zoneward mesh proxy -f examples/routes/redirect.yaml --gateway edge --bind 127.0.0.1")]
    Proxy(Box<proxy::ProxyArgs>),
    /// Run an xDS control plane for Envoy, with the same routes and endpoints
    ///
    /// Serves every Envoy that connects with a bootstrap of `zoneward mesh bootstrap`. Sends only changed resources,
    /// in an order that drops no requests. If an Envoy rejects an update, its error is logged and shown at /status,
    /// and it keeps its previous configuration. Ports that Envoys cannot bind are in the status of their gateway.
    #[command(after_help = "\
Examples:
  zoneward mesh control
  zoneward mesh control -f examples/routes --listen 127.0.0.1:15010
  zoneward mesh control --listen 0.0.0.0:15010 --tls-cert server.pem --tls-key server-key.pem --client-ca ca.pem
  zoneward mesh control --listen 0.0.0.0:15010 --issue /var/lib/zoneward")]
    Control(Box<control::ControlArgs>),
    /// Print an Envoy bootstrap for `mesh control`
    #[command(after_help = "\
Examples:
  zoneward mesh bootstrap --gateway edge > edge.yaml && envoy -c edge.yaml
  zoneward mesh bootstrap --from frontend --outbound 8081=backend > sidecar.yaml && envoy -c sidecar.yaml
  zoneward mesh bootstrap --from frontend,version=v2 --capture --node node-a1 --server control.mesh:15010 --ca ca.pem")]
    Bootstrap(Box<bootstrap::BootstrapArgs>),
}

/// The name under which a process reports. In a pod, its name is the hostname, and the token says so.
fn pod(connection: &cluster::Connection) -> String {
    let host = cluster::hostname();
    let pod = std::env::var("POD_NAME").ok().filter(|name| !name.is_empty());
    // Several processes of one machine have one hostname.
    match &connection.api_socket {
        Some(_) => format!("{host}-{}", std::process::id()),
        None => pod.unwrap_or(host),
    }
}

pub fn run(command: &MeshCommand) -> Result<bool> {
    match command {
        MeshCommand::Proxy(args) => proxy::run(args),
        MeshCommand::Control(args) => control::run(args),
        MeshCommand::Bootstrap(args) => bootstrap::run(args),
    }
}
