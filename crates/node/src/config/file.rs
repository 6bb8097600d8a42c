//! KubeProxyConfiguration v1alpha1, every field of it, as a file holds it and as `--write-config-to` writes it.
//!
//! Fields stay `None` where "not set" and "empty" differ: an explicit `minSyncPeriod: 0s` is obeyed, a missing one is
//! adaptive.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use model::protobuf::MEDIA_TYPE;
use model::{GoDuration, Notice, ObjectRef};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fields;

/// The group and version of the format.
pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The kind of the format.
pub const KIND: &str = "KubeProxyConfiguration";

/// A whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Configuration {
    pub api_version: String,
    pub kind: String,
    pub feature_gates: BTreeMap<String, bool>,
    pub client_connection: ClientConnection,
    pub logging: Logging,
    pub hostname_override: String,
    pub bind_address: Option<String>,
    pub healthz_bind_address: Option<String>,
    pub metrics_bind_address: Option<String>,
    pub bind_address_hard_fail: bool,
    pub enable_profiling: bool,
    pub show_hidden_metrics_for_version: String,
    pub mode: String,
    pub iptables: Iptables,
    pub ipvs: Ipvs,
    pub nftables: Nftables,
    pub winkernel: Winkernel,
    pub detect_local_mode: String,
    pub detect_local: DetectLocal,
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    pub node_port_addresses: Vec<String>,
    pub oom_score_adj: Option<i64>,
    pub conntrack: Conntrack,
    pub config_sync_period: Option<GoDuration>,
    pub port_range: String,
    pub windows_run_as_service: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientConnection {
    pub kubeconfig: String,
    pub accept_content_types: String,
    pub content_type: String,
    pub qps: Option<f64>,
    pub burst: Option<i64>,
}

impl ClientConnection {
    /// Whether the API may answer in protobuf: as in kube-proxy, unless another type is set. Writes are JSON.
    pub fn accepts_protobuf(&self) -> bool {
        let accepted = if self.accept_content_types.trim().is_empty() {
            self.content_type.as_str()
        } else {
            self.accept_content_types.as_str()
        };
        let mut types = accepted.split(',').map(|range| range.split(';').next().unwrap_or_default().trim());
        accepted.trim().is_empty() || types.any(|media_type| media_type == MEDIA_TYPE)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Logging {
    pub format: String,
    /// Nanoseconds as a number, or a duration as text.
    pub flush_frequency: Option<Value>,
    pub verbosity: u32,
    pub vmodule: Vec<Value>,
    pub options: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Iptables {
    pub masquerade_bit: Option<i64>,
    pub masquerade_all: bool,
    pub localhost_node_ports: Option<bool>,
    pub sync_period: Option<GoDuration>,
    pub min_sync_period: Option<GoDuration>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ipvs {
    pub sync_period: Option<GoDuration>,
    pub min_sync_period: Option<GoDuration>,
    pub scheduler: String,
    #[serde(rename = "excludeCIDRs")]
    pub exclude_cidrs: Vec<String>,
    #[serde(rename = "strictARP")]
    pub strict_arp: bool,
    pub tcp_timeout: Option<GoDuration>,
    pub tcp_fin_timeout: Option<GoDuration>,
    pub udp_timeout: Option<GoDuration>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Nftables {
    pub masquerade_bit: Option<i64>,
    pub masquerade_all: bool,
    pub sync_period: Option<GoDuration>,
    pub min_sync_period: Option<GoDuration>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Winkernel {
    pub network_name: String,
    pub source_vip: String,
    #[serde(rename = "enableDSR")]
    pub enable_dsr: bool,
    pub root_hns_endpoint_name: String,
    pub forward_health_check_vip: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DetectLocal {
    pub bridge_interface: String,
    pub interface_name_prefix: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Conntrack {
    pub max_per_core: Option<i64>,
    pub min: Option<i64>,
    pub tcp_established_timeout: Option<GoDuration>,
    pub tcp_close_wait_timeout: Option<GoDuration>,
    pub tcp_be_liberal: bool,
    pub udp_timeout: Option<GoDuration>,
    pub udp_stream_timeout: Option<GoDuration>,
}

/// Reads a file. Unknown fields are Notices: another version may have them.
pub fn read(path: &Path) -> Result<(Configuration, Vec<Notice>)> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

/// Reads the text of a file.
pub fn parse(text: &str) -> Result<(Configuration, Vec<Notice>)> {
    let value: Value = serde_saphyr::from_str(text).context("not valid YAML or JSON")?;
    let (config, unknown) = from_value(value)?;
    let notice = |path: String| {
        let near = fields::did_you_mean(&path);
        let message = format!("{path}: {KIND} {API_VERSION} has no such field, so it is ignored{near}");
        Notice::new(ObjectRef::new(KIND, "", "config"), "UnknownField", message)
    };
    Ok((config, unknown.into_iter().map(notice).collect()))
}

/// Reads an object; the second list has the paths of unknown fields.
pub fn from_value(mut value: Value) -> Result<(Configuration, Vec<String>)> {
    drop_nulls(&mut value);
    let (kind, version) = (value["kind"].as_str().unwrap_or(""), value["apiVersion"].as_str().unwrap_or(""));
    if kind != KIND || version != API_VERSION {
        bail!("kind and apiVersion must be {KIND} and {API_VERSION}, got {kind:?} and {version:?}");
    }
    let unknown = fields::unknown(&value);
    let config: Configuration =
        serde_path_to_error::deserialize(value).map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok((config, unknown))
}

/// A field that is null is not set.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, inner| !inner.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}
