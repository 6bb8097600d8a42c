//! `zoneward controller --hand-back`: removes from EndpointSlices and Services what only Zoneward writes, for the return to
//! kube-controller-manager. That controller preserves unknown annotations, so its slices would still request `RequireZone`.

use anyhow::{Context, Result, bail};
use http::Method;
use kube::{Client, Error};
use model::annotation;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use cluster::ObjectKind;
use cluster::write::{MERGE_PATCH, STRATEGIC_MERGE, send};

/// Our annotations on slices. kube-controller-manager rewrites hints and trigger times itself, except on slices of `expose`,
/// whose hints are removed here.
const ANNOTATIONS: [&str; 6] = [
    annotation::MECHANISM,
    annotation::MECHANISM_SOURCE,
    annotation::DEMAND,
    annotation::KEEP,
    annotation::PROVED,
    annotation::REGIONS,
];
/// Most retries after a conflict.
const ATTEMPTS: usize = 5;
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandBackReport {
    /// Slices without our annotations and hints now, and the removed values.
    pub annotations: Vec<(String, String)>,
    /// Deleted slices of --coexist.
    pub deleted: Vec<String>,
    /// Services without our conditions now.
    pub conditions: Vec<String>,
}

/// Runs once over all slices and Services while this process leads.
pub async fn hand_back(client: &Client, leading: &watch::Receiver<bool>) -> Result<HandBackReport> {
    let mut done = HandBackReport::default();
    for slice in cluster::list(client, ObjectKind::Slice, None).await? {
        check_leading(leading)?;
        if slice["metadata"]["labels"].get(annotation::COEXIST_SERVICE_NAME).is_some() {
            delete(client, &slice, &mut done).await?;
        } else {
            clear_slice(client, slice, &mut done).await?;
        }
    }
    for service in cluster::list(client, ObjectKind::Service, None).await? {
        check_leading(leading)?;
        clear_conditions(client, &service, &mut done).await?;
    }
    Ok(done)
}

fn check_leading(leading: &watch::Receiver<bool>) -> Result<()> {
    match *leading.borrow() {
        true => Ok(()),
        false => bail!("the leader lease was lost before all slices were handed back: run this again"),
    }
}

/// Our annotations of a slice, as `key: value`.
fn own_annotations(slice: &Value) -> Vec<(&'static str, String)> {
    let value = |key: &&'static str| {
        let value = slice["metadata"]["annotations"].get(*key)?.as_str()?;
        Some((*key, format!("{key}: {value}")))
    };
    ANNOTATIONS.iter().filter_map(value).collect()
}

/// The endpoints of a slice of `expose` without hints, and how many had hints.
fn without_hints(slice: &Value) -> Option<(Vec<Value>, usize)> {
    if slice["metadata"]["labels"][annotation::MANAGED_BY] != annotation::EXPOSE_CONTROLLER_NAME {
        return None;
    }
    let mut endpoints = slice["endpoints"].as_array()?.clone();
    let fields = endpoints.iter_mut().filter_map(Value::as_object_mut);
    let hinted =
        fields.filter_map(|endpoint| endpoint.remove("hints")).filter(|hints| !hints.is_null()).count();
    (hinted > 0).then_some((endpoints, hinted))
}

/// The patch that removes our annotations and hints, and their text; `None` if there are none.
fn removal(slice: &Value) -> Option<(Value, String)> {
    let (found, hints) = (own_annotations(slice), without_hints(slice));
    let zone = slice["metadata"]["labels"][annotation::FOR_ZONE].as_str();
    if found.is_empty() && hints.is_none() && zone.is_none() {
        return None;
    }
    let none: Map<String, Value> = found.iter().map(|(key, _)| ((*key).to_owned(), Value::Null)).collect();
    let version = &slice["metadata"]["resourceVersion"];
    let mut patch = json!({"metadata": {"resourceVersion": version, "annotations": none}});
    let mut reported: Vec<String> = found.into_iter().map(|(_, text)| text).collect();
    if let Some(zone) = zone {
        patch["metadata"]["labels"] = json!({annotation::FOR_ZONE: null});
        reported.push(format!("{}: {zone}", annotation::FOR_ZONE));
    }
    if let Some((endpoints, hinted)) = hints {
        patch["endpoints"] = endpoints.into();
        reported.push(format!("hints of {}", output::count(hinted, "endpoint")));
    }
    Some((patch, reported.join(", ")))
}

