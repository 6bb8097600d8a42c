//! `zoneward export`: the objects of an embedded API as manifests that `kubectl apply` takes into a Kubernetes cluster.
//!
//! ```text
//! API -> lists by kind, in the order of kubectl apply -> manifest (pure): without what a server sets -> YAML
//! ```

mod manifest;

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use clock::Clock;
use kube::Client;
use serde_json::{Value, json};

use cluster::{Connection, ObjectKind};
use manifest::{ExportOptions, Exported};
use model::gateway_api::{GatewayApiKind, RouteKind};
use output::{Format, count, print_text, value_text};

/// Kinds in the order in which they are applied: what others refer to comes first.
const KINDS: [ObjectKind; 21] = [
    ObjectKind::Namespace,
    ObjectKind::Secret,
    ObjectKind::ConfigMap,
    ObjectKind::Service,
    ObjectKind::Slice,
    ObjectKind::MeshLoadBalancing,
    ObjectKind::MeshRouteFilter,
    ObjectKind::MeshGateway,
    ObjectKind::MeshHttpRoute,
    ObjectKind::MeshGatewayHttpRoute,
    ObjectKind::MeshTcpRoute,
    ObjectKind::GatewayApi(GatewayApiKind::Class),
    ObjectKind::GatewayApi(GatewayApiKind::Grant),
    ObjectKind::GatewayApi(GatewayApiKind::Gateway),
    ObjectKind::GatewayApi(GatewayApiKind::ListenerSet),
    ObjectKind::GatewayApi(GatewayApiKind::TlsPolicy),
    ObjectKind::GatewayApi(GatewayApiKind::Route(RouteKind::Http)),
    ObjectKind::GatewayApi(GatewayApiKind::Route(RouteKind::Grpc)),
    ObjectKind::GatewayApi(GatewayApiKind::Route(RouteKind::Tls)),
    ObjectKind::GatewayApi(GatewayApiKind::Route(RouteKind::Tcp)),
    ObjectKind::GatewayApi(GatewayApiKind::Route(RouteKind::Udp)),
];

/// `zoneward export`
#[derive(Debug, Args)]
pub struct Export {
    /// Only objects of this namespace, and the namespace [default: all namespaces]
    #[arg(short = 'n', long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Export Secrets, in plain text
    #[arg(long)]
    pub include_secrets: bool,
    /// Keep cluster IPs; the cluster must have them in its range, and free [default: the cluster allocates others]
    #[arg(long)]
    pub keep_cluster_ips: bool,
    /// Keep node ports [default: the cluster allocates others]
    #[arg(long)]
    pub keep_node_ports: bool,
    /// Output format
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "yaml")]
    pub format: ExportFormat,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// One document per object
    Yaml,
    /// One List
    Json,
}

pub fn run(args: &Export) -> Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting")?;
    let objects = runtime.block_on(async {
        let (client, address) = cluster::open(&args.connection, &Clock::system()).await?;
        read(&client, args).await.with_context(|| format!("the API at {address}"))
    })?;
    let exported = manifest::export(objects, &args.options());
    print_text(&text(&exported.objects, args.format)?)?;
    for remark in remarks(&exported, args.include_secrets) {
        eprintln!("zoneward: {remark}");
    }
    Ok(true)
}

impl Export {
    fn options(&self) -> ExportOptions {
        ExportOptions { keep_cluster_ips: self.keep_cluster_ips, keep_node_ports: self.keep_node_ports }
    }
}

/// All objects, kind by kind. What is only counted is read, too.
async fn read(client: &Client, args: &Export) -> Result<Vec<Value>> {
    let namespace = args.namespace.as_deref();
    let mut objects = Vec::new();
    for kind in KINDS.into_iter().filter(|kind| *kind != ObjectKind::Secret || args.include_secrets) {
        let of_kind = cluster::list(client, kind, namespace).await?;
        let is_wanted = |object: &Value| {
            // Of kinds without a namespace, a namespace needs its own object only.
            kind.is_namespaced()
                || namespace.is_none_or(|namespace| {
                    kind == ObjectKind::Namespace && object["metadata"]["name"] == namespace
                })
        };
        objects.extend(of_kind.into_iter().filter(is_wanted));
    }
    objects.extend(cluster::list(client, ObjectKind::Pod, namespace).await?);
    Ok(objects)
}

fn text(objects: &[Value], format: ExportFormat) -> Result<String> {
    match format {
        ExportFormat::Json => {
            value_text(&json!({"apiVersion": "v1", "kind": "List", "items": objects}), Format::Json)
        }
        ExportFormat::Yaml => {
            let documents: Result<Vec<String>> =
                objects.iter().map(|object| value_text(object, Format::Yaml)).collect();
            Ok(documents?.iter().map(|document| format!("---\n{document}")).collect())
        }
    }
}

/// What a reader has to know, on standard error.
fn remarks(exported: &Exported, has_secrets: bool) -> Vec<String> {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for object in &exported.objects {
        *kinds.entry(object["kind"].as_str().unwrap_or_default()).or_default() += 1;
    }
    let list: Vec<String> = kinds.iter().map(|(kind, number)| count(*number, kind)).collect();
    let mut remarks = vec![match list.is_empty() {
        true => "nothing to export".to_owned(),
        false => format!("exported {}", list.join(", ")),
    }];
    if !has_secrets {
        remarks.push("Secrets were not exported: add --include-secrets if objects refer to some".to_owned());
    }
    if exported.pods > 0 {
        let pods = count(exported.pods, "Pod");
        remarks
            .push(format!("{pods} not exported: the cluster runs its own, from Deployments that you write"));
    }
    remarks.extend(exported.notices.iter().cloned());
    remarks
}
