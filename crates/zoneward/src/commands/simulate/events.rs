//! Events of a replay out of a file: YAML or JSON, a list or an object with `events`.
//!
//! One event that cannot be used is one Notice; the others happen.

use std::path::Path;

use anyhow::{Context, Result, bail};
use model::{Name, Notice, ObjectRef};
use serde::Deserialize;
use serde_json::Value;
use sim::replay::{Change, Event, Millis};

use cluster::object_name::ObjectName;

/// As it stands in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    at: At,
    event: String,
    service: Option<String>,
    replicas: Option<usize>,
    by: Option<i64>,
    node: Option<String>,
    zone: Option<String>,
}

/// `90`, `1.5` or `1m30s` from the start.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "at: write seconds, as 90, or a duration, as 1m30s")]
enum At {
    Seconds(f64),
    Text(String),
}

impl At {
    fn time(&self) -> Result<Millis, String> {
        let seconds = match self {
            Self::Seconds(seconds) => *seconds,
            Self::Text(text) => {
                model::duration::parse(text).map_err(|error| format!("at: {error}"))?.as_secs_f64()
            }
        };
        Millis::from_seconds(seconds).ok_or_else(|| "at: write seconds from 0 on, as 90, or 1m30s".to_owned())
    }
}

/// More replicas than this are a typing mistake.
const MOST_REPLICAS: usize = 10_000;

/// The events of a file in the order of their times; Services without a namespace are of `namespace`.
pub(super) fn read(path: &Path, namespace: &str) -> Result<(Vec<Event>, Vec<Notice>)> {
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
            _ => bail!("{shown}: there is no list `events` in it"),
        },
        _ => bail!("{shown}: write a list of events, or an object with a list `events`"),
    };
    let (mut events, mut notices) = (Vec::new(), Vec::new());
    for (at, entry) in list.into_iter().enumerate() {
        match event(entry, namespace) {
            Ok(event) => events.push(event),
            Err(why) => notices.push(Notice::new(
                ObjectRef::new("File", "", &shown),
                "Unreadable",
                format!("events[{at}]: {why}. It is left out; the others happen."),
            )),
        }
    }
    events.sort_by_key(|event| event.at);
    Ok((events, notices))
}

fn event(entry: Value, namespace: &str) -> Result<Event, String> {
    let written: Written = serde_json::from_value(entry).map_err(|error| error.to_string())?;
    let at = written.at.time()?;
    let service = || {
        let name = written.service.as_deref().ok_or("service: say which, as shop/cart")?;
        let name: ObjectName = name.parse().map_err(|error| format!("service: {error}"))?;
        Ok::<_, String>(name.key(namespace))
    };
    let node = || written.node.as_deref().map(Name::new).ok_or("node: say which");
    let zone = || written.zone.as_deref().map(Name::new).ok_or("zone: say which");
    let change = match written.event.as_str() {
        "scale" => match (written.replicas, written.by) {
            (Some(replicas), None) if replicas <= MOST_REPLICAS => Change::Scale(service()?, replicas),
            (None, Some(by)) if by.unsigned_abs() as usize <= MOST_REPLICAS => {
                Change::ScaleBy(service()?, by)
            }
            _ => return Err(format!("give either replicas or by, up to {MOST_REPLICAS}")),
        },
        "roll" => Change::Roll(service()?),
        "node-loss" => Change::NodeLoss(node()?),
        "node-back" => Change::NodeBack(node()?),
        "zone-loss" => Change::ZoneLoss(zone()?),
        "zone-back" => Change::ZoneBack(zone()?),
        other => {
            return Err(format!(
                "event: `{other}` is none of scale, roll, node-loss, node-back, zone-loss, zone-back"
            ));
        }
    };
    Ok(Event { at, change })
}

/// The event as an object of the same form.
pub(super) fn value(event: &Event) -> Value {
    let mut value = serde_json::json!({"at": event.at.seconds()});
    let (word, field, name) = match &event.change {
        Change::Scale(key, replicas) => {
            value["replicas"] = (*replicas).into();
            ("scale", "service", key.to_string())
        }
        Change::ScaleBy(key, by) => {
            value["by"] = (*by).into();
            ("scale", "service", key.to_string())
        }
        Change::Roll(key) => ("roll", "service", key.to_string()),
        Change::NodeLoss(name) => ("node-loss", "node", name.to_string()),
        Change::NodeBack(name) => ("node-back", "node", name.to_string()),
        Change::ZoneLoss(name) => ("zone-loss", "zone", name.to_string()),
        Change::ZoneBack(name) => ("zone-back", "zone", name.to_string()),
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
    fn what_is_wrong_is_said() {
        for (entry, why) in [
            (json!({"at": 1, "event": "explode"}), "none of scale"),
            (json!({"at": -1, "event": "roll", "service": "a"}), "seconds from 0 on"),
            (json!({"at": 1, "event": "scale", "service": "a"}), "either replicas or by"),
            (json!({"at": 1, "event": "scale", "service": "a", "by": 1, "replicas": 1}), "either"),
            (json!({"at": "soon", "event": "roll", "service": "a"}), "at: \"soon\" is not a duration"),
            (json!({"at": 1, "event": "roll"}), "service: say which"),
            (json!({"at": 1, "event": "roll", "servize": "a"}), "unknown field"),
            (json!("text"), "invalid type"),
        ] {
            let said = event(entry, "default").expect_err("it is wrong");
            assert!(said.contains(why), "{said}");
        }
    }
}
