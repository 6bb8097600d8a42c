//! Writes the plan of one Service: creates, then updates, then deletes (semantics B4), each with the planned version as a
//! precondition. The first failure ends the sync; the Service is then planned again.

use clock::Clock;
use http::Method;
use kube::{Client, Error};
use model::{ObjectKey, ServiceKey, Slice, SliceContent, Uid, write};
use plan::work_queue::SliceVersion;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::debug;

use super::conditions::RejectedWrite;
use cluster::events;
use cluster::failure;
use cluster::write::{JSON, JSON_PATCH, STRATEGIC_MERGE, send};

const FIELD_MANAGER: &str = "fieldManager=zoneward-controller";

/// The writes of one Service.
#[derive(Debug, Default)]
pub struct SliceWrites {
    pub service: ServiceKey,
    /// The Service's UID, for owner references.
    pub uid: Option<Uid>,
    pub creates: Vec<SliceContent>,
    /// Stored slices with their new content.
    pub updates: Vec<(Slice, SliceContent)>,
    pub deletes: Vec<StoredSlice>,
    /// The deletes are orphans: they require that the API has no such Service.
    pub orphans: bool,
    /// Patch of the Service's status after the slices.
    pub conditions: Option<Value>,
    /// Conditions if the API rejects the slices.
    pub on_rejection: Option<RejectedWrite>,
    pub events: Vec<Value>,
}

impl SliceWrites {
    pub fn is_empty(&self) -> bool {
        self.creates.is_empty()
            && self.updates.is_empty()
            && self.deletes.is_empty()
            && self.conditions.is_none()
            && self.events.is_empty()
    }
}

/// The preconditions of a delete.
#[derive(Clone, Debug)]
pub struct StoredSlice {
    pub key: ObjectKey,
    pub uid: Option<Uid>,
    pub resource_version: Option<String>,
}

impl From<&Slice> for StoredSlice {
    fn from(slice: &Slice) -> Self {
        Self {
            key: slice.key.clone(),
            uid: slice.uid.clone(),
            resource_version: slice.resource_version.as_ref().map(ToString::to_string),
        }
    }
}

/// A stored slice by its key.
pub(crate) fn find<'s>(stored: &'s [Slice], key: &ObjectKey) -> Option<&'s Slice> {
    stored.iter().find(|slice| slice.key == *key)
}

/// Planned updates with the stored slices that they change.
pub(crate) fn with_stored(
    stored: &[Slice],
    updates: Vec<(ObjectKey, SliceContent)>,
) -> Vec<(Slice, SliceContent)> {
    let pair = |(key, content): (ObjectKey, _)| Some((find(stored, &key)?.clone(), content));
    updates.into_iter().filter_map(pair).collect()
}

#[derive(Debug, Default)]
pub struct WriteResult {
    pub service: ServiceKey,
    /// Written slices with their new versions.
    pub written: Vec<(Uid, SliceVersion)>,
    pub deleted: Vec<Uid>,
    pub slices: WrittenSlices,
    /// Events written, and Events that failed.
    pub events: (usize, usize),
    pub failure: Option<WriteFailure>,
}

/// Slice writes that the API acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrittenSlices {
    pub creates: usize,
    pub updates: usize,
    pub deletes: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub enum WriteFailure {
    /// Conflict: the object has changed, and the cache will show it.
    Outdated(String),
    /// The API rejects the object.
    Refused(String),
    /// No response, or a temporary failure.
    Unavailable(String),
}

impl WriteFailure {
    fn of(error: &Error) -> Self {
        match error {
            Error::Api(status) if matches!(status.code, 404 | 409) => Self::Outdated(status.message.clone()),
            Error::Api(status) if is_rejection(status.code) => Self::Refused(status.message.clone()),
            other => Self::Unavailable(failure::cause(other)),
        }
    }

    /// The message of the API.
    pub fn text(&self) -> &str {
        match self {
            Self::Outdated(text) | Self::Refused(text) | Self::Unavailable(text) => text,
        }
    }
}

#[derive(Deserialize)]
struct Written {
    metadata: WrittenMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenMeta {
    uid: Option<String>,
    generation: Option<i64>,
    resource_version: Option<String>,
}

/// Sends the writes.
pub async fn commit(client: &Client, clock: &Clock, work: SliceWrites) -> WriteResult {
    let mut done = WriteResult { service: work.service.clone(), ..WriteResult::default() };
    let mut writer = Writer { client, clock, work: &work, done: &mut done };
    if let Err(failure) = writer.slices().await {
        if let WriteFailure::Refused(message) = &failure {
            writer.report_rejection(message).await;
        }
        done.failure = Some(failure);
        return done;
    }
    if let Some(patch) = &work.conditions
        && let Err(failure) = writer.conditions(patch).await
    {
        writer.done.failure = Some(failure);
    }
    for event in &work.events {
        match events::record(client, event).await {
            Ok(()) => done.events.0 += 1,
            Err(error) => {
                debug!(service = %work.service, error = failure::cause(&error), "failed to write an Event");
                done.events.1 += 1;
            }
        }
    }
    done
}

struct Writer<'w> {
    client: &'w Client,
    clock: &'w Clock,
    work: &'w SliceWrites,
    done: &'w mut WriteResult,
}

