//! Reports of traffic to the leading controller. Its address is an annotation of the leader's Lease, which is read when
//! no leader is known or the known one fails: a watch of a Lease that is renewed every two seconds would be dearer.
//!
//! The controller's certificate may be self-signed; the annotation has its digest, and only the leader writes the Lease.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use model::annotation;
use plan::gateway_api::PortReport;
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};

use crate::Connection;
use crate::certificate_check::tls_client;

/// The path of reports and sums.
pub const PATH: &str = "/ledger";
/// The path of reports of a proxy about its own ports.
pub const PORTS_PATH: &str = "/ledger/ports";
/// The path of reports about Envoys, which are about gateways of all namespaces: a right of its own.
pub const ENVOYS_PATH: &str = "/ledger/envoys";
/// Deadline of a report.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest response: the podCIDRs of 10,000 Nodes.
const MAX_REPLY_BYTES: usize = 4 << 20;

/// The SHA-256 of a certificate, in hexadecimal.
pub fn certificate_digest(certificate: &[u8]) -> String {
    let digest = ::ring::digest::digest(&::ring::digest::SHA256, certificate);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The value of the annotation for a controller at an address.
pub fn https_address(host: impl fmt::Display, digest: &str) -> String {
    format!("https://{host}#sha256:{digest}")
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum LedgerAddress {
    Unix(String),
    Https { host: String, digest: String },
}

impl LedgerAddress {
    /// A socket is for processes of its machine.
    fn is_reachable(&self) -> bool {
        match self {
            Self::Unix(path) => Path::new(path).exists(),
            Self::Https { .. } => true,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            return path.starts_with('/').then(|| Self::Unix(path.to_owned()));
        }
        let (host, digest) = text.strip_prefix("https://")?.split_once("#sha256:")?;
        let is_digest = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_host = host.parse::<std::net::SocketAddr>().is_ok();
        (is_digest && is_host).then(|| Self::Https { host: host.to_owned(), digest: digest.to_lowercase() })
    }
}

/// There is no controller that takes reports, as beside a kube-controller-manager alone.
#[derive(Debug)]
pub struct NoLeader;

impl fmt::Display for NoLeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no Zoneward controller leads")
    }
}

impl std::error::Error for NoLeader {}

/// Namespace and name of the leading controller's Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerLease(pub Option<(String, String)>);

/// Parses the flag.
pub fn controller_lease(text: &str) -> Result<ControllerLease, String> {
    if text.is_empty() {
        return Ok(ControllerLease(None));
    }
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(ControllerLease(Some((namespace.to_owned(), name.to_owned()))))
        }
        _ => Err("expected NAMESPACE/NAME".to_owned()),
    }
}

/// Sends reports to the leader.
#[derive(Clone)]
pub struct LedgerClient {
    client: Client,
    connection: Connection,
    /// Namespace and name of the leader's Lease.
    lease: (String, String),
    /// Where to report to instead of what the Lease says.
    socket: Option<LedgerAddress>,
    leader: Option<LedgerAddress>,
}

impl LedgerClient {
    pub fn new(client: Client, connection: Connection, lease: (String, String)) -> Self {
        Self { client, connection, lease, socket: None, leader: None }
    }

    /// Reports to a unix socket, and reads no Lease.
    pub fn to_socket(client: Client, connection: Connection, path: &Path) -> Self {
        let socket = Some(LedgerAddress::Unix(path.display().to_string()));
        Self { socket, ..Self::new(client, connection, Default::default()) }
    }

    /// Sends a report of traffic. After an error the next one goes to the leader of then.
    pub async fn send<R: DeserializeOwned>(&mut self, report: &impl Serialize) -> Result<R> {
        self.post(PATH, report).await
    }

    /// Sends a report of ports that could not be bound, to [`PORTS_PATH`] or [`ENVOYS_PATH`].
    pub async fn send_ports(&mut self, path: &str, report: &PortReport) -> Result<()> {
        let _: IgnoredAny = self.post(path, report).await?;
        Ok(())
    }

    async fn post<R: DeserializeOwned>(&mut self, path: &str, report: &impl Serialize) -> Result<R> {
        let sent = tokio::time::timeout(TIMEOUT, self.post_now(path, report)).await;
        let sent = sent.unwrap_or_else(|_| Err(anyhow!("timed out")));
        if sent.is_err() {
            self.leader = None;
        }
        sent
    }

