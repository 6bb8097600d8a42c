//! Writes of the address controllers. Watches may lag, so objects are read before they are changed, and writes carry
//! the resourceVersion that was read.

use std::net::IpAddr;

use anyhow::{Context, Result};
use apimachinery::cluster_ips::CidrAction;
use apimachinery::cluster_ips::service_cidr::DEFAULT_NAME;
use clock::Clock;
use ipnet::IpNet;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Error};
use model::{Interner, IpAddress, Notice, Object, Service, parse, write};
use serde_json::json;
use tracing::warn;

use cluster::events;
use cluster::{ObjectKind, failure};

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";

pub(super) struct AddressWriter {
    client: Client,
    clock: Clock,
}

impl AddressWriter {
    pub(super) fn new(client: Client, clock: Clock) -> Self {
        Self { client, clock }
    }

    fn all(&self, kind: ObjectKind) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &kind.resource())
    }

    pub(super) async fn create_default(&self, ranges: &[IpNet]) -> Result<()> {
        let mut cidr = DynamicObject::new(DEFAULT_NAME, &ObjectKind::ServiceCidr.resource());
        cidr.data = json!({"spec": {"cidrs": texts(ranges)}});
        match self.all(ObjectKind::ServiceCidr).create(&PostParams::default(), &cidr).await {
            Err(error) if !is_conflict(&error) => Err(error).context("creating it"),
            _ => Ok(()),
        }
    }

    pub(super) async fn upgrade_default(&self, ranges: &[IpNet]) -> Result<()> {
        let change = json!({"spec": {"cidrs": texts(ranges)}});
        let api = self.all(ObjectKind::ServiceCidr);
        let patched = api.patch(DEFAULT_NAME, &PatchParams::default(), &Patch::Merge(&change)).await;
        patched.map(drop).context("adding the range of the other family")
    }

    /// Applies an action to a ServiceCIDR if its state still requires it.
    pub(super) async fn sync_cidr(&self, name: &str, action: &CidrAction) -> Result<()> {
        let api = self.all(ObjectKind::ServiceCidr);
        match action {
            CidrAction::Wait(_) => Ok(()),
            CidrAction::SetReady => {
                self.set_ready(name, "True", "", "the range is ready for Services to get addresses from")
                    .await
            }
            CidrAction::SetTerminating { message } => {
                self.set_ready(name, "False", "Terminating", message).await
            }
            CidrAction::AddFinalizer | CidrAction::RemoveFinalizer => {
                let Some(mut cidr) = api.get_opt(name).await.context("reading it")? else { return Ok(()) };
                let deleting = cidr.metadata.deletion_timestamp.is_some();
                let finalizers = cidr.metadata.finalizers.get_or_insert_default();
                let has = finalizers.iter().any(|finalizer| finalizer == FINALIZER);
                match action {
                    CidrAction::AddFinalizer if !deleting && !has => finalizers.push(FINALIZER.to_owned()),
                    CidrAction::RemoveFinalizer if deleting && has => finalizers.retain(|f| f != FINALIZER),
                    _ => return Ok(()),
                }
                api.replace(name, &PostParams::default(), &cidr).await.context("writing its finalizers")?;
                Ok(())
            }
        }
    }

    async fn set_ready(&self, name: &str, status: &str, reason: &str, message: &str) -> Result<()> {
        let condition = json!({
            "type": "Ready", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": self.clock.timestamp().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        });
        let change = json!({"status": {"conditions": [condition]}});
        let api = self.all(ObjectKind::ServiceCidr);
        match api.patch_status(name, &PatchParams::default(), &Patch::Strategic(&change)).await {
            Err(Error::Api(status)) if status.code == 404 => Ok(()),
            patched => patched.map(drop).context("writing its condition Ready"),
        }
    }

    /// Deletes an IPAddress if it is unchanged since the decision; else returns false.
    pub(super) async fn delete_ip(&self, decided: &IpAddress) -> Result<bool> {
        let name = decided.address.to_string();
        let api = self.all(ObjectKind::IpAddress);
        let Some(stored) = api.get_opt(&name).await.context("reading it")? else { return Ok(true) };
        if !matches!(self.read(ObjectKind::IpAddress, &stored)?, Some(Object::IpAddress(now)) if now == *decided)
        {
            return Ok(false);
        }
        let preconditions = Preconditions {
            uid: stored.metadata.uid.clone(),
            resource_version: stored.metadata.resource_version.clone(),
        };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match api.delete(&name, &params).await {
            Err(Error::Api(status)) if status.code == 404 => Ok(true),
            Err(error) if is_conflict(&error) => Ok(false),
            deleted => deleted.map(|_| true).context("deleting it"),
        }
    }

    /// Creates the IPAddress of an address that the Service still lists; else, or on a conflict, returns false.
    pub(super) async fn create_ip(&self, ip: IpAddr, service: &Service) -> Result<bool> {
        let key = &service.key;
        let services: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &key.namespace, &ObjectKind::Service.resource());
        let Some(stored) = services.get_opt(&key.name).await.context("reading its Service")? else {
            return Ok(false);
        };
        let lists = match self.read(ObjectKind::Service, &stored)? {
            Some(Object::Service(now)) => now.cluster_ips.addresses().contains(&ip),
            _ => false,
        };
        if !lists {
            return Ok(false);
        }
        let new: DynamicObject =
            serde_json::from_value(write::new_ip_address(ip, key)).context("an IPAddress")?;
        match self.all(ObjectKind::IpAddress).create(&PostParams::default(), &new).await {
            Err(error) if is_conflict(&error) => Ok(false),
            made => made.map(|_| true).context("creating it"),
        }
    }

    fn read(&self, kind: ObjectKind, stored: &DynamicObject) -> Result<Option<Object>> {
        let text = serde_json::to_string(stored).context("writing JSON")?;
        let resource = kind.resource();
        Ok(parse::text(&resource.api_version, &resource.kind, &text, &mut Interner::default()).0)
    }

    /// Records a Notice as an Event; a failure is only logged.
    pub(super) async fn record(&self, notice: &Notice) {
        let event = events::event(events::ADDRESS_CONTROLLER, notice, None, self.clock.timestamp());
        let made = events::record(&self.client, &event).await;
        if let Err(error) = made {
            warn!(object = %notice.object, reason = notice.reason, error = failure::cause(&error), "failed to write an Event");
        }
    }
}

fn texts(ranges: &[IpNet]) -> Vec<String> {
    ranges.iter().map(IpNet::to_string).collect()
}

fn is_conflict(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 409)
}
