//! DNS on a loopback address of this machine: names of the cluster from the watched objects, all others forwarded.
//!
//! ```text
//! API -> watch -> DnsTable (snapshot, reverse index)
//!                    |
//! UDP, TCP -> wire -> plan::dns::answer -> wire -> client
//!                    |
//!                 Forward, aliases out of the cluster -> forwarder -> the machine's nameservers
//! ```
//!
//! Only whole names arrive here: search lists (`search` in resolv.conf) are appended by the resolver of the client.
//! Answers are not cached: those of the cluster come from memory, and the machine's resolver caches the others.

mod forwarder;
mod metrics;
pub mod resolver_config;
mod server;
mod table;
mod wire;

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use clock::Clock;
use kube::Client;
use model::random::Random;
use plan::FeatureGates;
use plan::dns::DnsName;
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use forwarder::{Forwarder, Upstreams};
use metrics::DnsMetrics;
use server::DnsService;
use table::{AskingNode, DnsTable};

/// systemd-resolved has 127.0.0.53 and 127.0.0.54.
const DEFAULT_IP: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 10);
const DNS_PORT: u16 = 53;
/// How long the resolver's configuration waits for the ranges of cluster IPs.
const RANGES_TIMEOUT: Duration = Duration::from_secs(10);

/// The flags of DNS, for every command that serves it.
#[derive(Clone, Debug, Args)]
pub struct DnsFlags {
    /// Serve DNS on this loopback address, for names of Services and by forwarding for all others [default without a
    /// value: 127.0.0.10:53]
    #[arg(long, help_heading = "DNS", value_name = "IP[:PORT]", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "127.0.0.10:53", value_parser = loopback_address)]
    pub dns: Option<SocketAddr>,
    /// Domain of the names of Services
    #[arg(
        long,
        help_heading = "DNS",
        value_name = "DOMAIN",
        default_value = "cluster.local",
        requires = "dns"
    )]
    #[arg(value_parser = domain_name)]
    pub cluster_domain: DnsName,
    /// Nameservers for all other names; at most 3 [default: those of /etc/resolv.conf, or of systemd-resolved]
    #[arg(long, help_heading = "DNS", value_name = "IP[:PORT],...", value_delimiter = ',', requires = "dns")]
    #[arg(value_parser = nameserver)]
    pub dns_upstream: Vec<SocketAddr>,
    /// Let systemd-resolved ask this DNS for names of Services, by a file in /etc/systemd/resolved.conf.d that is removed
    /// at the end
    #[arg(long, help_heading = "DNS", requires = "dns")]
    pub configure_resolver: bool,
}

impl DnsFlags {
    /// The flags as words, for a child process.
    pub fn words(&self) -> Vec<OsString> {
        let Some(address) = self.dns else { return Vec::new() };
        let mut words = vec![format!("--dns={address}"), format!("--cluster-domain={}", self.cluster_domain)];
        words.extend(self.dns_upstream.iter().map(|server| format!("--dns-upstream={server}")));
        words.extend(self.configure_resolver.then(|| "--configure-resolver".to_owned()));
        words.into_iter().map(OsString::from).collect()
    }
}

/// An address with or without a port.
fn nameserver(text: &str) -> Result<SocketAddr, String> {
    let with_port = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, DNS_PORT));
    with_port
        .or_else(|_| text.parse())
        .map_err(|_| "expected an address such as 192.0.2.1 or 192.0.2.1:53".to_owned())
}

/// An open resolver would answer, and amplify, for everyone.
fn loopback_address(text: &str) -> Result<SocketAddr, String> {
    let address = nameserver(text)?;
    match address.ip().is_loopback() {
        true => Ok(address),
        false => Err(format!(
            "expected a loopback address such as {DEFAULT_IP}: DNS is served to this machine only"
        )),
    }
}

fn domain_name(text: &str) -> Result<DnsName, String> {
    let name = DnsName::parse(text)?;
    let is_plain = |label: &str| label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    match !name.labels().is_empty() && name.labels().iter().all(|label| is_plain(label)) {
        true => Ok(name),
        false => Err("expected a domain such as cluster.local".to_owned()),
    }
}

/// Sockets that are bound before anything else starts, so that a failure is said at once.
#[derive(Debug)]
pub struct DnsServer {
    flags: DnsFlags,
    address: SocketAddr,
    udp: UdpSocket,
    tcp: TcpListener,
}

