//! What `expose` reads and writes. The Service comes first, because the slices name it as their owner.

use anyhow::{Context, Result};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::{Client, Error};
use model::{Interner, Snapshot, annotation, parse};
use serde_json::{Value, json};

use super::changes::{Action, Change, Changes, Found};
use super::wish::Wish;
use cluster::ResourceKind;

/// How many objects come at once.
const PAGE: u32 = 500;

fn within(client: &Client, wish: &Wish, kind: ResourceKind) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), &wish.namespace, &kind.resource())
}

fn value(object: DynamicObject, kind: ResourceKind) -> Result<Value> {
    let resource = kind.resource();
    let mut value = serde_json::to_value(object).context("writing JSON")?;
    value["apiVersion"] = json!(resource.api_version);
    value["kind"] = json!(resource.kind);
    Ok(value)
}

pub async fn find(client: &Client, wish: &Wish) -> Result<Found> {
    let service = within(client, wish, ResourceKind::Service).get_opt(&wish.name).await;
    let service = service.with_context(|| format!("reading Service {}/{}", wish.namespace, wish.name))?;
    let service = service.map(|service| value(service, ResourceKind::Service)).transpose()?;
    let selector = format!("{}={}", annotation::SERVICE_NAME, wish.name);
    let slices =
        list(&within(client, wish, ResourceKind::Slice), ResourceKind::Slice, Some(&selector)).await?;
    let mut snapshot = Snapshot::default();
    let nodes = Api::all_with(client.clone(), &ResourceKind::Node.resource());
    for node in list(&nodes, ResourceKind::Node, None).await? {
        note(&mut snapshot, &node);
    }
    let namespaces: Api<DynamicObject> = Api::all_with(client.clone(), &ResourceKind::Namespace.resource());
    if let Some(namespace) = namespaces.get_opt(&wish.namespace).await.context("reading the namespace")? {
        note(&mut snapshot, &value(namespace, ResourceKind::Namespace)?);
    }
    Ok(Found { service, slices, snapshot })
}

fn note(snapshot: &mut Snapshot, object: &Value) {
    // A node that cannot be read counts for nothing, here as in the controller.
    if let (Some(object), _) = parse::object(object, &mut Interner::default()) {
        snapshot.apply(object);
    }
}

async fn list(api: &Api<DynamicObject>, kind: ResourceKind, selector: Option<&str>) -> Result<Vec<Value>> {
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

pub async fn write(client: &Client, wish: &Wish, changes: &mut Changes) -> Result<()> {
    if let Some(service) = &mut changes.service {
        put(&within(client, wish, ResourceKind::Service), ResourceKind::Service, service).await?;
        let owner = json!([{
            "apiVersion": "v1", "kind": "Service", "name": wish.name, "uid": service.object["metadata"]["uid"],
            "controller": true, "blockOwnerDeletion": true,
        }]);
        for slice in changes.slices.iter_mut().filter(|slice| slice.action == Action::Create) {
            slice.object["metadata"]["ownerReferences"] = owner.clone();
        }
    }
    for slice in &mut changes.slices {
        put(&within(client, wish, ResourceKind::Slice), ResourceKind::Slice, slice).await?;
    }
    for (kind, name) in &changes.deletes {
        let kind = if *kind == "Service" { ResourceKind::Service } else { ResourceKind::Slice };
        match within(client, wish, kind).delete(name, &DeleteParams::default()).await {
            Err(Error::Api(status)) if status.code == 404 => {}
            deleted => drop(deleted.with_context(|| format!("deleting {} {name}", kind.as_str()))?),
        }
    }
    Ok(())
}

/// Writes an object and keeps what the API made of it. A stored one carries its version, so nobody's change is lost.
async fn put(api: &Api<DynamicObject>, kind: ResourceKind, change: &mut Change) -> Result<()> {
    let name = change.name().to_owned();
    let object: DynamicObject = serde_json::from_value(change.object.clone()).context("an object")?;
    let written = match change.action {
        Action::Keep => return Ok(()),
        Action::Create => api.create(&PostParams::default(), &object).await,
        Action::Update => api.replace(&name, &PostParams::default(), &object).await,
    };
    let written = written.with_context(|| format!("writing {} {name}", kind.as_str()))?;
    change.object = value(written, kind)?;
    Ok(())
}
