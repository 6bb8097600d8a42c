//! What `zoneward status` says on a machine whose API does not answer: how old the objects are that its node proxy serves.

use clock::Clock;
use insight::status::ObjectAge;
use node::running_config::{self, RunningConfig};
use serde_json::{Value, json};

/// The node proxy of this machine, if one runs here that serves without the API.
pub(super) fn serving_alone() -> Option<RunningConfig> {
    running_config::ask().ok().flatten().filter(|running| running.objects.known_at.is_some())
}

pub(super) fn text(running: &RunningConfig, error: &str, clock: &Clock) -> String {
    format!("The API does not answer: {error}\n{}\n", sentence(&running.node, &running.objects, now(clock)))
}

pub(super) fn value(running: &RunningConfig, error: &str, clock: &Clock) -> Value {
    let age = &running.objects;
    json!({"api": {"error": error}, "node": {"name": running.node, "objectAgeSeconds": age.seconds(now(clock)),
        "objectsKnownAt": age.known_at.map(time), "fromFile": age.from_file}})
}

fn now(clock: &Clock) -> i64 {
    clock.timestamp().as_second()
}

fn sentence(node: &str, age: &ObjectAge, now: i64) -> String {
    let source = match age.from_file {
        true => "the snapshot in its file",
        false => "what it knew when the API went away",
    };
    format!(
        "Node {node} of this machine serves {source}: objects of {}, {} s old. Changes arrive when the API is back.",
        age.known_at.map(time).unwrap_or_default(),
        age.seconds(now)
    )
}

pub(super) fn time(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).map(|time| time.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_and_where_the_objects_come_from_are_said() {
        let age = ObjectAge { known_at: Some(100), from_file: true, last: None };
        assert_eq!(
            sentence("box-2", &age, 163),
            "Node box-2 of this machine serves the snapshot in its file: objects of 1970-01-01T00:01:40Z, 63 s old. \
             Changes arrive when the API is back."
        );
    }
}
