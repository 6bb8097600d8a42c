//! `zoneward mesh ...`: L7, by the proxy in this program.

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
}

/// Runs the command.
pub fn run(command: &MeshCommand) -> Result<bool> {
    match command {
        MeshCommand::Proxy(args) => proxy::run(args),
    }
}
