//! The status listener of a controller: `/api/status` answers with the report, all other paths are the dashboard. It is
//! on loopback unless told otherwise.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use clap::Args;
use cluster::Connection;
use cluster::admin_server::access::AdminAccessArgs;
use cluster::admin_server::{self, AdminPage, AdminRoutes};
use controller::ControllerConfig;
use http::StatusCode;
use insight::dashboard::Dashboard;
use kube::Client;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Where the configuration of the controller is, and its key there.
pub(super) const CONFIGURATION_PATH: &str = "/configz";
pub(super) const PLANNING: &str = "planning.zoneward.dev";
/// The default address.
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_273);

#[derive(Clone, Debug, Args)]
pub struct StatusListenerArgs {
    /// Listen address of the dashboard and of the status report, which `zoneward status` reads; off loopback, as for
    /// /metrics, HTTPS and a token are required [default: 127.0.0.1:10273, or a free port if it is in use]
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = crate::cli::listen_address)]
    pub status_bind_address: Option<SocketAddr>,
    /// Let viewers of the dashboard apply a recommended change with a token that they type in
    #[arg(long)]
    pub allow_apply: bool,
}

/// A bound status listener.
pub struct StatusListener {
    listener: TcpListener,
    address: SocketAddr,
    allow_apply: bool,
}

impl StatusListener {
    pub async fn bind(args: &StatusListenerArgs) -> Result<Self> {
        let flag = "--status-bind-address";
        let listener = match args.status_bind_address {
            Some(address) => admin_server::listen(address, flag).await?,
            None => match TcpListener::bind(ADDRESS).await {
                Ok(listener) => listener,
                Err(_) => admin_server::listen(SocketAddr::new(ADDRESS.ip(), 0), flag).await?,
            },
        };
        let address = listener.local_addr().context("address of the status listener")?;
        Ok(Self { listener, address, allow_apply: args.allow_apply })
    }

    /// For the annotation of the leader's Lease.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the dashboard for people.
    pub fn url(&self) -> String {
        let scheme = if self.is_loopback() { "http" } else { "https" };
        format!("{scheme}://{}/", self.address)
    }

    fn is_loopback(&self) -> bool {
        self.address.ip().to_canonical().is_loopback()
    }

    /// Serves the reports and the configuration of a controller until `stop` is true. `connection` leads to the API for changes
    /// with the token of a viewer.
    pub async fn serve(
        self,
        controller: &ControllerConfig,
        access: &AdminAccessArgs,
        client: Client,
        connection: Connection,
        stop: watch::Receiver<bool>,
    ) -> Result<()> {
        let (board, clock) = (controller.status.clone(), &controller.clock);
        let on_loopback = self.is_loopback();
        let access = access.access(self.address, Some(client.clone()), clock)?;
        let connection = Some(connection).filter(|_| self.allow_apply);
        let dashboard = Dashboard::start(board, client, connection, on_loopback, clock.clone(), stop.clone());
        let configuration = json!({ PLANNING: controller.settings.planning });
        let routes = AdminRoutes::default()
            .page(CONFIGURATION_PATH, move |_| AdminPage::json(StatusCode::OK, &configuration))
            .requests(move |request| dashboard.clone().respond(request));
        tokio::spawn(admin_server::serve(self.listener, routes.with_access(access), stop));
        Ok(())
    }
}
