//! Bootstrap objects: namespaces, default roles and bindings, the default ServiceCIDR, and the Service of the API.
//! Created at start if missing; the Service also while the API runs.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use apimachinery::cluster_ips::{api_address, check_api_address, kubernetes_service};
use apimachinery::rbac::{bootstrap_objects, reconciled};
use ipnet::IpNet;
use model::{Interner, IpAddress, Notice, Object, ObjectRef, Service, ServiceCidr};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::admission::policy;
use crate::api::{Api, Caller, WriteContext, create_in};
use crate::engine::{ListQuery, Lister, ResourceId, StoreKey, StoreReadError};
use crate::kinds::{self, ResourceKind};
use crate::meta;
use crate::object_txn::{ObjectTxn, key, parse};
use crate::query::WriteOptions;
use crate::rbac_controller;
use crate::status::StatusError;

const NAMESPACES: &[&str] = &["default", "kube-system"];

/// The parameters of the bootstrap objects.
#[derive(Clone, Debug)]
pub struct BootstrapOptions {
    /// `--service-cluster-ip-range`.
    pub service_cidrs: Vec<IpNet>,
    /// Where the API listens.
    pub listen: SocketAddr,
}

/// The result of [`bootstrap`].
#[derive(Clone, Debug, Default)]
pub struct BootstrapOutcome {
    /// The cluster IP of the API's Service.
    pub cluster_ip: Option<IpAddr>,
    /// Problems with stored objects, and how to repair them.
    pub notices: Vec<Notice>,
}

/// How often the API's Service is checked.
const PERIOD: Duration = Duration::from_secs(1);

fn kind(word: &str) -> &'static ResourceKind {
    kinds::named(word).expect("the table has the bootstrap kinds")
}

/// Creates the missing objects.
pub async fn bootstrap(api: &Api, options: BootstrapOptions) -> Result<BootstrapOutcome, StatusError> {
    for name in NAMESPACES {
        let object = json!({"metadata": {"name": name}});
        ensure(api, kind("Namespace"), object).await?;
    }
    write_rbac(api).await?;
    ensure(api, kind("ServiceCIDR"), service_cidr(&options)).await?;
    let written = write_api_service(api, options.listen).await;
    let mut notices = check(&|query| api.engine().list(query)).map_err(StatusError::internal)?;
    notices.extend(written.err().map(|error| not_created(&error)));
    let own = api.engine().get(&own_key("Service")).map_err(StatusError::internal)?;
    let own: Value = own.map(|stored| parse(&stored)).transpose()?.unwrap_or_default();
    let cluster_ip = own["spec"]["clusterIP"].as_str().and_then(|ip| ip.parse().ok());
    Ok(BootstrapOutcome { cluster_ip, notices })
}

/// Creates the default roles and bindings, and brings stored ones up to date. All in one transaction: no request sees a
/// half of them.
async fn write_rbac(api: &Api) -> Result<(), StatusError> {
    let contexts = ["ClusterRole", "ClusterRoleBinding"].map(|word| WriteContext {
        policies: false,
        ..api.write_context(kind(word), &Caller::own(), WriteOptions::default())
    });
    let work = move |objects: &mut ObjectTxn<'_, '_>| {
        // The first start of another version may have to change some.
        objects.allow_on_full_disk();
        for wanted in bootstrap_objects() {
            let context = &contexts[usize::from(wanted["kind"] == "ClusterRoleBinding")];
            match objects.find(context.kind, "", meta::text(&wanted, "name"))? {
                None => drop(create_in(objects, context, wanted)?),
                Some(stored) => {
                    if let Some(mut new) = reconciled(&stored, &wanted) {
                        objects.put(context.kind, &mut new)?;
                    }
                }
            }
        }
        Ok(())
    };
    api.commit(false, work).await?;
    rbac_controller::aggregate(api).await
}

fn not_created(error: &StatusError) -> Notice {
    let about = ObjectRef::new("Service", kubernetes_service::NAMESPACE, kubernetes_service::NAME);
    let message = format!(
        "the API's Service cannot be created: {}. Retrying every second; free an address of the service range",
        error.message
    );
    Notice::new(about, "NotMade", message)
}

/// Recreates the API's Service whenever it is deleted, until `stop` turns true.
pub async fn keep_api_service(api: Api, listen: SocketAddr, mut stop: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(PERIOD) => {}
        }
        let exists = |word| api.engine().get(&own_key(word)).is_ok_and(|found| found.is_some());
        if !exists("Service") || !exists("EndpointSlice") {
            // A failure is retried in the next period.
            let _ = write_api_service(&api, listen).await;
        }
    }
}

/// Service default/kubernetes, and its slice. Admission allocates its reserved address, or another while that is held.
async fn write_api_service(api: &Api, listen: SocketAddr) -> Result<(), StatusError> {
    ensure(api, kind("Service"), service(listen.port())).await?;
    api.commit(false, move |objects| write_slice(objects, listen)).await
}

fn own_key(word: &str) -> StoreKey {
    key(kind(word), kubernetes_service::NAMESPACE, kubernetes_service::NAME)
}

/// Finds stored objects that need repair.
pub fn check(list: &Lister<'_>) -> Result<Vec<Notice>, StoreReadError> {
    let mut notices = check_address(list)?;
    notices.extend(check_policies(list)?);
    Ok(notices)
}

