//! Event files of a replay: YAML or JSON, a list or an object with `events`.
//!
//! A malformed event is skipped with a Notice.

use std::path::Path;

use anyhow::{Context, Result, bail};
use model::{Name, Notice, ObjectRef};
use serde::Deserialize;
use serde_json::Value;
use sim::replay::{ClusterChange, Millis, ReplayEvent};

use cluster::object_name::ObjectName;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventEntry {
    at: EventTime,
    event: String,
    service: Option<String>,
    replicas: Option<usize>,
    by: Option<i64>,
    node: Option<String>,
    zone: Option<String>,
}

/// `90`, `1.5` or `1m30s` from the start.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "at: expected seconds, such as 90, or a duration, such as 1m30s")]
enum EventTime {
    Seconds(f64),
    Text(String),
}

impl EventTime {
    fn time(&self) -> Result<Millis, String> {
        let seconds = match self {
            Self::Seconds(seconds) => *seconds,
            Self::Text(text) => {
                model::duration::parse(text).map_err(|error| format!("at: {error}"))?.as_secs_f64()
            }
        };
        Millis::from_seconds(seconds)
            .ok_or_else(|| "at: expected a non-negative time, such as 90 or 1m30s".to_owned())
    }
}

/// Limit against typing errors.
const MAX_REPLICAS: usize = 10_000;

/// The events of a file, sorted by time; `namespace` applies to Services without one.
pub(super) fn read(path: &Path, namespace: &str) -> Result<(Vec<ReplayEvent>, Vec<Notice>)> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {shown}"))?;
    let value: Value = serde_saphyr::from_str(&text)
        .map_err(|error| {
            anyhow::anyhow!("{}", error.to_string().lines().next().unwrap_or_default().to_owned())
        })
        .with_context(|| format!("reading {shown}"))?;
    let list = match value {
        Value::Array(list) => list,
        Value::Object(mut fields) => match fields.remove("events") {
            Some(Value::Array(list)) => list,
            _ => bail!("{shown}: no list `events`"),
        },
        _ => bail!("{shown}: expected a list of events, or an object with a list `events`"),
    };
    let (mut events, mut notices) = (Vec::new(), Vec::new());
    for (at, entry) in list.into_iter().enumerate() {
        match event(entry, namespace) {
            Ok(event) => events.push(event),
            Err(why) => notices.push(Notice::new(
                ObjectRef::new("File", "", &shown),
                "Unreadable",
                format!("events[{at}]: {why}. The event is skipped."),
            )),
        }
    }
    events.sort_by_key(|event| event.at);
    Ok((events, notices))
}

fn event(entry: Value, namespace: &str) -> Result<ReplayEvent, String> {
    let entry: EventEntry = serde_json::from_value(entry).map_err(|error| error.to_string())?;
    let at = entry.at.time()?;
    let service = || {
        let name = entry.service.as_deref().ok_or("service: missing; expected a name such as shop/cart")?;
        let name: ObjectName = name.parse().map_err(|error| format!("service: {error}"))?;
        Ok::<_, String>(name.key(namespace))
    };
    let node = || entry.node.as_deref().map(Name::new).ok_or("node: missing");
    let zone = || entry.zone.as_deref().map(Name::new).ok_or("zone: missing");
    let change = match entry.event.as_str() {
        "scale" => match (entry.replicas, entry.by) {
            (Some(replicas), None) if replicas <= MAX_REPLICAS => ClusterChange::Scale(service()?, replicas),
            (None, Some(by)) if by.unsigned_abs() as usize <= MAX_REPLICAS => {
                ClusterChange::ScaleBy(service()?, by)
            }
            _ => return Err(format!("expected either replicas or by, up to {MAX_REPLICAS}")),
        },
        "roll" => ClusterChange::Roll(service()?),
        "node-loss" => ClusterChange::NodeLoss(node()?),
        "node-back" => ClusterChange::NodeBack(node()?),
        "zone-loss" => ClusterChange::ZoneLoss(zone()?),
        "zone-back" => ClusterChange::ZoneBack(zone()?),
        other => {
            return Err(format!(
                "event: unknown `{other}`; expected scale, roll, node-loss, node-back, zone-loss or zone-back"
            ));
        }
    };
    Ok(ReplayEvent { at, change })
}

/// The event in the format of the file.
pub(super) fn value(event: &ReplayEvent) -> Value {
    let mut value = serde_json::json!({"at": event.at.seconds()});
    let (word, field, name) = match &event.change {
        ClusterChange::Scale(key, replicas) => {
            value["replicas"] = (*replicas).into();
            ("scale", "service", key.to_string())
        }
        ClusterChange::ScaleBy(key, by) => {
            value["by"] = (*by).into();
            ("scale", "service", key.to_string())
        }
        ClusterChange::Roll(key) => ("roll", "service", key.to_string()),
        ClusterChange::NodeLoss(name) => ("node-loss", "node", name.to_string()),
        ClusterChange::NodeBack(name) => ("node-back", "node", name.to_string()),
        ClusterChange::ZoneLoss(name) => ("zone-loss", "zone", name.to_string()),
        ClusterChange::ZoneBack(name) => ("zone-back", "zone", name.to_string()),
    };
    value["event"] = word.into();
    value[field] = name.into();
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_are_read_as_they_are_written() {
        for entry in [
            json!({"at": 60.0, "replicas": 12, "event": "scale", "service": "shop/cart"}),
            json!({"at": 61.5, "by": -2, "event": "scale", "service": "shop/cart"}),
            json!({"at": 70.0, "event": "roll", "service": "shop/cart"}),
            json!({"at": 80.0, "event": "node-loss", "node": "node-a1"}),
            json!({"at": 90.0, "event": "node-back", "node": "node-a1"}),
            json!({"at": 95.0, "event": "zone-loss", "zone": "zone-a"}),
            json!({"at": 99.0, "event": "zone-back", "zone": "zone-a"}),
        ] {
            let read = event(entry.clone(), "default").expect("it is right");
            assert_eq!(value(&read), entry);
        }
    }

    #[test]
    fn times_may_be_durations() {
        let read = event(json!({"at": "1m30s", "event": "roll", "service": "svc/cart"}), "shop").unwrap();
        assert_eq!(value(&read), json!({"at": 90.0, "event": "roll", "service": "shop/cart"}));
    }

    #[test]
    fn malformed_events_are_rejected_with_a_reason() {
        for (entry, why) in [
            (json!({"at": 1, "event": "explode"}), "unknown `explode`"),
            (json!({"at": -1, "event": "roll", "service": "a"}), "non-negative time"),
            (json!({"at": 1, "event": "scale", "service": "a"}), "either replicas or by"),
            (json!({"at": 1, "event": "scale", "service": "a", "by": 1, "replicas": 1}), "either"),
            (json!({"at": "soon", "event": "roll", "service": "a"}), "at: \"soon\" is not a duration"),
            (json!({"at": 1, "event": "roll"}), "service: missing"),
            (json!({"at": 1, "event": "roll", "servize": "a"}), "unknown field"),
            (json!("text"), "invalid type"),
        ] {
            let said = event(entry, "default").expect_err("it is wrong");
            assert!(said.contains(why), "{said}");
        }
    }
}
