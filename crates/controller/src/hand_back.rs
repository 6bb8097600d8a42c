//! The way back to kube-controller-manager: takes off EndpointSlices and Services what only Zoneward writes, once. That
//! controller keeps annotations that it does not know, so a slice that it took over would still say `RequireZone`.

use anyhow::{Context, Result, bail};
use http::Method;
use kube::{Client, Error};
use model::annotation;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use cluster::Kind;
use cluster::write::{MERGE_PATCH, STRATEGIC_MERGE, send};

/// The annotations that we write on slices. Hints and the time of the last change are fields that Kubernetes' own
/// controller writes, too: it puts them right when it takes over. It does not touch slices of `expose`, so their hints go.
const ANNOTATIONS: [&str; 4] =
    [annotation::MECHANISM, annotation::MECHANISM_SOURCE, annotation::DEMAND, annotation::REGIONS];
/// How often a slice is read again because it changed meanwhile.
const ATTEMPTS: usize = 5;
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;

/// What was taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandedBack {
    /// Slices that lost our annotations and hints: where they are, and what these said.
    pub annotations: Vec<(String, String)>,
    /// Slices that stood beside those of Kubernetes' own controller, and were deleted.
    pub deleted: Vec<String>,
    /// Services that lost our conditions.
    pub conditions: Vec<String>,
}

/// Hands all slices back, as long as we lead.
pub async fn hand_back(client: &Client, leading: &watch::Receiver<bool>) -> Result<HandedBack> {
    let mut done = HandedBack::default();
    for slice in cluster::list(client, Kind::Slice, None).await? {
        check_leads(leading)?;
        if slice["metadata"]["labels"].get(annotation::COEXIST_SERVICE_NAME).is_some() {
            delete(client, &slice, &mut done).await?;
        } else {
            clear_slice(client, slice, &mut done).await?;
        }
    }
    for service in cluster::list(client, Kind::Service, None).await? {
        check_leads(leading)?;
        clear_conditions(client, &service, &mut done).await?;
    }
    Ok(done)
}

fn check_leads(leading: &watch::Receiver<bool>) -> Result<()> {
    match *leading.borrow() {
        true => Ok(()),
        false => bail!("the leader lease was lost before all slices were handed back: run this again"),
    }
}

/// Our annotations of a slice, as `key: value`.
fn ours(slice: &Value) -> Vec<(&'static str, String)> {
    let value = |key: &&'static str| {
        let value = slice["metadata"]["annotations"].get(*key)?.as_str()?;
        Some((*key, format!("{key}: {value}")))
    };
    ANNOTATIONS.iter().filter_map(value).collect()
}

/// The endpoints of a slice of `expose` without their hints, and how many had some.
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

/// What takes our part off a slice, and what it was; none if there is nothing of ours.
fn cleared(slice: &Value) -> Option<(Value, String)> {
    let (found, hints) = (ours(slice), without_hints(slice));
    if found.is_empty() && hints.is_none() {
        return None;
    }
    let none: Map<String, Value> = found.iter().map(|(key, _)| ((*key).to_owned(), Value::Null)).collect();
    let version = &slice["metadata"]["resourceVersion"];
    let mut patch = json!({"metadata": {"resourceVersion": version, "annotations": none}});
    let mut reported: Vec<String> = found.into_iter().map(|(_, text)| text).collect();
    if let Some((endpoints, hinted)) = hints {
        patch["endpoints"] = endpoints.into();
        reported.push(format!("hints of {}", output::count(hinted, "endpoint")));
    }
    Some((patch, reported.join(", ")))
}

async fn clear_slice(client: &Client, mut slice: Value, done: &mut HandedBack) -> Result<()> {
    let place = place(&slice);
    let path = path("/apis/discovery.k8s.io/v1", "endpointslices", &slice);
    for _ in 0..ATTEMPTS {
        let Some((patch, reported)) = cleared(&slice) else { return Ok(()) };
        match send::<Value>(client, Method::PATCH, &path, MERGE_PATCH, &patch).await {
            Ok(_) => {
                done.annotations.push((place, reported));
                return Ok(());
            }
            Err(Error::Api(status)) if status.code == NOT_FOUND => return Ok(()),
            Err(Error::Api(status)) if status.code == CONFLICT => {}
            Err(error) => return Err(error).with_context(|| format!("changing EndpointSlice {place}")),
        }
        slice = match send(client, Method::GET, &path, "", &Value::Null).await {
            Err(Error::Api(status)) if status.code == NOT_FOUND => return Ok(()),
            found => found.with_context(|| format!("reading EndpointSlice {place}"))?,
        };
    }
    bail!("EndpointSlice {place} changes all the time: stop what writes it, and run this again")
}

async fn delete(client: &Client, slice: &Value, done: &mut HandedBack) -> Result<()> {
    let path = path("/apis/discovery.k8s.io/v1", "endpointslices", slice);
    match send::<Value>(client, Method::DELETE, &path, "", &Value::Null).await {
        Ok(_) => done.deleted.push(place(slice)),
        Err(Error::Api(status)) if status.code == NOT_FOUND => {}
        Err(error) => return Err(error).with_context(|| format!("deleting EndpointSlice {}", place(slice))),
    }
    Ok(())
}

async fn clear_conditions(client: &Client, service: &Value, done: &mut HandedBack) -> Result<()> {
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
        Ok(_) => done.conditions.push(place(service)),
        Err(Error::Api(status)) if status.code == NOT_FOUND => {}
        Err(error) => {
            return Err(error).with_context(|| format!("changing the status of Service {}", place(service)));
        }
    }
    Ok(())
}

fn text<'v>(object: &'v Value, field: &str) -> &'v str {
    object["metadata"][field].as_str().unwrap_or_default()
}

fn place(object: &Value) -> String {
    format!("{}/{}", text(object, "namespace"), text(object, "name"))
}

fn path(root: &str, plural: &str, object: &Value) -> String {
    format!("{root}/namespaces/{}/{plural}/{}", text(object, "namespace"), text(object, "name"))
}

impl HandedBack {
    /// One line per object, the sums, and what comes next.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (slice, reported) in &self.annotations {
            text += &format!("EndpointSlice {slice}: removed {reported}\n");
        }
        for slice in &self.deleted {
            text += &format!("EndpointSlice {slice}: deleted, only Zoneward's nodes used it\n");
        }
        for service in &self.conditions {
            text += &format!("Service {service}: removed our conditions\n");
        }
        text += &format!(
            "Handed back: {} without our annotations, {} deleted, {} without our conditions.\n",
            output::count(self.annotations.len(), "EndpointSlice"),
            self.deleted.len(),
            output::count(self.conditions.len(), "Service"),
        );
        text + "Now let kube-controller-manager's EndpointSlice controller run again: take -endpointslice-controller out of \
                its --controllers.\n"
    }
}
