//! Whether each route and gateway counts, written into its status: Accepted, with the field and the reason if not.
//!
//! ```text
//! watches -> reading of the object, the same as the proxies' -> condition -> differs from the stored one? -> the API
//! ```
//!
//! Only whoever leads runs this. Nothing is written that is there already, and other writers' conditions stay: a
//! status is replaced for the version that it was read from, because API servers merge no lists of kinds like these.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use kube::Client;
use model::parse::route::{Reading, mesh_object};
use model::{Interner, Notice, ObjectRef};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::cluster::{Event, Feed, Kind, Wanted, outage};
use crate::controller::commit::{MERGE_PATCH, send};
use crate::events;

/// The type of the condition.
pub const ACCEPTED: &str = "Accepted";
/// How many are written at once.
const WRITERS: usize = 5;
/// How long a refused write waits.
const PAUSE: Duration = Duration::from_secs(5);
/// How many mistakes a message names; the first ones are the ones that one looks at.
const NAMED: usize = 10;

/// Which object: kind, namespace, name.
type Key = (Kind, String, String);

/// Runs until `stop` turns true. Dropping the future ends everything that it began.
pub async fn run(client: Client, mut stop: watch::Receiver<bool>) {
    let mut feed = Feed::start(&client, Kind::MESH.map(Wanted::all));
    let mut desk = Desk::default();
    let mut writers: JoinSet<(Key, Result<(), kube::Error>)> = JoinSet::new();
    loop {
        while writers.len() < WRITERS
            && let Some((key, work)) = desk.next(Instant::now())
        {
            let client = client.clone();
            writers.spawn(async move { (key, write(&client, &work).await) });
        }
        let wake = desk.wake();
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            Some(ended) = writers.join_next() => {
                if let Ok((key, result)) = ended {
                    desk.done(key, result, Instant::now());
                }
            }
            event = feed.next() => desk.take(event, Timestamp::now()),
            () = tokio::time::sleep_until(wake), if desk.waits() => {}
        }
    }
    while writers.join_next().await.is_some() {}
}

/// What is to be written about one object.
#[derive(Clone, Debug, PartialEq)]
struct Work {
    path: String,
    patch: Value,
    event: Option<Value>,
}

/// What waits to be written.
#[derive(Default)]
struct Desk {
    work: BTreeMap<Key, Work>,
    order: VecDeque<Key>,
    /// Refused, to be tried again.
    later: VecDeque<(Instant, Key)>,
    /// Being written.
    busy: BTreeMap<Key, Work>,
    interner: Interner,
}

impl Desk {
    fn take(&mut self, event: Event, now: Timestamp) {
        match event {
            Event::Put(kind, object) => {
                let key = (kind, object.namespace().to_owned(), object.name().to_owned());
                let Ok(value) = serde_json::from_str(object.text()) else { return };
                match judge(kind, value, &mut self.interner, now) {
                    Some(work) => {
                        if self.work.insert(key.clone(), work).is_none() {
                            self.order.push_back(key);
                        }
                    }
                    None => drop(self.work.remove(&key)),
                }
                // Names of policies long gone are not worth keeping.
                self.interner = Interner::default();
            }
            Event::Gone(kind, object) => {
                self.work.remove(&(kind, object.namespace().to_owned(), object.name().to_owned()));
            }
            Event::Trouble(..) | Event::Listing(_) | Event::Listed(_) => {}
        }
    }

    fn next(&mut self, now: Instant) -> Option<(Key, Work)> {
        while self.later.front().is_some_and(|(due, _)| *due <= now) {
            self.order.extend(self.later.pop_front().map(|(_, key)| key));
        }
        for _ in 0..self.order.len() {
            let key = self.order.pop_front()?;
            if self.busy.contains_key(&key) {
                // Its last version is being written; the answer decides.
                self.order.push_back(key);
                continue;
            }
            if let Some(work) = self.work.remove(&key) {
                self.busy.insert(key.clone(), work.clone());
                return Some((key, work));
            }
        }
        None
    }

