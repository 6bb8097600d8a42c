//! What `mesh control` shows of itself: health, metrics, and who is connected with what.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};
use xds::resource::Kind;
use xds::server::{Count, Refused, StreamStatus};

use super::Desk;
use cluster::admin_server::{self, AdminPage, AdminRoutes, HealthChecks};
use output::notices_value;

/// The pages.
pub fn pages(desk: &Arc<Desk>) -> AdminRoutes {
    let alive = HealthChecks::default().check("ping", || Ok(()));
    let (asked, counted, shown) = (desk.clone(), desk.clone(), desk.clone());
    let ready = HealthChecks::default().check("objects", move || asked.check());
    AdminRoutes::default()
        .checks("/healthz", alive.clone())
        .checks("/livez", alive)
        .checks("/readyz", ready)
        .metrics_with_text(admin_server::registry("mesh-control"), move || metrics(&counted))
        .page("/status", move |_| AdminPage::json(StatusCode::OK, &status(&shown)))
}

fn status(desk: &Desk) -> Value {
    let streams: Vec<Value> = desk.ledger.streams().iter().map(stream).collect();
    json!({"streams": streams, "notices": notices_value(&desk.notices())})
}

fn stream(status: &StreamStatus) -> Value {
    let refusal = |((kind, name), refused): (&(Kind, Option<Arc<str>>), &Refused)| {
        let version = refused.version.map(|version| version.to_string());
        json!({"kind": kind.as_str(), "name": name.as_deref(), "version": version, "message": refused.message,
            "triedAgain": refused.may_pass})
    };
    json!({
        "id": status.id,
        "role": status.identity.title(),
        "node": status.identity.node,
        "zone": status.identity.zone,
        "protocol": status.protocol,
        "publication": status.number,
        "refused": status.refusals.iter().map(refusal).collect::<Vec<_>>(),
    })
}

fn metrics(desk: &Desk) -> String {
    let (opened, turned_away) = desk.ledger.streams_opened();
    let streams = desk.ledger.streams();
    let refused: usize = streams.iter().map(|stream| stream.refusals.len()).sum();
    let mut text = String::new();
    let mut one = |name: &str, kind: &str, help: &str, value: u64| {
        text += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    };
    one("zoneward_xds_streams", "gauge", "Envoys that are connected.", streams.len() as u64);
    one("zoneward_xds_streams_opened_total", "counter", "Streams that were opened.", opened);
    one("zoneward_xds_streams_turned_away_total", "counter", "Streams that were turned away.", turned_away);
    one(
        "zoneward_xds_resources_refused",
        "gauge",
        "Resources that connected Envoys refuse now.",
        refused as u64,
    );
    one(
        "zoneward_xds_notices",
        "gauge",
        "Things to put right, which /status and the log name.",
        desk.notices().len() as u64,
    );
    type Part = fn(&Count) -> u64;
    let counters: [(&str, &str, Part); 6] = [
        ("responses", "Responses that were sent.", |count| count.responses),
        ("resources_sent", "Resources that were sent.", |count| count.resources),
        ("resources_removed", "Resources that were taken back.", |count| count.removed),
        ("bytes_sent", "Bytes of responses.", |count| count.bytes),
        ("resources_accepted", "Resources that Envoys took.", |count| count.accepted),
        ("responses_refused", "Responses that Envoys refused.", |count| count.refused),
    ];
    let counts = desk.ledger.counts();
    for (name, help, part) in counters {
        let name = format!("zoneward_xds_{name}_total");
        text += &format!("# HELP {name} {help}\n# TYPE {name} counter\n");
        for kind in Kind::ALL {
            let value = counts.get(&kind).map_or(0, part);
            text += &format!("{name}{{kind=\"{kind}\"}} {value}\n");
        }
    }
    text
}
