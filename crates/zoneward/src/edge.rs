//! Flags of what a proxy does with a request before it is matched.

use std::ffi::OsString;

use anyhow::{Result, bail};
use clap::{ArgAction, Args, ValueEnum};
use ipnet::IpNet;
use model::route::path::{EscapedSlashes, PathNormalization, PathParameters};
use model::route::{EdgeSettings, TrustedProxies};

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Edge")]
pub struct EdgeArgs {
    /// Gateway: networks of the proxies before it. Forwarded headers (X-Forwarded-*, Forwarded, X-Real-IP) of other
    /// clients are removed
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',', value_parser = network)]
    pub trusted_proxies: Vec<IpNet>,
    /// Merge repeated slashes in paths before matching
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    pub merge_slashes: bool,
    /// Action for paths with an escaped slash (%2f) or backslash (%5c)
    #[arg(long, value_name = "ACTION", default_value = "unescape-and-redirect")]
    pub escaped_slashes: EscapedSlashesAction,
    /// Action for paths with parameters, such as /a;v=1
    #[arg(long, value_name = "ACTION", default_value = "keep")]
    pub path_parameters: PathParametersAction,
}

#[derive(Clone, Debug, Args)]
pub struct GatewayEdgeArgs {
    #[command(flatten)]
    pub edge: EdgeArgs,
    /// Gateway: require a PROXY protocol header (version 1 or 2) on every connection, and accept connections of
    /// --trusted-proxies only
    #[arg(long, requires = "trusted_proxies", help_heading = "Edge")]
    pub proxy_protocol: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EscapedSlashesAction {
    /// Match and forward the path as sent
    Keep,
    /// Respond with 400
    Reject,
    /// Redirect the client to the unescaped path
    UnescapeAndRedirect,
    /// Match and forward the unescaped path
    UnescapeAndForward,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PathParametersAction {
    /// Match and forward the path as sent
    Keep,
    /// Respond with 400
    Reject,
}

/// A network, or one address.
fn network(text: &str) -> Result<IpNet, String> {
    let one = text.parse().map(|ip: std::net::IpAddr| IpNet::from(ip));
    let network =
        text.parse().or(one).map_err(|_| "expected networks, such as 10.0.0.0/8,fd00::/8".to_owned());
    network.map(|network: IpNet| network.trunc())
}

impl EdgeArgs {
    pub fn settings(&self) -> Result<EdgeSettings> {
        let escaped_slashes = match self.escaped_slashes {
            EscapedSlashesAction::Keep => EscapedSlashes::Keep,
            EscapedSlashesAction::Reject => EscapedSlashes::Reject,
            EscapedSlashesAction::UnescapeAndRedirect if !self.merge_slashes => bail!(
                "--merge-slashes=false: a redirect to a path that begins with // leads to another host; add --escaped-slashes=reject, keep or unescape-and-forward"
            ),
            EscapedSlashesAction::UnescapeAndRedirect => EscapedSlashes::Redirect,
            EscapedSlashesAction::UnescapeAndForward => EscapedSlashes::Unescape,
        };
        let path_parameters = match self.path_parameters {
            PathParametersAction::Keep => PathParameters::Keep,
            PathParametersAction::Reject => PathParameters::Reject,
        };
        Ok(EdgeSettings {
            path: PathNormalization { merge_slashes: self.merge_slashes, escaped_slashes, path_parameters },
            trusted_proxies: TrustedProxies::new(self.trusted_proxies.iter().copied()),
            proxy_protocol: false,
        })
    }
}

impl GatewayEdgeArgs {
    pub fn settings(&self) -> Result<EdgeSettings> {
        Ok(EdgeSettings { proxy_protocol: self.proxy_protocol, ..self.edge.settings()? })
    }

    /// The same flags for a child process.
    pub fn words(&self) -> Result<Vec<OsString>> {
        self.settings()?;
        let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
            value().map(|value| value.get_name().to_owned()).unwrap_or_default()
        };
        let mut words = vec![
            format!("--merge-slashes={}", self.edge.merge_slashes),
            format!("--escaped-slashes={}", name(&|| self.edge.escaped_slashes.to_possible_value())),
            format!("--path-parameters={}", name(&|| self.edge.path_parameters.to_possible_value())),
        ];
        let networks: Vec<String> = self.edge.trusted_proxies.iter().map(IpNet::to_string).collect();
        if !networks.is_empty() {
            words.push(format!("--trusted-proxies={}", networks.join(",")));
        }
        words.extend(self.proxy_protocol.then(|| "--proxy-protocol".to_owned()));
        Ok(words.into_iter().map(OsString::from).collect())
    }
}
