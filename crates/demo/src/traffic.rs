//! `zoneward demo traffic`: connections to a Service of a running demo, measured against the plan.

use anyhow::{Result, bail};
use clap::Args;
use model::{Family, Name, ServiceKey};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::command_socket::{DemoRequest, DemoResponse};
use super::demo_cluster::DemoCluster;
use super::measure::{MeasuredTraffic, TrafficClient, measure};
use super::{IpFamily, RunningDemoArgs, deviation, report};

/// `zoneward demo traffic`
#[derive(Debug, Args)]
pub struct TrafficArgs {
    /// Service, such as web-spill
    #[arg(value_name = "SERVICE")]
    pub service: String,
    /// Namespace of the Service
    #[arg(short, long, value_name = "NAME", default_value = super::objects::NAMESPACE)]
    pub namespace: String,
    /// Zone, node or pod to send from [default: a client on every node]
    #[arg(long, value_name = "ZONE|NODE|POD")]
    pub from: Option<String>,
    /// Number of connections per client
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub connections: u32,
    /// Address family of connections
    #[arg(long, value_name = "FAMILY", default_value = "ipv4")]
    pub ip_family: IpFamily,
    #[command(flatten)]
    pub running: RunningDemoArgs,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TrafficRequest {
    namespace: String,
    service: String,
    from: Option<String>,
    connections: u32,
    ipv6: bool,
}

/// `false` if the traffic deviates from the plan.
pub(crate) fn run(args: &TrafficArgs) -> Result<bool> {
    let name = ["svc/", "service/", "services/"].iter().find_map(|kind| args.service.strip_prefix(kind));
    let request = TrafficRequest {
        namespace: args.namespace.clone(),
        service: name.unwrap_or(&args.service).to_owned(),
        from: args.from.clone(),
        connections: args.connections,
        ipv6: args.ip_family == IpFamily::Ipv6,
    };
    args.running.request(&DemoRequest::Traffic(request), "")
}

pub(crate) async fn serve(cluster: &mut DemoCluster, request: &TrafficRequest) -> Result<DemoResponse> {
    cluster.until_quiet().await;
    let service = ServiceKey::new(&Name::new(&request.namespace), &Name::new(&request.service));
    let family = if request.ipv6 { Family::V6 } else { Family::V4 };
    let to = cluster.address(&service, family)?;
    let clients = clients(cluster, request.from.as_deref())?;
    let measured = measure(cluster, &service, family, &clients, request.connections).await?;
    let deviations = deviation::deviations(&measured);
    let head = format!(
        "Service {}/{} at {to}\n{} connections from {}; shares are measured (planned):\n",
        request.namespace,
        request.service,
        request.connections,
        describe(&clients)
    );
    let from_all_zones = request.from.is_none();
    let text = head + &text(&measured, from_all_zones, clients.len() == 1, &deviations);
    let mut value = measured.value();
    value["service"] = format!("{}/{}", request.namespace, request.service).into();
    value["address"] = to.to_string().into();
    value["failed"] = measured.failed.into();
    value["pods"] = json!(measured.pods);
    value["complaints"] = json!(deviations);
    if !from_all_zones {
        value["busiest"] = serde_json::Value::Null;
    }
    Ok(DemoResponse::Done { text, value, succeeded: deviations.is_empty() })
}

/// The clients in a zone or on a node, or one pod.
fn clients(cluster: &DemoCluster, from: Option<&str>) -> Result<Vec<TrafficClient>> {
    let all = cluster.clients();
    let Some(from) = from else { return Ok(all) };
    let near: Vec<TrafficClient> =
        all.into_iter().filter(|client| client.zone == from || client.node == from).collect();
    match (near.is_empty(), cluster.traffic_client(from)) {
        (false, _) => Ok(near),
        (true, Some(pod)) => Ok(vec![pod]),
        (true, None) => {
            bail!("--from {from}: no such zone, node or pod; for example zone-a, node-b1 or client-c2")
        }
    }
}

fn describe(clients: &[TrafficClient]) -> String {
    match clients {
        [one] => format!("{} in {}", one.pod, one.zone),
        many => format!("each of {} clients", many.len()),
    }
}

fn text(measured: &MeasuredTraffic, from_all_zones: bool, by_pod: bool, deviations: &[String]) -> String {
    let planned = Some(&measured.planned.zones);
    let mut text = format!("{}\n", report::zone_table(&measured.connections, planned, &measured.refused));
    let percent =
        |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share));
    text += &format!(
        "  in-zone traffic: {}, planned {}\n",
        percent(measured.in_zone()),
        percent(measured.planned.in_zone())
    );
    if let Some(busiest) = measured.busiest().filter(|_| from_all_zones) {
        text += &format!(
            "  busiest pod: {}, {:.1}x its fair share, planned {:.1}x\n",
            busiest.pod, busiest.measured, busiest.planned
        );
    }
    if by_pod {
        let pods: Vec<String> = measured.pods.iter().map(|(pod, count)| format!("{pod} {count}")).collect();
        text += &format!(
            "  answered by: {}\n",
            if pods.is_empty() { "none".to_owned() } else { pods.join(", ") }
        );
    }
    if measured.affinity {
        text += "  Session affinity (ClientIP) is enabled, so shares differ from the plan.\n";
    }
    for deviation in deviations {
        text += &format!("  DEVIATION: {deviation}\n");
    }
    text
}
