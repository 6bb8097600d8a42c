//! ServiceCIDRs and IPAddresses as the API stores them -> [`ServiceCidr`], [`IpAddress`].

use k8s_openapi::api::networking::v1 as networking;

use super::{ParseResult, cidr, ip, name};
use crate::annotation;
use crate::name::Interner;
use crate::service_cidr::{IpAddress, ParentRef, ServiceCidr};

pub fn service_cidr(object: &networking::ServiceCIDR, interner: &mut Interner) -> ParseResult<ServiceCidr> {
    let meta = &object.metadata;
    let texts = object.spec.iter().flat_map(|s| s.cidrs.iter().flatten()).enumerate();
    let cidrs =
        texts.map(|(i, text)| cidr(text, || format!("spec.cidrs[{i}]"))).collect::<ParseResult<_>>()?;
    let conditions = object.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|c| c.type_ == "Ready");
    let finalizers = meta.finalizers.iter().flatten();
    Ok(ServiceCidr {
        name: name(meta, interner),
        cidrs,
        ready: ready.map(|c| c.status == "True"),
        deleting: meta.deletion_timestamp.as_ref().map(|t| t.0.into()),
        has_finalizer: finalizers.into_iter().any(|f| f == annotation::SERVICE_CIDR_FINALIZER),
    })
}

pub fn ip_address(object: &networking::IPAddress, interner: &mut Interner) -> ParseResult<IpAddress> {
    let meta = &object.metadata;
    let mut label = |key: &str| {
        let value = meta.labels.as_ref().and_then(|l| l.get(key));
        interner.name_if_set(value.map(String::as_str))
    };
    let (family_label, managed_by) = (label(annotation::IP_FAMILY), label(annotation::IP_MANAGED_BY));
    let p = &object.spec.parent_ref;
    Ok(IpAddress {
        address: ip(meta.name.as_deref().unwrap_or_default(), || "metadata.name".into())?,
        family_label,
        managed_by,
        parent: ParentRef {
            group: interner.name(p.group.as_deref().unwrap_or_default()),
            resource: interner.name(&p.resource),
            namespace: interner.name(p.namespace.as_deref().unwrap_or_default()),
            name: interner.name(&p.name),
        },
        created: meta.creation_timestamp.as_ref().map(|t| t.0.into()),
    })
}
