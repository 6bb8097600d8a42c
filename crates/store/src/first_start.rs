//! What an API has before anybody wrote anything: namespaces, the range of cluster IPs, and itself as a
//! Service. Made on first start, and again where it is missing; the Service also while the API runs.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use model::{Interner, IpAddress, Notice, Object, ObjectRef, Service, ServiceCidr};
use plan::cluster_ips::{api_address, check_api_address, kubernetes_service};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::api::{Api, Caller, Terms, create_in};
use crate::engine::{Key, Lister, Query, ReadError, ResourceId};
use crate::kinds::{self, Kind};
use crate::meta;
use crate::objects::{Objects, key, parse};
use crate::query::WriteOptions;
use crate::status::Failure;

const NAMESPACES: &[&str] = &["default", "kube-system"];

/// What the command line says about the first objects.
#[derive(Clone, Debug)]
pub struct Beginning {
    /// `--service-cluster-ip-range`.
    pub service_cidrs: Vec<IpNet>,
    /// Where the API listens.
    pub listen: SocketAddr,
}

/// What beginning came to.
#[derive(Clone, Debug, Default)]
pub struct Begun {
    /// The address of the API's own Service.
    pub cluster_ip: Option<IpAddr>,
    /// What is wrong with stored objects, and how to repair it.
    pub notices: Vec<Notice>,
}

/// How often the API's own Service is looked for.
const PERIOD: Duration = Duration::from_secs(1);

fn kind(word: &str) -> &'static Kind {
    kinds::named(word).expect("the table has the kinds that are made here")
}

/// Makes what is missing.
pub async fn begin(api: &Api, beginning: Beginning) -> Result<Begun, Failure> {
    for name in NAMESPACES {
        let object = json!({"metadata": {"name": name}});
        ensure(api, kind("Namespace"), object).await?;
    }
    ensure(api, kind("ServiceCIDR"), service_cidr(&beginning)).await?;
    let made = be_a_service(api, beginning.listen).await;
    let mut notices = check(&|query| api.engine().list(query)).map_err(Failure::internal)?;
    notices.extend(made.err().map(|failure| not_made(&failure)));
    let own = api.engine().get(&own_key("Service")).map_err(Failure::internal)?;
    let own: Value = own.map(|stored| parse(&stored)).transpose()?.unwrap_or_default();
    let cluster_ip = own["spec"]["clusterIP"].as_str().and_then(|ip| ip.parse().ok());
    Ok(Begun { cluster_ip, notices })
}

fn not_made(failure: &Failure) -> Notice {
    let about = ObjectRef::new("Service", kubernetes_service::NAMESPACE, kubernetes_service::NAME);
    let message = format!(
        "the API's own Service cannot be made: {}. It is tried again every second; free an address of the service range",
        failure.message
    );
    Notice::new(about, "NotMade", message)
}

/// Makes the API's own Service again whenever it is deleted, until `stop` turns true.
pub async fn keep(api: Api, listen: SocketAddr, mut stop: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(PERIOD) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        let is_there = |word| api.engine().get(&own_key(word)).is_ok_and(|found| found.is_some());
        if !is_there("Service") || !is_there("EndpointSlice") {
            // What fails is tried again in the next round.
            let _ = be_a_service(&api, listen).await;
        }
    }
}

/// Service default/kubernetes, and its slice. Admission gives it its reserved address, or any other while that one is
/// held.
async fn be_a_service(api: &Api, listen: SocketAddr) -> Result<(), Failure> {
    ensure(api, kind("Service"), service(listen.port())).await?;
    api.commit(false, move |objects| write_slice(objects, listen)).await
}

fn own_key(word: &str) -> Key {
    key(kind(word), kubernetes_service::NAMESPACE, kubernetes_service::NAME)
}

/// What older versions may have left behind: the address of the API's own Service in other hands.
pub fn check(list: &Lister<'_>) -> Result<Vec<Notice>, ReadError> {
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

/// The objects of a kind in whose text `word` stands; only those are parsed.
fn read<T>(
    list: &Lister<'_>,
    word: &str,
    with: &str,
    pick: impl Fn(Object) -> Option<T>,
) -> Result<Vec<T>, ReadError> {
    let mut interner = Interner::default();
    let page = list(&Query::all(ResourceId(kind(word).id)))?;
    let texts = page.items.iter().filter_map(|stored| std::str::from_utf8(&stored.json).ok());
    let objects = texts.filter(|text| text.contains(with)).filter_map(|text| {
        let object: Value = serde_json::from_str(text).ok()?;
        model::parse::object(&object, &mut interner).0
    });
    Ok(objects.filter_map(pick).collect())
}

/// Creates an object unless there is one of its name.
async fn ensure(api: &Api, kind: &'static Kind, object: Value) -> Result<(), Failure> {
    // A policy must not keep the API from starting: it could be removed only through the API.
    let terms = Terms { policies: false, ..api.terms(kind, &Caller::own(), WriteOptions::default())? };
    let work = move |objects: &mut Objects<'_, '_>| {
        if objects.find(kind, meta::text(&object, "namespace"), meta::text(&object, "name"))?.is_some() {
            return Ok(());
        }
        let mut made = create_in(objects, &terms, object)?.object;
        if kind.kind == "ServiceCIDR" {
            made["status"] = ready(objects);
            objects.put(kind, &mut made)?;
        }
        Ok(())
    };
    api.commit(false, work).await
}

fn service_cidr(beginning: &Beginning) -> Value {
    let cidrs: Vec<String> = beginning.service_cidrs.iter().map(IpNet::to_string).collect();
    json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": cidrs}})
}

fn ready(objects: &Objects<'_, '_>) -> Value {
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

/// The slice of the API's own Service. On loopback nobody but this machine reaches it, so it has no endpoint.
fn write_slice(objects: &mut Objects<'_, '_>, listen: SocketAddr) -> Result<(), Failure> {
    let slices = kind("EndpointSlice");
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
        let uid = crate::names::uid().map_err(Failure::internal)?;
        meta::born(&mut slice, objects.now, uid);
    }
    if stored.as_ref() == Some(&slice) {
        return Ok(());
    }
    objects.put(slices, &mut slice)
}
