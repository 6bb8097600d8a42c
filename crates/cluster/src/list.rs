//! Paged lists of a kind, for commands that read a cluster once.

use anyhow::{Context, Result};
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use model::gateway_api::GatewayApiKind;
use serde_json::Value;

use super::ObjectKind;

/// Objects per page, as in kubectl.
const PAGE: u32 = 500;
/// The continue token has expired.
const GONE: u16 = 410;
/// The API does not serve the kind.
const NOT_FOUND: u16 = 404;

impl ObjectKind {
    pub fn is_namespaced(self) -> bool {
        !matches!(
            self,
            Self::Node
                | Self::Namespace
                | Self::ServiceCidr
                | Self::IpAddress
                | Self::CustomResourceDefinition
                | Self::ZoneDrain
                | Self::GatewayApi(GatewayApiKind::Class)
        )
    }
}

/// Lists the objects of a kind, in one namespace if the kind is namespaced; empty if the API does not serve the kind.
pub async fn list(client: &Client, kind: ObjectKind, namespace: Option<&str>) -> Result<Vec<Value>> {
    let resource = kind.resource();
    let api: Api<DynamicObject> = match namespace.filter(|_| kind.is_namespaced()) {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let what = || format!("listing {}", resource.plural);
    let mut objects = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = match api.list(&page).await {
            Ok(list) => list,
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => return Ok(Vec::new()),
            Err(kube::Error::Api(status)) if status.code == GONE && page.continue_token.is_some() => {
                // Restart without pages.
                objects.clear();
                page = ListParams::default();
                continue;
            }
            Err(error) => return Err(error).with_context(what),
        };
        let next = list.metadata.continue_.clone().filter(|token| !token.is_empty());
        for object in list.items {
            let mut value = serde_json::to_value(&object).with_context(what)?;
            value["kind"] = resource.kind.as_str().into();
            value["apiVersion"] = resource.api_version.as_str().into();
            objects.push(value);
        }
        match next {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(objects),
        }
    }
}
