//! `zoneward demo closed-loop`: demand moves to the zone with the fewest pods, and Spill on measured demand follows.
//!
//! ```text
//!  rounds of connections, more of them from one zone -> node proxies count -> controller: new demand in the slices
//!          ^                                                                                  |
//!          '---- measured beside planned, until no pod is planned far above its fair share <--'
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use model::{Family, annotation};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::command_socket::{DemoRequest, DemoResponse, StepWriter};
use super::demo_cluster::{DemoCluster, key};
use super::layout::ZONES;
use super::measure::{MeasuredTraffic, measure_demand, planned_demand};
use super::objects::MEASURED_SERVICE;
use super::{IpFamily, RunningDemoArgs, deviation, report};

/// The zone that demand moves to, and its share of the connections in percent; the others have equal parts of the rest.
const BUSY_ZONE: &str = "zone-c";
const BUSY_PERCENT: u32 = 60;
/// Connections of a round, which starts every second, and rounds of the last row of the table.
const ROUND_CONNECTIONS: u32 = 600;
const ROUND: Duration = Duration::from_secs(1);
/// How long the watch is followed after the connections of a round, at least: on a busy machine they take the whole second.
const ROUND_WATCH: Duration = Duration::from_millis(100);
const LAST_ROUNDS: usize = 10;
/// Connections of a row of another Service.
const ROW_CONNECTIONS: u32 = 9_000;
/// Demand has been followed once no pod is planned above this multiple of its fair share.
const FOLLOWED: f64 = 1.15;
const TIMEOUT: Duration = Duration::from_secs(120);
/// Services that the same demand is sent to, for comparison.
const COMPARED: [(&str, &str); 2] =
    [("PreferSameZone", "web-prefersamezone"), ("Spill by CPU", SPILL_BY_CPU)];
const SPILL_BY_CPU: &str = "web-spill";

