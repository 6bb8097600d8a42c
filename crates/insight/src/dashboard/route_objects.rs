//! Routes and gateways as the API has them, read at most every ten seconds, however many viewers there are.

use std::time::{Duration, Instant};

use crate::pages::RouteRow;
use crate::status::StatusReport;
use clock::Clock;
use cluster::ObjectKind;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use serde_json::Value;
use tokio::sync::Mutex;

use super::connections;

const MAX_AGE: Duration = Duration::from_secs(10);
/// Objects of a kind on the page.
const MAX_OBJECTS: u32 = 500;

#[derive(Default)]
pub(super) struct RouteObjects(Mutex<Option<(Instant, ReadObjects)>>);

/// The objects, and what could not be read.
type ReadObjects = (Vec<(ObjectKind, Value)>, Vec<String>);

impl RouteObjects {
    /// The rows, and what could not be read.
    pub(super) async fn rows(
        &self,
        client: &Client,
        report: &StatusReport,
        clock: &Clock,
    ) -> (Vec<RouteRow>, Vec<String>) {
        let mut kept = self.0.lock().await;
        if kept.as_ref().is_none_or(|(at, _)| clock.since(*at) >= MAX_AGE) {
            let read = read(client).await;
            *kept = Some((clock.now(), read));
        }
        let Some((_, (objects, notes))) = &*kept else { return Default::default() };
        let connections = |namespace: &str, name: &str| connections(report, namespace, name);
        let rows = objects
            .iter()
            .flat_map(|(kind, object)| RouteRow::of_object(kind.as_str(), object, &connections))
            .collect();
        (rows, notes.clone())
    }
}

async fn read(client: &Client) -> ReadObjects {
    let (mut objects, mut notes) = (Vec::new(), Vec::new());
    for kind in ObjectKind::MESH {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind.resource());
        match api.list(&ListParams::default().limit(MAX_OBJECTS)).await {
            Ok(found) => {
                if found.metadata.remaining_item_count.is_some_and(|rest| rest > 0)
                    || found.metadata.continue_.as_deref().is_some_and(|text| !text.is_empty())
                {
                    notes.push(format!("only {MAX_OBJECTS} objects of kind {} are shown", kind.as_str()));
                }
                let values = found.items.iter().filter_map(|object| serde_json::to_value(object).ok());
                objects.extend(values.map(|value| (kind, value)));
            }
            // Clusters without the kinds of zoneward.dev have no routes.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => notes.push(format!("{} cannot be read: {error}", kind.as_str())),
        }
    }
    (objects, notes)
}
