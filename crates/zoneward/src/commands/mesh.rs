//! `zoneward mesh ...`: L7, by the proxy in this program or by Envoys.

pub mod bootstrap;
pub mod control;
pub mod proxy;

use anyhow::Result;
use clap::Subcommand;

/// `zoneward mesh ...`
#[derive(Debug, Subcommand)]
pub enum MeshCommand {
    /// Be the L7 proxy: a gateway, or the sidecar of a client
    ///
    /// Obeys MeshHTTPRoutes, MeshGatewayHTTPRoutes and MeshTCPRoutes, and sends to the endpoints that traffic
    /// distribution chooses for the node and zone that it is in. Routes and endpoints change without a request being
    /// dropped. On SIGINT and SIGTERM it takes no new connections and lets the open ones end.
    #[command(after_help = "\
Examples:
  zoneward mesh proxy --gateway edge
  zoneward mesh proxy --from frontend --outbound 8081=backend --outbound 8082=orders:grpc
  zoneward mesh proxy --from frontend,version=v2 --redirect --node node-a1
  zoneward mesh proxy -f examples/routes/redirect.yaml --gateway edge --bind 127.0.0.1")]
    Proxy(Box<proxy::ProxyArgs>),
    /// Tell Envoys what to do: the same routes and endpoints by delta xDS
    ///
    /// Serves every Envoy that connects with a bootstrap of `zoneward mesh bootstrap`. Only what changed is sent, in an
    /// order that loses no request; what an Envoy refuses is told in its words at /status and in the log, and it goes on
    /// with what it had.
    #[command(after_help = "\
Examples:
  zoneward mesh control
  zoneward mesh control -f examples/routes --listen 127.0.0.1:15010
  zoneward mesh control --listen 0.0.0.0:15010 --tls-cert server.pem --tls-key server-key.pem --client-ca ca.pem
  zoneward mesh control --listen 0.0.0.0:15010 --token-file token")]
    Control(Box<control::ControlArgs>),
    /// Print what an Envoy is started with: who it is, and where `mesh control` is
    #[command(after_help = "\
Examples:
  zoneward mesh bootstrap --gateway edge > edge.yaml && envoy -c edge.yaml
  zoneward mesh bootstrap --from frontend --outbound 8081=backend > sidecar.yaml && envoy -c sidecar.yaml
  zoneward mesh bootstrap --from frontend,version=v2 --capture --node node-a1 --server control.mesh:15010 --ca ca.pem")]
    Bootstrap(Box<bootstrap::BootstrapArgs>),
}

/// Runs the command.
pub fn run(command: &MeshCommand) -> Result<bool> {
    match command {
        MeshCommand::Proxy(args) => proxy::run(args),
        MeshCommand::Control(args) => control::run(args),
        MeshCommand::Bootstrap(args) => bootstrap::run(args),
    }
}
