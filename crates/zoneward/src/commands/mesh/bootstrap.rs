//! `zoneward mesh bootstrap`: the bootstrap configuration of an Envoy.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{ArgGroup, Args, ValueEnum};
use clock::Clock;
use model::Name;
use store::credentials::Authority;
use xds::bootstrap::{Bootstrap, XdsClientTls};
use xds::identity::{CAPTURE_PORT, EnvoyIdentity, EnvoyRole, SidecarListeners};

use crate::cli::Format;
use mesh::embedded_proxy::outbound;
use output::{print_text, value_text};

/// `zoneward mesh bootstrap`
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("role").required(true).args(["gateway", "from"]))]
pub struct BootstrapArgs {
    /// MeshGateway that the Envoy serves, else Gateway of the Gateway API
    #[arg(long, value_name = "NAME")]
    pub gateway: Option<String>,
    /// Run the Envoy as the sidecar of a client: Service and labels of its pod
    #[arg(long, value_name = "SERVICE[,TAG=VALUE...]")]
    pub from: Option<String>,
    /// Namespace
    #[arg(short = 'n', long, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// Sidecar: listen on a loopback port for a Service; repeatable
    #[arg(long, value_name = "PORT=SERVICE[:PORT]", conflicts_with = "gateway")]
    pub outbound: Vec<String>,
    /// Sidecar: accept connections to Services that are redirected to this port [default: 15001 without --outbound]
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "15001")]
    #[arg(conflicts_with = "gateway", value_parser = clap::value_parser!(u16).range(1..))]
    pub capture: Option<u16>,
    /// Gateway: listen address
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED), conflicts_with = "from")]
    pub bind: IpAddr,
    /// Gateway: listen address of one port, such as 443=0.0.0.0:8443; repeatable
    #[arg(long, value_name = "PORT=ADDRESS:PORT", conflicts_with = "from")]
    pub listen: Vec<String>,
    /// Node of the Envoy [default: $NODE_NAME]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Zone of the Envoy [default: that of the Node]
    #[arg(long, value_name = "NAME")]
    pub zone: Option<String>,
    /// Node ID of the Envoy [default: role and hostname]
    #[arg(long, value_name = "NAME")]
    pub id: Option<String>,
    /// Address of `zoneward mesh control`
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:15010")]
    pub server: String,
    /// CA of the server certificate (PEM, on the Envoy host); without it the connection is not encrypted
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Data directory of `zoneward up` on this host, whose authority issues a client certificate for this role, valid
    /// for a year; written to pki/envoy in it unless --cert and --key name the files
    #[arg(long, value_name = "DIR")]
    pub issue: Option<PathBuf>,
    /// Name in the server certificate [default: the host of --server]
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,
    /// Client certificate (PEM, on the Envoy host)
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Client key (PEM, on the Envoy host)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// File with the token of the server; the token is included in the output
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Listen address of the Envoy admin interface [default: disabled]
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = crate::cli::listen_address)]
    pub admin: Option<SocketAddr>,
    /// xDS variant
    #[arg(long, value_name = "PROTOCOL", default_value = "delta")]
    pub protocol: XdsProtocol,
    /// Output file instead of standard output, for init containers without a shell
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Output format
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "yaml")]
    pub format: BootstrapFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum XdsProtocol {
    /// Incremental xDS
    Delta,
    /// State-of-the-world xDS
    Whole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BootstrapFormat {
    /// JSON
    Json,
    /// YAML
    Yaml,
}

pub fn run(args: &BootstrapArgs) -> Result<bool> {
    let format = match args.format {
        BootstrapFormat::Json => Format::Json,
        BootstrapFormat::Yaml => Format::Yaml,
    };
    let text = value_text(&bootstrap(args)?.value(), format)?;
    match &args.write {
        None => print_text(&text)?,
        Some(file) => std::fs::write(file, text).with_context(|| format!("--write {}", file.display()))?,
    }
    Ok(true)
}

fn bootstrap(args: &BootstrapArgs) -> Result<Bootstrap> {
    let node = args.node.clone().or_else(|| std::env::var("NODE_NAME").ok()).unwrap_or_default();
    let identity =
        EnvoyIdentity { namespace: args.namespace.clone(), role: role(args)?, node, zone: args.zone.clone() };
    let id = args.id.clone().unwrap_or_else(|| format!("{}@{}", identity.title(), cluster::hostname()));
    let wrong = || format!("--server {}: expected HOST:PORT, such as 127.0.0.1:15010", args.server);
    let (host, port) = args.server.rsplit_once(':').with_context(wrong)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = port.parse().ok().filter(|port| *port > 0 && !host.is_empty()).with_context(wrong)?;
    let text = |path: &PathBuf| path.display().to_string();
    let issued = args.issue.as_deref().map(|data| issue(args, data, &identity)).transpose()?;
    let (authority, pair) = match issued {
        Some((authority, pair)) => (Some(authority), Some(pair)),
        None => (args.ca.clone(), args.cert.clone().zip(args.key.clone())),
    };
    if authority.is_none() && (pair.is_some() || args.server_name.is_some()) {
        bail!("--cert, --key and --server-name need --ca, or --issue");
    }
    let tls = authority.map(|authority| XdsClientTls {
        authority: text(&authority),
        client_certificate: pair.as_ref().map(|(cert, key)| (text(cert), text(key))),
        server_name: args.server_name.clone().unwrap_or_else(|| host.to_owned()),
    });
    let token = args.token_file.as_deref().map(super::control::token).transpose()?;
    Ok(Bootstrap {
        identity,
        id,
        host: host.to_owned(),
        port,
        tls,
        token: token.map(|token| token.to_string()),
        admin: args.admin,
        state_of_the_world: args.protocol == XdsProtocol::Whole,
    })
}

/// Issues the client certificate of a role, and returns the files of the authority, the certificate and the key.
fn issue(
    args: &BootstrapArgs,
    data: &Path,
    identity: &EnvoyIdentity,
) -> Result<(PathBuf, (PathBuf, PathBuf))> {
    let authority = Authority::open(data).context("--issue")?;
    let issued = authority.issue_client(&identity.spiffe_id(), Clock::system().timestamp());
    let issued = issued.context("--issue")?;
    // An absolute path: Envoy may run in another folder.
    let data = data.canonicalize().with_context(|| format!("--issue {}", data.display()))?;
    let folder = data.join("pki/envoy");
    let name = identity.title().replace('/', ".");
    let pair = match (&args.cert, &args.key) {
        (Some(certificate), Some(key)) => (certificate.clone(), key.clone()),
        _ => {
            std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
            (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")))
        }
    };
    for (path, text) in [(&pair.0, &issued.certificate), (&pair.1, &issued.key)] {
        store::credentials::write_private(path, text.as_bytes())
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok((args.ca.clone().unwrap_or_else(|| data.join("pki/ca.crt")), pair))
}

fn role(args: &BootstrapArgs) -> Result<EnvoyRole> {
    let namespace = Name::new(&args.namespace);
    if let Some(gateway) = &args.gateway {
        let mut port_overrides = BTreeMap::new();
        for text in &args.listen {
            let wrong = || format!("--listen {text}: expected PORT=ADDRESS:PORT, such as 443=0.0.0.0:8443");
            let (port, at) = text.split_once('=').with_context(wrong)?;
            port_overrides
                .insert(port.parse().ok().with_context(wrong)?, at.parse().ok().with_context(wrong)?);
        }
        return Ok(EnvoyRole::Gateway { name: gateway.clone(), bind: args.bind, port_overrides });
    }
    let from = args.from.as_deref().context("--gateway or --from is required")?;
    let mesh::ProxyRole::Sidecar(service, tags) =
        mesh::ProxyRole::sidecar(from, &namespace).context("--from")?
    else {
        bail!("--from {from}: expected a Service");
    };
    let mut outbounds = BTreeMap::new();
    for text in &args.outbound {
        let wish = outbound(text, &namespace)?;
        if wish.listen == 0 {
            bail!("--outbound {text}: port 0 is not supported by Envoy");
        }
        let port = wish.port.map(|port| format!(":{port}")).unwrap_or_default();
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), wish.listen);
        outbounds.insert(at, format!("{}{port}", wish.service));
    }
    let capture = args.capture.or_else(|| outbounds.is_empty().then_some(CAPTURE_PORT));
    Ok(EnvoyRole::Sidecar {
        from: service.name.to_string(),
        tags: tags.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
        listeners: SidecarListeners { capture, outbounds },
    })
}
