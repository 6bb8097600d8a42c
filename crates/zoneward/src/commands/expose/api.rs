//! API access of `expose`. The Service is written first, because it owns the slices.

use anyhow::{Context, Result};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::{Client, Error};
use model::{Interner, Snapshot, annotation, parse};
use serde_json::{Value, json};

use super::spec::ExposeSpec;
use super::writes::{ExistingObjects, ExposingNode, PlannedWrite, PlannedWrites, WriteAction};
use cluster::ObjectKind;

/// Page size of lists.
const PAGE: u32 = 500;

fn within(client: &Client, spec: &ExposeSpec, kind: ObjectKind) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), &spec.namespace, &kind.resource())
}

fn value(object: DynamicObject, kind: ObjectKind) -> Result<Value> {
    let resource = kind.resource();
    let mut value = serde_json::to_value(object).context("writing JSON")?;
    value["apiVersion"] = json!(resource.api_version);
    value["kind"] = json!(resource.kind);
    Ok(value)
}

pub(super) async fn find(client: &Client, spec: &ExposeSpec) -> Result<ExistingObjects> {
    let service = within(client, spec, ObjectKind::Service).get_opt(&spec.name).await;
    let service = service.with_context(|| format!("reading Service {}/{}", spec.namespace, spec.name))?;
    let service = service.map(|service| value(service, ObjectKind::Service)).transpose()?;
    let selector = format!("{}={}", annotation::SERVICE_NAME, spec.name);
    let slices = list(&within(client, spec, ObjectKind::Slice), ObjectKind::Slice, Some(&selector)).await?;
    let mut snapshot = Snapshot::default();
    let nodes = Api::all_with(client.clone(), &ObjectKind::Node.resource());
    for node in list(&nodes, ObjectKind::Node, None).await? {
        note(&mut snapshot, &node);
    }
    let namespaces: Api<DynamicObject> = Api::all_with(client.clone(), &ObjectKind::Namespace.resource());
    if let Some(namespace) = namespaces.get_opt(&spec.namespace).await.context("reading the namespace")? {
        note(&mut snapshot, &value(namespace, ObjectKind::Namespace)?);
    }
    let node = exposing_node(client).await?;
    Ok(ExistingObjects { service, slices, snapshot, node })
}

/// The Node whose credential this is; `None` for other users.
async fn exposing_node(client: &Client) -> Result<Option<ExposingNode>> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let request = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
        .header("content-type", "application/json")
        .body(review.to_string().into_bytes())?;
    // A cluster that refuses it has no joined machines.
    let Ok(review) = client.request::<Value>(request).await else { return Ok(None) };
    let user = &review["status"]["userInfo"];
    let Some(name) = user["username"].as_str().and_then(|name| name.strip_prefix("system:node:")) else {
        return Ok(None);
    };
    let nodes: Api<DynamicObject> = Api::all_with(client.clone(), &ObjectKind::Node.resource());
    let node = nodes.get(name).await.with_context(|| format!("reading Node {name}"))?;
    let zone = node.metadata.labels.and_then(|mut labels| labels.remove(annotation::ZONE));
    let uid = node.metadata.uid.unwrap_or_default();
    Ok(Some(ExposingNode { name: name.to_owned(), uid, zone }))
}

fn note(snapshot: &mut Snapshot, object: &Value) {
    // Malformed nodes are ignored, as in the controller.
    if let (Some(object), _) = parse::object(object, &mut Interner::default()) {
        snapshot.apply(object);
    }
}

async fn list(api: &Api<DynamicObject>, kind: ObjectKind, selector: Option<&str>) -> Result<Vec<Value>> {
    let mut params = ListParams::default().limit(PAGE);
    params.label_selector = selector.map(str::to_owned);
    let mut all = Vec::new();
    loop {
        let page = api.list(&params).await.with_context(|| format!("listing {}s", kind.as_str()))?;
        for object in page.items {
            all.push(value(object, kind)?);
        }
        match page.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => params.continue_token = Some(more),
            None => return Ok(all),
        }
    }
}

pub(super) async fn write(client: &Client, spec: &ExposeSpec, writes: &mut PlannedWrites) -> Result<()> {
    if let Some(service) = &mut writes.service {
        put(&within(client, spec, ObjectKind::Service), ObjectKind::Service, service).await?;
        let owner = json!([{
            "apiVersion": "v1", "kind": "Service", "name": spec.name, "uid": service.object["metadata"]["uid"],
            "controller": true, "blockOwnerDeletion": true,
        }]);
        let is_ownerless = |slice: &&mut PlannedWrite| {
            slice.action == WriteAction::Create
                && slice.object["metadata"]["ownerReferences"][0]["kind"] != "Node"
        };
        for slice in writes.slices.iter_mut().filter(is_ownerless) {
            slice.object["metadata"]["ownerReferences"] = owner.clone();
        }
    }
    for slice in &mut writes.slices {
        put(&within(client, spec, ObjectKind::Slice), ObjectKind::Slice, slice).await?;
    }
    for (kind, name) in &writes.deletes {
        let kind = if *kind == "Service" { ObjectKind::Service } else { ObjectKind::Slice };
        match within(client, spec, kind).delete(name, &DeleteParams::default()).await {
            Err(Error::Api(status)) if status.code == 404 => {}
            deleted => drop(deleted.with_context(|| format!("deleting {} {name}", kind.as_str()))?),
        }
    }
    Ok(())
}

/// Writes an object and stores the response. Updates carry the resource version, so that no concurrent write is lost.
async fn put(api: &Api<DynamicObject>, kind: ObjectKind, write: &mut PlannedWrite) -> Result<()> {
    let name = write.name().to_owned();
    let object: DynamicObject = serde_json::from_value(write.object.clone()).context("an object")?;
    let written = match write.action {
        WriteAction::Keep => return Ok(()),
        WriteAction::Create => api.create(&PostParams::default(), &object).await,
        WriteAction::Update => api.replace(&name, &PostParams::default(), &object).await,
    };
    let written = written.with_context(|| format!("writing {} {name}", kind.as_str()))?;
    write.object = value(written, kind)?;
    Ok(())
}