/// Finds policies that cannot be evaluated, because an older version accepted more.
fn check_policies(list: &Lister<'_>) -> Result<Vec<Notice>, StoreReadError> {
    let page = list(&ListQuery::all(ResourceId(kind("ValidatingAdmissionPolicy").id)))?;
    let unloadable = page.items.iter().filter_map(|stored| {
        let policy: Value = serde_json::from_slice(&stored.json).unwrap_or_default();
        let (field, error) = policy::uncompilable(&policy).into_iter().next()?;
        let effect = match policy["spec"]["failurePolicy"].as_str() {
            Some("Ignore") => "it is ignored",
            _ => "writes that it matches are refused",
        };
        let about = ObjectRef::new("ValidatingAdmissionPolicy", "", &stored.key.name);
        let message = format!("{field}: {error}; by its failurePolicy {effect}. Change or delete the policy");
        Some(Notice::new(about, "PolicyNotLoaded", message))
    });
    Ok(unloadable.collect())
}

/// Finds other holders of the address of the API's Service, which older versions allowed.
fn check_address(list: &Lister<'_>) -> Result<Vec<Notice>, StoreReadError> {
    let cidrs: Vec<ServiceCidr> = read(list, "ServiceCIDR", "", |object| match object {
        Object::ServiceCidr(cidr) => Some(cidr),
        _ => None,
    })?;
    let Some(address) = api_address(&cidrs.iter().collect::<Vec<_>>(), &[]) else { return Ok(Vec::new()) };
    let text = format!("\"{address}\"");
    let services = read(list, "Service", &text, |object| match object {
        Object::Service(service) => Some(*service),
        _ => None,
    })?;
    let locks = read(list, "IPAddress", &text, |object| match object {
        Object::IpAddress(ip) => Some(ip),
        _ => None,
    })?;
    let (services, locks): (Vec<&Service>, Vec<&IpAddress>) =
        (services.iter().collect(), locks.iter().collect());
    Ok(check_api_address(address, &services, &locks))
}

/// The objects of a kind whose text contains `with`; only those are parsed.
fn read<T>(
    list: &Lister<'_>,
    word: &str,
    with: &str,
    pick: impl Fn(Object) -> Option<T>,
) -> Result<Vec<T>, StoreReadError> {
    let mut interner = Interner::default();
    let page = list(&ListQuery::all(ResourceId(kind(word).id)))?;
    let texts = page.items.iter().filter_map(|stored| std::str::from_utf8(&stored.json).ok());
    let objects = texts.filter(|text| text.contains(with)).filter_map(|text| {
        let object: Value = serde_json::from_str(text).ok()?;
        model::parse::object(&object, &mut interner).0
    });
    Ok(objects.filter_map(pick).collect())
}

/// Creates an object unless it exists.
async fn ensure(api: &Api, kind: &'static ResourceKind, object: Value) -> Result<(), StatusError> {
    // A policy must not keep the API from starting, because it can be removed only through the API.
    let context =
        WriteContext { policies: false, ..api.write_context(kind, &Caller::own(), WriteOptions::default()) };
    let work = move |objects: &mut ObjectTxn<'_, '_>| {
        if objects.find(kind, meta::text(&object, "namespace"), meta::text(&object, "name"))?.is_some() {
            return Ok(());
        }
        let mut created = create_in(objects, &context, object)?.object;
        if kind.kind == "ServiceCIDR" {
            created["status"] = ready(objects);
            objects.put(kind, &mut created)?;
        }
        Ok(())
    };
    api.commit(false, work).await
}

fn service_cidr(options: &BootstrapOptions) -> Value {
    let cidrs: Vec<String> = options.service_cidrs.iter().map(IpNet::to_string).collect();
    json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": cidrs}})
}

fn ready(objects: &ObjectTxn<'_, '_>) -> Value {
    json!({"conditions": [{
        "type": "Ready", "status": "True", "reason": "", "message": "Kubernetes default Service CIDR is ready",
        "lastTransitionTime": meta::time(objects.now),
    }]})
}

fn service(port: u16) -> Value {
    json!({
        "metadata": {"name": kubernetes_service::NAME, "namespace": kubernetes_service::NAMESPACE,
            "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "type": "ClusterIP",
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": port}],
        },
    })
}

/// The slice of the API's Service. An address on loopback is not reachable from elsewhere, so it is no endpoint.
fn write_slice(objects: &mut ObjectTxn<'_, '_>, listen: SocketAddr) -> Result<(), StatusError> {
    let slices = kind("EndpointSlice");
    objects.allow_on_full_disk();
    let reachable = !listen.ip().is_loopback() && !listen.ip().is_unspecified();
    let endpoints = if reachable {
        json!([{"addresses": [listen.ip().to_string()], "conditions": {"ready": true}}])
    } else {
        json!([])
    };
    let family = if listen.is_ipv4() { "IPv4" } else { "IPv6" };
    let content = json!({
        "addressType": family,
        "endpoints": endpoints,
        "ports": [{"name": "https", "port": listen.port(), "protocol": "TCP"}],
    });
    let stored = objects.find(slices, "default", "kubernetes")?;
    let mut slice = stored.clone().unwrap_or_else(|| {
        json!({"metadata": {"name": "kubernetes", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"}, "generation": 1}})
    });
    slices.stamp(&mut slice);
    for (name, value) in content.as_object().into_iter().flatten() {
        slice[name.as_str()] = value.clone();
    }
    if stored.is_none() {
        meta::prepare_new(&mut slice, objects.now, objects.names.uid());
    }
    if stored.as_ref() == Some(&slice) {
        return Ok(());
    }
    objects.put(slices, &mut slice)
}