impl Writer<'_> {
    async fn slices(&mut self) -> Result<(), WriteFailure> {
        let work = self.work;
        if work.orphans && self.service_exists().await? {
            return Err(WriteFailure::Outdated("the Service exists".to_owned()));
        }
        for content in &work.creates {
            if !self.create(content).await? {
                // Semantics B4: a terminating namespace rejects creates.
                return Ok(());
            }
        }
        for (stored, content) in &work.updates {
            self.update(stored, content).await?;
        }
        for stored in &work.deletes {
            self.delete(stored).await?;
        }
        Ok(())
    }

    async fn service_exists(&self) -> Result<bool, WriteFailure> {
        let path = service_path(&self.work.service);
        match send::<Written>(self.client, Method::GET, &path, "", &Value::Null).await {
            Ok(_) => Ok(true),
            Err(Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(WriteFailure::of(&error)),
        }
    }

    /// Returns false if the namespace is terminating.
    async fn create(&mut self, content: &SliceContent) -> Result<bool, WriteFailure> {
        let object = write::new_slice(&self.work.service, self.work.uid.as_ref(), content);
        let path = format!("{}?{FIELD_MANAGER}", slices_path(&self.work.service.namespace));
        match send::<Written>(self.client, Method::POST, &path, JSON, &object).await {
            Ok(written) => {
                self.note(&written);
                self.done.slices.creates += 1;
            }
            Err(error) if is_namespace_terminating(&error) => return Ok(false),
            Err(error) => return Err(WriteFailure::of(&error)),
        }
        Ok(true)
    }

    async fn update(&mut self, stored: &Slice, content: &SliceContent) -> Result<(), WriteFailure> {
        let path = format!("{}/{}", slices_path(&stored.key.namespace), stored.key.name);
        if let Some(patch) = write::patch_slice(stored, content) {
            let target = format!("{path}?{FIELD_MANAGER}");
            match send::<Written>(self.client, Method::PATCH, &target, JSON_PATCH, &patch).await {
                Ok(written) => {
                    self.note(&written);
                    self.done.slices.updates += 1;
                    return Ok(());
                }
                // The stored JSON has another form than the patch expects: update the object instead.
                Err(Error::Api(status)) if status.code == 422 => {}
                Err(error) => return Err(WriteFailure::of(&error)),
            }
        }
        let failed = |error: Error| WriteFailure::of(&error);
        let mut object: Value =
            send(self.client, Method::GET, &path, "", &Value::Null).await.map_err(failed)?;
        write::update_slice(&mut object, content);
        // The precondition is the planned version, not the one just read.
        object["metadata"]["resourceVersion"] = stored.resource_version.as_deref().into();
        let target = format!("{path}?{FIELD_MANAGER}");
        let written = send(self.client, Method::PUT, &target, JSON, &object).await.map_err(failed)?;
        self.note(&written);
        self.done.slices.updates += 1;
        Ok(())
    }

    async fn delete(&mut self, stored: &StoredSlice) -> Result<(), WriteFailure> {
        let path = format!("{}/{}", slices_path(&stored.key.namespace), stored.key.name);
        let uid = stored.uid.as_ref().map(Uid::to_string);
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions",
            "preconditions": {"uid": uid, "resourceVersion": stored.resource_version}});
        match send::<Value>(self.client, Method::DELETE, &path, JSON, &options).await {
            Ok(_) => self.done.slices.deletes += 1,
            Err(Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(WriteFailure::of(&error)),
        }
        self.done.deleted.extend(stored.uid.clone());
        Ok(())
    }

    /// KEP-4444, Programmed: it reports the outcome of the write, not the plan.
    async fn report_rejection(&mut self, message: &str) {
        let rejected = self.work.on_rejection.as_ref();
        let Some(patch) = rejected.and_then(|rejected| rejected.patch(message, self.clock.timestamp()))
        else {
            return;
        };
        if let Err(failure) = self.conditions(&patch).await {
            debug!(service = %self.work.service, error = failure.text(), "failed to write conditions");
        }
    }

    async fn conditions(&mut self, patch: &Value) -> Result<(), WriteFailure> {
        let path = format!("{}/status?{FIELD_MANAGER}", service_path(&self.work.service));
        let patch = only_for(self.work.uid.as_ref(), patch.clone());
        let sent = send::<Written>(self.client, Method::PATCH, &path, STRATEGIC_MERGE, &patch).await;
        sent.map(drop).map_err(|error| WriteFailure::of(&error))
    }

    fn note(&mut self, written: &Written) {
        let meta = &written.metadata;
        let Some(uid) = &meta.uid else { return };
        let revision = meta.resource_version.as_ref().and_then(|version| version.parse().ok());
        let version = SliceVersion { generation: meta.generation.unwrap_or(0), revision };
        self.done.written.push((Uid::new(uid), version));
    }
}

/// A patch that another Service of the same name refuses with 409: a condition whose status stays is sent without
/// lastTransitionTime, which a new Service would lack.
fn only_for(uid: Option<&Uid>, mut patch: Value) -> Value {
    if let Some(uid) = uid {
        patch["metadata"] = json!({"uid": uid.to_string()});
    }
    patch
}

fn slices_path(namespace: &str) -> String {
    format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
}

fn service_path(service: &ServiceKey) -> String {
    format!("/api/v1/namespaces/{}/services/{}", service.namespace, service.name)
}

/// Whether the API rejects the object itself; 401, 408 and 429 are temporary.
fn is_rejection(code: u16) -> bool {
    (400..500).contains(&code) && !matches!(code, 401 | 408 | 429)
}

fn is_namespace_terminating(error: &Error) -> bool {
    let Error::Api(status) = error else { return false };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 403 && causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_for_the_service_of_their_uid() {
        let patch = json!({"status": {"conditions": []}});
        let uid = Uid::new("a");
        assert_eq!(only_for(Some(&uid), patch.clone())["metadata"]["uid"], "a");
        assert_eq!(only_for(None, patch.clone()), patch);
    }
}