async fn clear_slice(client: &Client, mut slice: Value, done: &mut HandBackReport) -> Result<()> {
    let name = full_name(&slice);
    let path = path("/apis/discovery.k8s.io/v1", "endpointslices", &slice);
    for _ in 0..ATTEMPTS {
        let Some((patch, reported)) = removal(&slice) else { return Ok(()) };
        match send::<Value>(client, Method::PATCH, &path, MERGE_PATCH, &patch).await {
            Ok(_) => {
                done.annotations.push((name, reported));
                return Ok(());
            }
            Err(Error::Api(status)) if status.code == NOT_FOUND => return Ok(()),
            Err(Error::Api(status)) if status.code == CONFLICT => {}
            Err(error) => return Err(error).with_context(|| format!("changing EndpointSlice {name}")),
        }
        slice = match send(client, Method::GET, &path, "", &Value::Null).await {
            Err(Error::Api(status)) if status.code == NOT_FOUND => return Ok(()),
            found => found.with_context(|| format!("reading EndpointSlice {name}"))?,
        };
    }
    bail!("EndpointSlice {name} keeps changing: stop its other writers and run this again")
}

async fn delete(client: &Client, slice: &Value, done: &mut HandBackReport) -> Result<()> {
    let path = path("/apis/discovery.k8s.io/v1", "endpointslices", slice);
    match send::<Value>(client, Method::DELETE, &path, "", &Value::Null).await {
        Ok(_) => done.deleted.push(full_name(slice)),
        Err(Error::Api(status)) if status.code == NOT_FOUND => {}
        Err(error) => {
            return Err(error).with_context(|| format!("deleting EndpointSlice {}", full_name(slice)));
        }
    }
    Ok(())
}

async fn clear_conditions(client: &Client, service: &Value, done: &mut HandBackReport) -> Result<()> {
    let conditions = service["status"]["conditions"].as_array().into_iter().flatten();
    let kinds = conditions.filter_map(|condition| condition["type"].as_str());
    let ours = kinds.filter(|kind| kind.starts_with(annotation::CONDITION_PREFIX));
    let deletes: Vec<Value> = ours.map(|kind| json!({"$patch": "delete", "type": kind})).collect();
    if deletes.is_empty() {
        return Ok(());
    }
    let patch = json!({"status": {"conditions": deletes}});
    let path = format!("{}/status", path("/api/v1", "services", service));
    match send::<Value>(client, Method::PATCH, &path, STRATEGIC_MERGE, &patch).await {
        Ok(_) => done.conditions.push(full_name(service)),
        Err(Error::Api(status)) if status.code == NOT_FOUND => {}
        Err(error) => {
            return Err(error)
                .with_context(|| format!("changing the status of Service {}", full_name(service)));
        }
    }
    Ok(())
}

fn text<'v>(object: &'v Value, field: &str) -> &'v str {
    object["metadata"][field].as_str().unwrap_or_default()
}

fn full_name(object: &Value) -> String {
    format!("{}/{}", text(object, "namespace"), text(object, "name"))
}

fn path(root: &str, plural: &str, object: &Value) -> String {
    format!("{root}/namespaces/{}/{plural}/{}", text(object, "namespace"), text(object, "name"))
}

impl HandBackReport {
    /// One line per object, the totals, and the next step, which `coexist` has none of.
    pub fn text(&self, coexist: bool) -> String {
        let mut text = String::new();
        for (slice, reported) in &self.annotations {
            text += &format!("EndpointSlice {slice}: removed {reported}\n");
        }
        for slice in &self.deleted {
            text += &format!("EndpointSlice {slice}: deleted; only Zoneward's nodes used it\n");
        }
        for service in &self.conditions {
            text += &format!("Service {service}: removed Zoneward's conditions\n");
        }
        text += &format!(
            "Handed back: {} without Zoneward's annotations, {} deleted, {} without Zoneward's conditions.\n",
            output::count(self.annotations.len(), "EndpointSlice"),
            self.deleted.len(),
            output::count(self.conditions.len(), "Service"),
        );
        let found_only_coexist = !self.deleted.is_empty() && self.annotations.is_empty();
        text + match coexist || found_only_coexist {
            true => {
                "The slices of kube-controller-manager were not changed: its EndpointSlice controller stays enabled.\n"
            }
            false => {
                "Now enable kube-controller-manager's EndpointSlice controller: remove -endpointslice-controller from \
                 its --controllers.\n"
            }
        }
    }
}
