//! What an API has before anybody wrote anything: namespaces, the range of cluster IPs, and itself as a
//! Service. Made on first start, and again where it is missing.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use plan::addresses::Range;
use serde_json::{Value, json};

use crate::api::{Api, Caller, create_in};
use crate::kinds::{self, Kind};
use crate::meta;
use crate::objects::Objects;
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

fn kind(word: &str) -> &'static Kind {
    kinds::named(word).expect("the table has the kinds that are made here")
}

/// Makes what is missing.
pub async fn begin(api: &Api, beginning: Beginning) -> Result<(), Failure> {
    for name in NAMESPACES {
        let object = json!({"metadata": {"name": name}});
        ensure(api, kind("Namespace"), object).await?;
    }
    ensure(api, kind("ServiceCIDR"), service_cidr(&beginning)).await?;
    let first = beginning.service_cidrs.first().and_then(|cidr| Range::new(*cidr).first());
    ensure(api, kind("Service"), service(beginning.listen.port(), first)).await?;
    api.commit(false, move |objects| write_slice(objects, beginning.listen)).await
}

/// Creates an object unless there is one of its name.
async fn ensure(api: &Api, kind: &'static Kind, object: Value) -> Result<(), Failure> {
    let terms = api.terms(kind, &Caller::own(), WriteOptions::default())?;
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

fn service(port: u16, ip: Option<IpAddr>) -> Value {
    let mut spec = json!({
        "type": "ClusterIP",
        "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": port}],
    });
    if let Some(ip) = ip {
        spec["clusterIP"] = ip.to_string().into();
    }
    json!({
        "metadata": {"name": "kubernetes", "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": spec,
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
