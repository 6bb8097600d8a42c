//! A plan for one Service -> the API: creates, then updates, then deletes (semantics B4), each for the version that the
//! plan was made from. The first failure ends it: what was written is reported, the rest is planned again.

use http::Method;
use jiff::Timestamp;
use kube::{Client, Error};
use model::{ObjectKey, ServiceKey, Slice, SliceContent, Uid, write};
use plan::work_queue::SliceVersion;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::debug;

use super::conditions::Refusal;
use cluster::events;
use cluster::failure;
use cluster::write::{JSON, JSON_PATCH, STRATEGIC_MERGE, send};

const FIELD_MANAGER: &str = "fieldManager=zoneward-controller";

/// What is to be written for one Service.
#[derive(Debug, Default)]
pub struct SliceWrites {
    /// The Service.
    pub service: ServiceKey,
    /// Its identity, for the slices' owner reference.
    pub uid: Option<Uid>,
    /// Slices to make.
    pub creates: Vec<SliceContent>,
    /// Stored slices, with what they will hold.
    pub updates: Vec<(Slice, SliceContent)>,
    /// Stored slices to delete.
    pub deletes: Vec<StoredSlice>,
    /// Whether the deletes are because no Service is seen: then it has to be missing at the API as well.
    pub orphans: bool,
    /// The patch of the Service's status once the slices are written.
    pub conditions: Option<Value>,
    /// What the status says if the API refuses the slices.
    pub on_refusal: Option<Refusal>,
    /// What there is to say.
    pub events: Vec<Value>,
}

impl SliceWrites {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.creates.is_empty()
            && self.updates.is_empty()
            && self.deletes.is_empty()
            && self.conditions.is_none()
            && self.events.is_empty()
    }
}

/// A stored slice, as far as deleting it needs.
#[derive(Clone, Debug)]
pub struct StoredSlice {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Its identity.
    pub uid: Option<Uid>,
    /// Its version.
    pub resource_version: Option<String>,
}

/// What became of it.
#[derive(Debug, Default)]
pub struct WriteResult {
    /// The Service.
    pub service: ServiceKey,
    /// Slices that were written, with the API's new version of them.
    pub written: Vec<(Uid, SliceVersion)>,
    /// Slices that were deleted.
    pub deleted: Vec<Uid>,
    /// How many slices the API created, updated and deleted.
    pub slices: WrittenSlices,
    /// Events that were written and that were not.
    pub events: (usize, usize),
    /// Why it did not come to its end.
    pub failure: Option<WriteFailure>,
}

/// Writes of EndpointSlices that the API acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrittenSlices {
    /// Created.
    pub creates: usize,
    /// Updated.
    pub updates: usize,
    /// Deleted.
    pub deletes: usize,
}

/// Why writing stopped.
#[derive(Debug, PartialEq, Eq)]
pub enum WriteFailure {
    /// The object has changed since: a newer cache will tell.
    Outdated(String),
    /// The API does not take it.
    Refused(String),
    /// The API did not answer, or could not for now.
    Unavailable(String),
}

impl WriteFailure {
    fn of(error: &Error) -> Self {
        match error {
            Error::Api(status) if matches!(status.code, 404 | 409) => Self::Outdated(status.message.clone()),
            Error::Api(status) if is_refusal(status.code) => Self::Refused(status.message.clone()),
            other => Self::Unavailable(failure::cause(other)),
        }
    }

    /// The words of the API.
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

/// Carries out the work.
pub async fn commit(client: &Client, work: SliceWrites) -> WriteResult {
    let mut done = WriteResult { service: work.service.clone(), ..WriteResult::default() };
    let mut writer = Writer { client, work: &work, done: &mut done };
    if let Err(failure) = writer.slices().await {
        if let WriteFailure::Refused(why) = &failure {
            writer.say_refused(why).await;
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
                debug!(service = %work.service, error = failure::cause(&error), "an Event could not be written");
                done.events.1 += 1;
            }
        }
    }
    done
}

struct Writer<'w> {
    client: &'w Client,
    work: &'w SliceWrites,
    done: &'w mut WriteResult,
}

impl Writer<'_> {
    async fn slices(&mut self) -> Result<(), WriteFailure> {
        let work = self.work;
        if work.orphans && self.service_exists().await? {
            return Err(WriteFailure::Outdated("the Service is there after all".to_owned()));
        }
        for content in &work.creates {
            if !self.create(content).await? {
                // Semantics B4: nothing can be made any more in a namespace that is going away.
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

    /// False if the namespace is going away.
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
                // The stored JSON has a form that the patch did not expect: change it in place instead.
                Err(Error::Api(status)) if status.code == 422 => {}
                Err(error) => return Err(WriteFailure::of(&error)),
            }
        }
        let failed = |error: Error| WriteFailure::of(&error);
        let mut object: Value =
            send(self.client, Method::GET, &path, "", &Value::Null).await.map_err(failed)?;
        write::update_slice(&mut object, content);
        // The plan was made for this version, whatever was just read.
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

    /// KEP-4444, Programmed: it says what became of the write, not what was meant.
    async fn say_refused(&mut self, why: &str) {
        let refusal = self.work.on_refusal.as_ref();
        let Some(patch) = refusal.and_then(|refusal| refusal.patch(why, Timestamp::now())) else { return };
        if let Err(failure) = self.conditions(&patch).await {
            debug!(service = %self.work.service, error = failure.text(), "conditions could not be written");
        }
    }

    async fn conditions(&mut self, patch: &Value) -> Result<(), WriteFailure> {
        let path = format!("{}/status?{FIELD_MANAGER}", service_path(&self.work.service));
        let sent = send::<Written>(self.client, Method::PATCH, &path, STRATEGIC_MERGE, patch).await;
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

fn slices_path(namespace: &str) -> String {
    format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
}

fn service_path(service: &ServiceKey) -> String {
    format!("/api/v1/namespaces/{}/services/{}", service.namespace, service.name)
}

/// Whether the API says that the object itself is not acceptable; 408 and 429 are about the moment.
fn is_refusal(code: u16) -> bool {
    (400..500).contains(&code) && !matches!(code, 401 | 408 | 429)
}

fn is_namespace_terminating(error: &Error) -> bool {
    let Error::Api(status) = error else { return false };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 403 && causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}
