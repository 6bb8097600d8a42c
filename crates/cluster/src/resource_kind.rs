//! The kinds of the API that controllers and proxies use.

use k8s_openapi::Resource;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1 as networking;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ApiResource;
use model::gateway_api::{self, GatewayApiKind, RouteKind};
use model::parse::route::GROUP;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    Service,
    Slice,
    Pod,
    Node,
    Namespace,
    ServiceCidr,
    IpAddress,
    Lease,
    Secret,
    ConfigMap,
    CustomResourceDefinition,
    MeshHttpRoute,
    MeshGatewayHttpRoute,
    MeshTcpRoute,
    MeshGateway,
    MeshLoadBalancing,
    MeshRouteFilter,
    GatewayApi(GatewayApiKind),
    ZoneDrain,
}

impl ObjectKind {
    /// Kinds of group zoneward.dev.
    pub const MESH: [Self; 6] = [
        Self::MeshHttpRoute,
        Self::MeshGatewayHttpRoute,
        Self::MeshTcpRoute,
        Self::MeshGateway,
        Self::MeshLoadBalancing,
        Self::MeshRouteFilter,
    ];

    /// Kinds of group gateway.networking.k8s.io.
    pub const GATEWAY_API: [Self; 10] = [
        Self::GatewayApi(GatewayApiKind::Class),
        Self::GatewayApi(GatewayApiKind::Gateway),
        Self::GatewayApi(GatewayApiKind::ListenerSet),
        Self::GatewayApi(GatewayApiKind::Route(RouteKind::Http)),
        Self::GatewayApi(GatewayApiKind::Route(RouteKind::Grpc)),
        Self::GatewayApi(GatewayApiKind::Route(RouteKind::Tls)),
        Self::GatewayApi(GatewayApiKind::Route(RouteKind::Tcp)),
        Self::GatewayApi(GatewayApiKind::Route(RouteKind::Udp)),
        Self::GatewayApi(GatewayApiKind::Grant),
        Self::GatewayApi(GatewayApiKind::TlsPolicy),
    ];

    pub fn resource(self) -> ApiResource {
        match self {
            Self::Service => of::<core::Service>("services"),
            Self::Slice => of::<EndpointSlice>("endpointslices"),
            Self::Pod => of::<core::Pod>("pods"),
            Self::Node => of::<core::Node>("nodes"),
            Self::Namespace => of::<core::Namespace>("namespaces"),
            Self::ServiceCidr => of::<networking::ServiceCIDR>("servicecidrs"),
            Self::IpAddress => of::<networking::IPAddress>("ipaddresses"),
            Self::Lease => of::<Lease>("leases"),
            Self::Secret => of::<core::Secret>("secrets"),
            Self::ConfigMap => of::<core::ConfigMap>("configmaps"),
            Self::CustomResourceDefinition => of::<CustomResourceDefinition>("customresourcedefinitions"),
            Self::MeshHttpRoute => zoneward("MeshHTTPRoute", "meshhttproutes"),
            Self::MeshGatewayHttpRoute => zoneward("MeshGatewayHTTPRoute", "meshgatewayhttproutes"),
            Self::MeshTcpRoute => zoneward("MeshTCPRoute", "meshtcproutes"),
            Self::MeshGateway => zoneward("MeshGateway", "meshgateways"),
            Self::MeshLoadBalancing => zoneward("MeshLoadBalancing", "meshloadbalancings"),
            Self::MeshRouteFilter => zoneward("MeshRouteFilter", "meshroutefilters"),
            Self::GatewayApi(kind) => gateway_api_resource(kind),
            Self::ZoneDrain => zoneward("ZoneDrain", "zonedrains"),
        }
    }

    /// The kind, as in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::Slice => "EndpointSlice",
            Self::Pod => "Pod",
            Self::Node => "Node",
            Self::Namespace => "Namespace",
            Self::ServiceCidr => "ServiceCIDR",
            Self::IpAddress => "IPAddress",
            Self::Lease => "Lease",
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
            Self::CustomResourceDefinition => "CustomResourceDefinition",
            Self::MeshHttpRoute => "MeshHTTPRoute",
            Self::MeshGatewayHttpRoute => "MeshGatewayHTTPRoute",
            Self::MeshTcpRoute => "MeshTCPRoute",
            Self::MeshGateway => "MeshGateway",
            Self::MeshLoadBalancing => "MeshLoadBalancing",
            Self::MeshRouteFilter => "MeshRouteFilter",
            Self::GatewayApi(kind) => kind.as_str(),
            Self::ZoneDrain => "ZoneDrain",
        }
    }
}

fn zoneward(kind: &str, plural: &str) -> ApiResource {
    const VERSION: &str = "v1alpha1";
    ApiResource {
        group: GROUP.to_owned(),
        version: VERSION.to_owned(),
        api_version: format!("{GROUP}/{VERSION}"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

fn gateway_api_resource(kind: GatewayApiKind) -> ApiResource {
    // ReferenceGrants are stored as v1beta1, which every release serves.
    let version = if kind == GatewayApiKind::Grant { "v1beta1" } else { "v1" };
    let lower = kind.as_str().to_lowercase();
    let plural = match kind {
        GatewayApiKind::Class => format!("{lower}es"),
        GatewayApiKind::TlsPolicy => format!("{}ies", lower.trim_end_matches('y')),
        _ => format!("{lower}s"),
    };
    ApiResource {
        group: gateway_api::GROUP.to_owned(),
        version: version.to_owned(),
        api_version: format!("{}/{version}", gateway_api::GROUP),
        kind: kind.as_str().to_owned(),
        plural,
    }
}

fn of<K: Resource>(plural: &str) -> ApiResource {
    ApiResource {
        group: K::GROUP.to_owned(),
        version: K::VERSION.to_owned(),
        api_version: K::API_VERSION.to_owned(),
        kind: K::KIND.to_owned(),
        plural: plural.to_owned(),
    }
}
