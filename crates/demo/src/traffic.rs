//! `zoneward demo traffic`: connections to a Service of a kept demo, and where they went, beside the plan.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use model::{Family, Name, ServiceKey};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::kept::{Command, Outcome, ask};
use super::measure::{Client, Measured, measure};
use super::world::World;
use super::{IpFamily, default_folder, report, verdict};
use output::{Format, Output, print_text, print_value};

/// `zoneward demo traffic`
#[derive(Debug, Args)]
pub struct Traffic {
    /// The Service, as web-spill
    #[arg(value_name = "SERVICE")]
    pub service: String,
    /// The namespace of the Service
    #[arg(short, long, value_name = "NAME", default_value = super::objects::NAMESPACE)]
    pub namespace: String,
    /// Send from this zone, node or pod only [default: from a client on every node]
    #[arg(long, value_name = "ZONE|NODE|POD")]
    pub from: Option<String>,
    /// How many connections each client makes
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub connections: u32,
    /// The family of the address that clients connect to
    #[arg(long, value_name = "FAMILY", default_value = "ipv4")]
    pub ip_family: IpFamily,
    /// Where the demo has its data [default: where the demo puts it]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
}

/// What the kept demo is asked.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    namespace: String,
    service: String,
    from: Option<String>,
    connections: u32,
    ipv6: bool,
}

/// Asks the kept demo, and shows what it answers. False if traffic went elsewhere than planned.
pub fn run(args: &Traffic) -> Result<bool> {
    let folder = args.data_dir.clone().unwrap_or_else(default_folder);
    let name = ["svc/", "service/", "services/"].iter().find_map(|kind| args.service.strip_prefix(kind));
    let order = Order {
        namespace: args.namespace.clone(),
        service: name.unwrap_or(&args.service).to_owned(),
        from: args.from.clone(),
        connections: args.connections,
        ipv6: args.ip_family == IpFamily::Ipv6,
    };
    let (text, value, fine) = ask(&folder, &Command::Traffic(order))?;
    match args.output.format {
        Format::Table => print_text(&text)?,
        format => print_value(&value, format)?,
    }
    Ok(fine)
}

/// Sends the traffic.
pub async fn serve(world: &mut World, order: &Order) -> Result<Outcome> {
    world.until_quiet().await;
    let service = ServiceKey::new(&Name::new(&order.namespace), &Name::new(&order.service));
    let family = if order.ipv6 { Family::V6 } else { Family::V4 };
    let to = world.address(&service, family)?;
    let clients = clients(world, order.from.as_deref())?;
    let measured = measure(world, &service, family, &clients, order.connections).await?;
    let complaints = verdict::complaints(&measured);
    let head = format!(
        "Service {}/{} at {to}\n{} connections from {}; shares are measured (planned):\n",
        order.namespace,
        order.service,
        order.connections,
        senders(&clients)
    );
    let everyone = order.from.is_none();
    let text = head + &text(&measured, everyone, clients.len() == 1, &complaints);
    let mut value = measured.value();
    value["service"] = format!("{}/{}", order.namespace, order.service).into();
    value["address"] = to.to_string().into();
    value["failed"] = measured.failed.into();
    value["pods"] = json!(measured.pods);
    value["complaints"] = json!(complaints);
    if !everyone {
        value["busiest"] = serde_json::Value::Null;
    }
    Ok(Outcome::Done { text, value, fine: complaints.is_empty() })
}

/// The clients of a zone or on a node, or a pod.
fn clients(world: &World, from: Option<&str>) -> Result<Vec<Client>> {
    let all = world.clients();
    let Some(from) = from else { return Ok(all) };
    let near: Vec<Client> =
        all.into_iter().filter(|client| client.zone == from || client.node == from).collect();
    match (near.is_empty(), world.sender(from)) {
        (false, _) => Ok(near),
        (true, Some(pod)) => Ok(vec![pod]),
        (true, None) => {
            bail!("--from {from}: no such zone, node or pod; for example zone-a, node-b1 or client-c2")
        }
    }
}

fn senders(clients: &[Client]) -> String {
    match clients {
        [one] => format!("{} in {}", one.pod, one.zone),
        many => format!("each of {} clients", many.len()),
    }
}

fn text(measured: &Measured, everyone: bool, by_pod: bool, complaints: &[String]) -> String {
    let planned = Some(&measured.planned.zones);
    let mut text = format!("{}\n", report::zones(&measured.connections, planned, &measured.refused));
    let percent =
        |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share));
    text += &format!(
        "  stayed in its zone: {}, planned {}\n",
        percent(measured.in_zone()),
        percent(measured.planned.in_zone())
    );
    if let Some(busiest) = measured.busiest().filter(|_| everyone) {
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
        text += "  The Service keeps clients at their endpoint (ClientIP), so shares are not those of the plan.\n";
    }
    for complaint in complaints {
        text += &format!("  OUT OF LINE: {complaint}\n");
    }
    text
}