    async fn post_now<R: DeserializeOwned>(&mut self, path: &str, report: &impl Serialize) -> Result<R> {
        let address = match self.leader.clone().or_else(|| self.socket.clone()) {
            Some(address) => address,
            None => self.find_leader().await?,
        };
        let body = serde_json::to_vec(report).context("writing the report")?;
        let request = Request::post(path).header(CONTENT_TYPE, "application/json");
        let reply = match &address {
            LedgerAddress::Unix(socket) => {
                let stream =
                    UnixStream::connect(socket).await.with_context(|| format!("connecting to {socket}"))?;
                exchange(stream, request.header(HOST, "localhost").body(Full::new(Bytes::from(body)))?)
                    .await?
            }
            LedgerAddress::Https { host, digest } => {
                let token = crate::bearer_token(&self.connection).await?;
                let request = request.header(HOST, host).header(AUTHORIZATION, format!("Bearer {token}"));
                let stream = connect(host, digest).await.with_context(|| format!("connecting to {host}"))?;
                exchange(stream, request.body(Full::new(Bytes::from(body)))?).await?
            }
        };
        self.leader = Some(address);
        Ok(reply)
    }

    async fn find_leader(&self) -> Result<LedgerAddress> {
        let (namespace, name) = &self.lease;
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
        let lease =
            leases.get_opt(name).await.with_context(|| format!("reading Lease {namespace}/{name}"))?;
        let Some(lease) = lease else { return Err(NoLeader.into()) };
        let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        if holder.is_empty() {
            return Err(NoLeader.into());
        }
        let address = lease.metadata.annotations.and_then(|mut all| all.remove(annotation::LEDGER_ADDRESS));
        let Some(address) = address else {
            bail!(
                "the leading controller takes no reports: see --advertise-address of `zoneward controller`"
            );
        };
        let key = annotation::LEDGER_ADDRESS;
        let wrong = || format!("Lease {namespace}/{name}: annotation {key}: {address:?} is not an address");
        let parsed: Option<Vec<LedgerAddress>> = address.split(' ').map(LedgerAddress::parse).collect();
        let usable = parsed.with_context(wrong)?.into_iter().find(LedgerAddress::is_reachable);
        usable.context(
            "the leading controller takes reports on its own machine only: see --metrics-bind-address of `zoneward up`",
        )
    }
}

async fn connect(host: &str, digest: &str) -> Result<TlsStream<TcpStream>> {
    let digest = digest.to_owned();
    let accepts = move |own: &CertificateDer<'_>, _: &[CertificateDer<'_>]| certificate_digest(own) == digest;
    let mut config = tls_client(accepts).context("configuring TLS")?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let address: std::net::SocketAddr = host.parse().context("the address of the leader")?;
    let stream = TcpStream::connect(address).await?;
    Ok(TlsConnector::from(Arc::new(config)).connect(ServerName::from(address.ip()), stream).await?)
}

async fn exchange<R: DeserializeOwned>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<R> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let response = sender.send_request(request).await;
    let read = async {
        let (head, body) = response?.into_parts();
        let body = Limited::new(body, MAX_REPLY_BYTES).collect().await.map_err(|error| anyhow!(error))?;
        Ok::<_, anyhow::Error>((head.status, body.to_bytes()))
    };
    let read = read.await;
    connection.abort();
    let (status, body) = read?;
    if status != StatusCode::OK {
        let text = String::from_utf8_lossy(&body[..body.len().min(300)]).trim().to_owned();
        bail!("the controller answered {status}: {text}");
    }
    serde_json::from_slice(&body).context("reading the reply")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_annotation_are_parsed_and_others_refused() {
        let digest = certificate_digest(b"certificate");
        let text = https_address("[fd00::1]:10270", &digest);
        let parsed = LedgerAddress::Https { host: "[fd00::1]:10270".to_owned(), digest: digest.clone() };
        assert_eq!(LedgerAddress::parse(&text), Some(parsed));
        let socket = LedgerAddress::Unix("/run/x.sock".to_owned());
        assert_eq!(LedgerAddress::parse("unix:/run/x.sock"), Some(socket));
        let plain = format!("http://10.0.0.1:80#sha256:{digest}");
        let name = format!("https://attacker.example:443#sha256:{digest}");
        for wrong in ["", "unix:x", "https://10.0.0.1:443", "https://10.0.0.1:443#sha256:ab", &plain, &name] {
            assert_eq!(LedgerAddress::parse(wrong), None, "{wrong}");
        }
    }
}
