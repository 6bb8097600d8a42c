//! `zoneward plan addresses`: the cluster IPs that would be allocated.

use anyhow::Result;
use apimachinery::cluster_ips::{self, AddressPlan, RangeReport};
use clock::Clock;
use model::{Timestamp, write};
use serde_json::{Value, json};

use crate::cli::{Format, PlanAddresses};
use cluster::input::LoadedObjects;
use output::{notices_text, notices_value, print_text, print_value, render, table};

pub(crate) fn run(args: &PlanAddresses) -> Result<bool> {
    let mut loaded = LoadedObjects::read(&args.input)?;
    let services: Vec<_> = loaded.snapshot.services().map(|(service, _)| service).collect();
    let service_cidrs: Vec<_> = loaded.snapshot.service_cidrs().collect();
    let ip_addresses: Vec<_> = loaded.snapshot.ip_addresses().collect();
    let plan = cluster_ips::plan(&cluster_ips::AddressInput {
        services: &services,
        unreadable: &loaded.unreadable_services,
        service_cidrs: &service_cidrs,
        ip_addresses: &ip_addresses,
        seed: args.seed.unwrap_or_else(clock::os_seed),
        now: Some(
            args.now.unwrap_or_else(|| Timestamp::from_seconds(Clock::system().timestamp().as_second())),
        ),
    });
    loaded.notices.extend(plan.notices.iter().cloned());
    match args.output.format {
        Format::Table => print_text(&text(&plan, &loaded))?,
        format => print_value(&value(&plan, &loaded), format)?,
    }
    Ok(plan.rejected.is_empty() && !loaded.unreadable)
}

fn band(band: Option<(std::net::IpAddr, std::net::IpAddr)>) -> Value {
    band.map_or(Value::Null, |(first, last)| json!([first.to_string(), last.to_string()]))
}

fn value(plan: &AddressPlan, loaded: &LoadedObjects) -> Value {
    let assigned = plan.assigned.iter().map(|a| {
        let ips: Vec<String> = a.cluster_ips.iter().map(|ip| ip.to_string()).collect();
        json!({"namespace": a.service.namespace.as_str(), "name": a.service.name.as_str(), "clusterIPs": ips})
    });
    let ranges = plan.ranges.iter().map(|r| {
        json!({
            "cidr": r.cidr.to_string(),
            "static": band(r.static_band),
            "dynamic": band(r.dynamic_band),
            "free": r.free.to_string(),
        })
    });
    let rejected = plan.rejected.iter().map(|r| {
        json!({"namespace": r.service.namespace.as_str(), "name": r.service.name.as_str(), "field": r.field, "reason": r.reason})
    });
    json!({
        "assigned": assigned.collect::<Vec<_>>(),
        "ipAddresses": plan.creates.iter().map(|(ip, service)| write::new_ip_address(*ip, service)).collect::<Vec<_>>(),
        "deletes": plan.deletes.iter().map(|ip| ip.to_string()).collect::<Vec<_>>(),
        "ranges": ranges.collect::<Vec<_>>(),
        "rejected": rejected.collect::<Vec<_>>(),
        "notices": notices_value(&loaded.notices),
    })
}

fn text(plan: &AddressPlan, loaded: &LoadedObjects) -> String {
    let mut ranges = table(&["RANGE", "STATIC BAND", "DYNAMIC BAND", "FREE"]);
    let shown = |band: Option<(_, _)>, none: &str| {
        band.map_or(none.to_owned(), |(first, last): (std::net::IpAddr, std::net::IpAddr)| {
            format!("{first} - {last}")
        })
    };
    let row = |r: &RangeReport| {
        [r.cidr.to_string(), shown(r.static_band, "none"), shown(r.dynamic_band, "none"), r.free.to_string()]
    };
    ranges.add_rows(plan.ranges.iter().map(row));
    let mut text = if plan.ranges.is_empty() { "No ServiceCIDR.\n".to_owned() } else { render(&ranges) };
    let mut services = table(&["SERVICE", "CLUSTER-IPS", "WHY"]);
    for a in &plan.assigned {
        let ips: Vec<String> = a.cluster_ips.iter().map(|ip| ip.to_string()).collect();
        services.add_row([
            a.service.to_string(),
            ips.join(","),
            "allocated from the ranges above".to_owned(),
        ]);
    }
    for r in &plan.rejected {
        services.add_row([
            r.service.to_string(),
            "rejected".to_owned(),
            format!("{}: {}", r.field, r.reason),
        ]);
    }
    if !services.is_empty() {
        text += &format!("\n{}", render(&services));
    }
    for (ip, service) in &plan.creates {
        text += &format!("\nIPAddress {ip} to create for {service}");
    }
    for ip in &plan.deletes {
        text += &format!("\nIPAddress {ip} to delete");
    }
    text.truncate(text.trim_end().len());
    text + "\n" + &notices_text(&loaded.notices)
}