    fn done(&mut self, key: Key, result: Result<(), kube::Error>, now: Instant) {
        let Some(work) = self.busy.remove(&key) else { return };
        let (kind, namespace, name) = &key;
        match result {
            Ok(()) => debug!(kind = kind.as_str(), namespace, name, "wrote the status of a route or gateway"),
            // Somebody was faster, and the watch brings what they wrote.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => {
                if !outage::is_api_away() {
                    warn!(kind = kind.as_str(), namespace, name, %error, "failed to write the status of a route or gateway; retrying");
                }
                self.work.entry(key.clone()).or_insert(work);
                self.later.push_back((now + PAUSE, key));
            }
        }
    }

    fn waits(&self) -> bool {
        !self.later.is_empty()
    }

    fn wake(&self) -> Instant {
        self.later.front().map_or_else(Instant::now, |(due, _)| *due)
    }
}

/// What has to be written about an object; nothing if its status says so already.
fn judge(kind: Kind, mut object: Value, interner: &mut Interner, now: Timestamp) -> Option<Work> {
    let resource = kind.resource();
    object["kind"] = resource.kind.as_str().into();
    object["apiVersion"] = resource.api_version.as_str().into();
    let reading = mesh_object(&object, interner);
    let metadata = &object["metadata"];
    let generation = &metadata["generation"];
    let mut wanted = condition(&reading);
    wanted["observedGeneration"] = generation.clone();
    let stored = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let before = stored.iter().find(|condition| condition["type"] == ACCEPTED);
    let fields = ["status", "reason", "message", "observedGeneration"];
    if before.is_some_and(|before| fields.iter().all(|field| before[field] == wanted[field])) {
        return None;
    }
    let turned = before.is_none_or(|before| before["status"] != wanted["status"]);
    wanted["lastTransitionTime"] = match before {
        Some(before) if !turned => before["lastTransitionTime"].clone(),
        _ => now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into(),
    };
    let event = (wanted["status"] == "False").then(|| refusal(&object, &wanted, now));
    let mut conditions: Vec<Value> =
        stored.into_iter().filter(|condition| condition["type"] != ACCEPTED).collect();
    conditions.push(wanted);
    let (namespace, name) = (metadata["namespace"].as_str()?, metadata["name"].as_str()?);
    let path = format!(
        "/apis/{}/namespaces/{namespace}/{}/{name}/status?fieldManager=zoneward-controller",
        resource.api_version, resource.plural
    );
    let patch = json!({"metadata": {"resourceVersion": metadata["resourceVersion"]},
        "status": {"conditions": conditions, "observedGeneration": generation}});
    Some(Work { path, patch, event })
}

fn condition(reading: &Reading) -> Value {
    if reading.problems.is_empty() {
        let message = "it is valid, and proxies obey it";
        return json!({"type": ACCEPTED, "status": "True", "reason": "Valid", "message": message});
    }
    let named = reading.problems.iter().take(NAMED);
    let mut parts: Vec<String> =
        named.map(|problem| format!("{}: {}", problem.field, problem.text)).collect();
    if reading.problems.len() > NAMED {
        parts.push(format!("and {} more", reading.problems.len() - NAMED));
    }
    let message = format!("{}. It is ignored until this is put right.", parts.join("; "));
    json!({"type": ACCEPTED, "status": "False", "reason": "Invalid", "message": message})
}

fn refusal(object: &Value, condition: &Value, now: Timestamp) -> Value {
    let part = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
    let about = ObjectRef::new(object["kind"].as_str().unwrap_or_default(), part("namespace"), part("name"));
    let notice = Notice::new(about, "Malformed", condition["message"].as_str().unwrap_or_default());
    events::event(events::SLICES, &notice, object["metadata"]["uid"].as_str(), now)
}

