//! The status listener of a controller: `/api/status` answers with the report, all other paths are the dashboard. It is
//! on loopback unless told otherwise.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use cluster::Connection;
use cluster::admin_server::access::AdminAccessArgs;
use cluster::admin_server::{self, AdminPage, AdminRoutes};
use controller::{ControllerConfig, StatusBoard, StatusQuery, StatusUnavailable};
use http::StatusCode;
use kube::Client;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::commands::dashboard::Dashboard;

/// The default address.
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_273);
/// Where the configuration of the controller is, and its key there.
pub(super) const CONFIGURATION_PATH: &str = "/configz";
pub(super) const PLANNING: &str = "planning.zoneward.dev";
/// What the ledger keeps.
const MAX_WINDOW: u64 = 24 * 3_600;

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

/// The response for `/api/status`.
pub(in crate::commands) async fn report_page(board: &StatusBoard, parameters: &str) -> AdminPage {
    match query(parameters) {
        Ok(query) => answer(board, query).await,
        Err(why) => error(StatusCode::BAD_REQUEST, &why),
    }
}

async fn answer(board: &StatusBoard, query: StatusQuery) -> AdminPage {
    match board.ask(query).await {
        Ok(report) => match serde_json::to_value(&report) {
            Ok(value) => AdminPage::json(StatusCode::OK, &value),
            Err(why) => error(StatusCode::INTERNAL_SERVER_ERROR, &why.to_string()),
        },
        Err(StatusUnavailable::NotLeading) => {
            error(StatusCode::MISDIRECTED_REQUEST, &StatusUnavailable::NotLeading.to_string())
        }
        Err(why) => error(StatusCode::SERVICE_UNAVAILABLE, &why.to_string()),
    }
}

fn error(status: StatusCode, message: &str) -> AdminPage {
    AdminPage::json(status, &json!({"error": message}))
}

/// `namespace`, `name` and `window` in seconds; other parameters are refused.
fn query(text: &str) -> Result<StatusQuery, String> {
    let mut query = StatusQuery::default();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        match key {
            // Names of Kubernetes need no encoding; another text names nothing.
            "namespace" => query.namespace = Some(value.to_owned()),
            "name" => query.name = Some(value.to_owned()),
            "window" => {
                let seconds = value.parse::<u64>().ok().filter(|seconds| *seconds > 0);
                let seconds =
                    seconds.ok_or_else(|| format!("window={value}: expected seconds, 1 or more"))?;
                query.window = Some(Duration::from_secs(seconds.min(MAX_WINDOW)));
            }
            other => return Err(format!("unknown parameter {other}: there are namespace, name and window")),
        }
    }
    if query.name.is_some() && query.namespace.is_none() {
        return Err("name requires namespace".to_owned());
    }
    Ok(query)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_checked() {
        let parsed = query("namespace=shop&name=cart&window=60").expect("valid");
        assert_eq!((parsed.namespace.as_deref(), parsed.name.as_deref()), (Some("shop"), Some("cart")));
        assert_eq!(parsed.window, Some(Duration::from_secs(60)));
        assert_eq!(query("").map(|query| query.window), Ok(None));
        assert_eq!(query("window=9999999999").map(|q| q.window), Ok(Some(Duration::from_secs(MAX_WINDOW))));
        for wrong in ["window=0", "window=-1", "window=x", "name=cart", "verbose=1", "window"] {
            assert!(query(wrong).is_err(), "{wrong}");
        }
    }
}