/// `zoneward demo closed-loop`
#[derive(Debug, Args)]
pub struct ClosedLoopArgs {
    /// Address family of connections
    #[arg(long, value_name = "FAMILY", default_value = "ipv4")]
    pub ip_family: IpFamily,
    #[command(flatten)]
    pub running: RunningDemoArgs,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ClosedLoopRequest {
    ipv6: bool,
}

/// `false` if the traffic deviates from the plan, or a pod is still planned far above its fair share.
pub(crate) fn run(args: &ClosedLoopArgs) -> Result<bool> {
    let request = ClosedLoopRequest { ipv6: args.ip_family == IpFamily::Ipv6 };
    args.running.request(&DemoRequest::ClosedLoop(request), "")
}

/// A row of the table.
struct DemandRow {
    name: String,
    measured: MeasuredTraffic,
}

pub(crate) async fn serve(
    cluster: &mut DemoCluster,
    request: &ClosedLoopRequest,
    steps: &mut StepWriter<'_>,
) -> Result<DemoResponse> {
    let family = if request.ipv6 { Family::V6 } else { Family::V4 };
    cluster.until_quiet().await;
    until_measured(cluster, steps).await?;
    let mut rows = Vec::new();
    steps.step("Connecting from all zones evenly ...").await;
    let even = demand_of(100 / ZONES.len() as u32, ROW_CONNECTIONS);
    let measured = measure_demand(cluster, &key(SPILL_BY_CPU), family, &even).await?;
    rows.push(DemandRow { name: "Spill, even demand".to_owned(), measured });
    steps.step(format!("Demand moves: {BUSY_PERCENT} % of the connections come from {BUSY_ZONE} ...")).await;
    let moved = demand_of(BUSY_PERCENT, ROW_CONNECTIONS);
    for (name, compared) in COMPARED {
        let measured = measure_demand(cluster, &key(compared), family, &moved).await?;
        rows.push(DemandRow { name: name.to_owned(), measured });
    }
    let (first, seconds) = follow(cluster, family, steps).await?;
    rows.push(DemandRow { name: "measured, at once".to_owned(), measured: first });
    cluster.until_programmed().await?;
    let mut measured = round(cluster, family).await?;
    for _ in 1..LAST_ROUNDS {
        measured.add(round(cluster, family).await?);
    }
    rows.push(DemandRow { name: format!("measured, after {seconds} s"), measured });
    Ok(response(cluster, family, &rows, seconds))
}

/// Waits until all zones have reported, so that the slices have a measured demand.
async fn until_measured(cluster: &mut DemoCluster, steps: &mut StepWriter<'_>) -> Result<()> {
    let is_measured = |cluster: &DemoCluster| {
        let slices = cluster.snapshot().slices(&key(MEASURED_SERVICE)).iter();
        let mut keeps = slices.filter_map(|slice| slice.content.annotation(annotation::KEEP));
        keeps.next().is_some_and(|keep| !keep.contains("spread="))
    };
    let start = cluster.clock().now();
    if !is_measured(cluster) {
        steps.step("Waiting until the nodes of all zones have reported their traffic ...").await;
    }
    while !is_measured(cluster) {
        let left = TIMEOUT.checked_sub(cluster.clock().since(start)).with_context(|| {
            let logs = cluster.folder.join("logs");
            format!(
                "Service {MEASURED_SERVICE} has no measured demand after two minutes: see {}",
                logs.display()
            )
        })?;
        // The next iteration reports the timeout.
        let _ = tokio::time::timeout(left, cluster.follow()).await;
    }
    Ok(())
}

/// Connections by zone if the busy one has this share of them in percent.
fn demand_of(busy_percent: u32, connections: u32) -> BTreeMap<String, u32> {
    let others = (100 - busy_percent) as f64 / (ZONES.len() - 1) as f64;
    let percent = |zone: &str| if zone == BUSY_ZONE { f64::from(busy_percent) } else { others };
    let zone =
        |zone: &'static str| (zone.to_owned(), (percent(zone) / 100.0 * f64::from(connections)) as u32);
    ZONES.into_iter().map(zone).collect()
}

/// Sends the connections of one second, and follows the API for the rest of it.
async fn round(cluster: &mut DemoCluster, family: Family) -> Result<MeasuredTraffic> {
    let start = cluster.clock().now();
    let demand = demand_of(BUSY_PERCENT, ROUND_CONNECTIONS);
    let measured = measure_demand(cluster, &key(MEASURED_SERVICE), family, &demand).await?;
    let end = ROUND.max(cluster.clock().since(start) + ROUND_WATCH);
    while let Some(left) = end.checked_sub(cluster.clock().since(start)) {
        // The next iteration ends the round.
        let _ = tokio::time::timeout(left, cluster.follow()).await;
    }
    Ok(measured)
}

/// Sends rounds of connections until the plan fits the demand. Returns those by the first plan, and the seconds that it
/// took.
async fn follow(
    cluster: &mut DemoCluster,
    family: Family,
    steps: &mut StepWriter<'_>,
) -> Result<(MeasuredTraffic, u64)> {
    let demand = demand_of(BUSY_PERCENT, ROUND_CONNECTIONS);
    let start = cluster.clock().now();
    let mut first: Option<MeasuredTraffic> = None;
    // Nodes may have a changed plan before this watch shows it: a round counts once the next one has shown no change.
    let mut unconfirmed: Option<MeasuredTraffic> = None;
    let mut before = demand_annotation(cluster);
    loop {
        let measured = round(cluster, family).await?;
        let now = demand_annotation(cluster);
        let has_changed = now != before;
        match &mut first {
            None => first = Some(measured),
            Some(first) if !has_changed && first.planned == measured.planned => {
                if let Some(confirmed) = unconfirmed.replace(measured) {
                    first.add(confirmed);
                }
            }
            Some(_) => unconfirmed = None,
        }
        let seconds = cluster.clock().since(start).as_secs();
        let planned = planned_demand(cluster, &key(MEASURED_SERVICE), family, &demand).busiest();
        let planned = planned.unwrap_or_default();
        if has_changed {
            let text = now.clone().unwrap_or_default();
            steps
                .step(format!(
                    "  after {seconds} s: {} {text}, busiest pod {planned:.1}x",
                    annotation::DEMAND
                ))
                .await;
            before = now;
        }
        let is_over = cluster.clock().since(start) > TIMEOUT;
        if let Some(first) = first.take_if(|_| planned <= FOLLOWED || is_over) {
            return Ok((first, seconds));
        }
    }
}

/// The demand in the slices of the Service.
fn demand_annotation(cluster: &DemoCluster) -> Option<String> {
    let slices = cluster.snapshot().slices(&key(MEASURED_SERVICE)).iter();
    slices.filter_map(|slice| slice.content.annotation(annotation::DEMAND)).next().map(ToString::to_string)
}

fn response(cluster: &DemoCluster, family: Family, rows: &[DemandRow], seconds: u64) -> DemoResponse {
    let last = rows.last().map(|row| &row.measured);
    let busiest = last.and_then(|last| last.planned.busiest()).unwrap_or_default();
    let mut deviations: Vec<String> =
        rows.iter().flat_map(|row| deviation::deviations(&row.measured)).collect();
    if busiest > FOLLOWED {
        deviations.push(format!(
            "{MEASURED_SERVICE}: after {seconds} s, the busiest pod is still planned at {busiest:.1} times its fair share"
        ));
    }
    let demand = demand_annotation(cluster).unwrap_or_default();
    let row = |row: &DemandRow| {
        let mut value = row.measured.value();
        value["name"] = row.name.as_str().into();
        value["demand"] = json!(row.measured.planned.demand);
        value
    };
    let value = json!({
        "service": MEASURED_SERVICE, "zone": BUSY_ZONE, "seconds": seconds, "demand": demand,
        "rows": rows.iter().map(row).collect::<Vec<Value>>(), "complaints": deviations,
    });
    let text = text(cluster, family, rows, &demand, &deviations);
    DemoResponse::Done { text, value, succeeded: deviations.is_empty() }
}

fn text(
    cluster: &DemoCluster,
    family: Family,
    rows: &[DemandRow],
    demand: &str,
    deviations: &[String],
) -> String {
    let pods = cluster.pods_of("web");
    let there = pods.iter().filter(|pod| pod.node.zone == BUSY_ZONE).count();
    let mut text = format!(
        "\n{BUSY_ZONE} has {there} of the {} web pods, and {BUSY_PERCENT} % of the connections come from there:\n\n\
         {:<26}in-zone traffic     load of busiest pod\n{:<26}measured  planned   measured  planned\n",
        pods.len(),
        "",
        ""
    );
    for DemandRow { name, measured } in rows {
        text += &format!("  {name:<24}{}\n", report::traffic_cells(measured));
    }
    text += "\nLoad is a multiple of the fair share, an equal share for each pod. Spill by CPU expects a\n\
             third of the connections from each zone. On measured demand, each zone sends away what its\n\
             pods cannot take, wherever connections come from, and no pod is overloaded.\n";
    if let Some(DemandRow { measured, .. }) = rows.last() {
        let address = cluster.address(&key(MEASURED_SERVICE), family).map(|to| to.to_string());
        text += &format!(
            "\nService {MEASURED_SERVICE} at {}, {} {demand}\nFrom zone to zone, measured (planned):\n{}\n",
            address.unwrap_or_default(),
            annotation::DEMAND,
            report::zone_table(&measured.connections, Some(&measured.planned.zones), &measured.refused)
        );
    }
    for deviation in deviations {
        text += &format!("DEVIATION: {deviation}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_zone_has_its_share_and_the_others_equal_parts_of_the_rest() {
        let demand = demand_of(60, 600);
        assert_eq!(demand.values().copied().collect::<Vec<_>>(), [120, 120, 360]);
    }
}