async fn write(client: &Client, work: &Work) -> Result<(), kube::Error> {
    send::<Value>(client, Method::PATCH, &work.path, MERGE_PATCH, &work.patch).await?;
    if let Some(event) = &work.event
        && let Err(error) = events::say(client, event).await
    {
        debug!(%error, "failed to write an Event");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(spec: Value) -> Value {
        json!({"metadata": {"namespace": "shop", "name": "r", "uid": "u", "generation": 3, "resourceVersion": "7"},
            "spec": spec})
    }

    fn asked(object: Value) -> Option<Work> {
        judge(Kind::HttpRoute, object, &mut Interner::default(), Timestamp::UNIX_EPOCH)
    }

    fn valid() -> Value {
        json!({"targetRef": {"kind": "Mesh"}, "to": [{"targetRef": {"kind": "MeshService", "name": "b"}, "rules": [
            {"matches": [{"path": {"type": "Prefix", "value": "/"}}], "default": {}}]}]})
    }

    #[test]
    fn a_valid_policy_is_accepted_once() {
        let work = asked(route(valid())).unwrap();
        assert!(work.path.starts_with("/apis/zoneward.dev/v1alpha1/namespaces/shop/meshhttproutes/r/status"));
        let condition = &work.patch["status"]["conditions"][0];
        assert_eq!((&condition["status"], &condition["reason"]), (&json!("True"), &json!("Valid")));
        assert_eq!(work.patch["metadata"]["resourceVersion"], "7");
        assert_eq!(work.event, None);
        let mut stored = route(valid());
        stored["status"] = work.patch["status"].clone();
        assert_eq!(asked(stored), None, "what is there is not written again");
    }

    #[test]
    fn an_invalid_policy_is_told_field_and_reason_and_others_conditions_stay() {
        let mut spec = valid();
        spec["to"][0]["rules"][0]["matches"][0]["path"] = json!({"type": "RegularExpression", "value": "("});
        let mut object = route(spec);
        let other = json!({"type": "Seen", "status": "True"});
        let before = json!({"type": ACCEPTED, "status": "False", "reason": "Invalid", "message": "old",
            "observedGeneration": 2, "lastTransitionTime": "2026-01-01T00:00:00Z"});
        object["status"] = json!({"conditions": [other, before]});
        let work = asked(object).unwrap();
        let conditions = work.patch["status"]["conditions"].as_array().unwrap();
        assert_eq!((conditions.len(), &conditions[0]["type"]), (2, &json!("Seen")));
        let message = conditions[1]["message"].as_str().unwrap();
        assert!(message.starts_with("spec.to[0].rules[0].matches[0].path.value: "), "{message}");
        assert_eq!(conditions[1]["lastTransitionTime"], "2026-01-01T00:00:00Z", "it did not turn");
        let event = work.event.unwrap();
        assert_eq!(event["involvedObject"]["apiVersion"], "zoneward.dev/v1alpha1");
        assert_eq!((&event["type"], &event["reason"]), (&json!("Warning"), &json!("Malformed")));
    }

    #[test]
    fn a_refused_write_is_tried_again_unless_the_object_changed() {
        let mut desk = Desk::default();
        let put = |version: &str, spec: Value| {
            let mut object = route(spec);
            object["metadata"]["resourceVersion"] = version.into();
            Event::Put(Kind::HttpRoute, serde_json::from_value(object).unwrap())
        };
        let (now, time) = (Instant::now(), Timestamp::UNIX_EPOCH);
        desk.take(put("7", valid()), time);
        let (key, _) = desk.next(now).unwrap();
        desk.take(put("8", valid()), time);
        assert!(desk.next(now).is_none(), "one write at a time for one object");
        desk.done(key.clone(), Err(kube::Error::Service("away".into())), now);
        let (_, work) = desk.next(now).unwrap();
        assert_eq!(work.patch["metadata"]["resourceVersion"], "8", "the newer version is the one to judge");
        desk.done(key, Err(kube::Error::Service("away".into())), now);
        assert!(desk.next(now).is_none() && desk.waits());
        assert!(desk.next(now + PAUSE).is_some());
    }
}