/// What the server needs beside its flags.
pub struct DnsContext {
    pub client: Client,
    /// Name of this machine's Node.
    pub node: String,
    /// Zone of this machine, where its Node has none or does not exist.
    pub zone: Option<String>,
    /// Those of the node proxy.
    pub gates: FeatureGates,
    /// File of the objects, for a start while the API is away.
    pub snapshot: Option<PathBuf>,
    pub clock: Clock,
    pub random: Random,
}

impl DnsServer {
    /// `None` without `--dns`.
    pub async fn bind(flags: &DnsFlags) -> Result<Option<Self>> {
        let Some(wanted) = flags.dns else { return Ok(None) };
        let advice = || {
            format!(
                "listening on {wanted} for DNS: use another loopback address with --dns=IP:PORT; ports below 1024 need root or CAP_NET_BIND_SERVICE"
            )
        };
        let tcp = TcpListener::bind(wanted).await.with_context(advice)?;
        let address = tcp.local_addr().context("address of DNS")?;
        let udp = UdpSocket::bind(address).await.with_context(advice)?;
        if flags.configure_resolver {
            resolver_config::check_writable()?;
        }
        Ok(Some(Self { flags: flags.clone(), address, udp, tcp }))
    }

    /// Serves until `stop` is true, then restores the resolver's configuration.
    pub fn start(
        self,
        context: DnsContext,
        registry: &mut Registry,
        stop: watch::Receiver<bool>,
    ) -> JoinHandle<()> {
        let metrics = DnsMetrics::register(registry);
        tokio::spawn(self.run(context, metrics, stop))
    }

    async fn run(self, context: DnsContext, metrics: DnsMetrics, stop: watch::Receiver<bool>) {
        let Self { flags, address, udp, tcp } = self;
        info!(%address, domain = %flags.cluster_domain, "serving DNS");
        let upstreams = Upstreams::new(flags.dns_upstream.clone(), address, context.clock.clone());
        let asking = AskingNode { name: context.node, zone: context.zone, gates: context.gates };
        let table = Arc::new(RwLock::new(DnsTable::new(flags.cluster_domain.clone(), address.ip(), asking)));
        let forwarder = Forwarder::new(upstreams);
        let service = Arc::new(DnsService::new(table.clone(), forwarder, metrics, context.clock.clone()));
        let watching = table::keep(
            table.clone(),
            context.client,
            context.random,
            context.clock,
            context.snapshot,
            stop.clone(),
        );
        let ((), (), (), ()) = tokio::join!(
            watching,
            server::serve_udp(udp, service.clone(), stop.clone()),
            server::serve_tcp(tcp, service, stop.clone()),
            keep_resolver(flags, address, table, stop),
        );
    }
}

/// Configures the resolver once names can be answered, or says how; restores it at the end.
async fn keep_resolver(
    flags: DnsFlags,
    address: SocketAddr,
    table: Arc<RwLock<DnsTable>>,
    mut stop: watch::Receiver<bool>,
) {
    let ready = async {
        let mut waited = Duration::ZERO;
        loop {
            let (synced, ranges) = table::ranges(&table);
            if synced && (!ranges.is_empty() || waited >= RANGES_TIMEOUT) {
                return ranges;
            }
            const PERIOD: Duration = Duration::from_millis(50);
            tokio::time::sleep(PERIOD).await;
            waited += PERIOD;
        }
    };
    let ranges = tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => return,
        ranges = ready => ranges,
    };
    let domains = resolver_config::domains(&flags.cluster_domain, &ranges);
    if !flags.configure_resolver {
        info!(
            file = resolver_config::PATH,
            DNS = %address,
            Domains = domains,
            "names of Services need a resolver that asks this DNS: use --configure-resolver, or write this file for systemd-resolved"
        );
        return;
    }
    match resolver_config::install(address, &domains).await {
        Ok(()) => info!(file = resolver_config::PATH, "systemd-resolved configured"),
        Err(error) => warn!(error = format!("{error:#}"), "systemd-resolved was not configured"),
    }
    let _ = stop.wait_for(|stop| *stop).await;
    match resolver_config::remove().await {
        Ok(_) => {
            info!(file = resolver_config::PATH, "configuration of systemd-resolved removed")
        }
        Err(error) => warn!(
            error = format!("{error:#}"),
            "configuration of systemd-resolved was not removed: run `zoneward cleanup`"
        ),
    }
}

#[cfg(test)]
mod tests;
