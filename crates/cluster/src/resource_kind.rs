//! The kinds of the API that controllers and proxies use.

use k8s_openapi::Resource;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1 as networking;
use kube::api::ApiResource;
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
    HttpRoute,
    GatewayHttpRoute,
    TcpRoute,
    Gateway,
}

impl ObjectKind {
    /// Kinds of group zoneward.dev.
    pub const MESH: [Self; 4] = [Self::HttpRoute, Self::GatewayHttpRoute, Self::TcpRoute, Self::Gateway];

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
            Self::HttpRoute => zoneward("MeshHTTPRoute", "meshhttproutes"),
            Self::GatewayHttpRoute => zoneward("MeshGatewayHTTPRoute", "meshgatewayhttproutes"),
            Self::TcpRoute => zoneward("MeshTCPRoute", "meshtcproutes"),
            Self::Gateway => zoneward("MeshGateway", "meshgateways"),
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
            Self::HttpRoute => "MeshHTTPRoute",
            Self::GatewayHttpRoute => "MeshGatewayHTTPRoute",
            Self::TcpRoute => "MeshTCPRoute",
            Self::Gateway => "MeshGateway",
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

fn of<K: Resource>(plural: &str) -> ApiResource {
    ApiResource {
        group: K::GROUP.to_owned(),
        version: K::VERSION.to_owned(),
        api_version: K::API_VERSION.to_owned(),
        kind: K::KIND.to_owned(),
        plural: plural.to_owned(),
    }
}
