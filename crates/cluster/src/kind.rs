//! The kinds that we watch, as data.

use k8s_openapi::Resource;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1 as networking;
use kube::api::ApiResource;
use model::parse::route::GROUP;

/// A kind that we watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Services.
    Service,
    /// EndpointSlices.
    Slice,
    /// Pods.
    Pod,
    /// Nodes.
    Node,
    /// Namespaces.
    Namespace,
    /// ServiceCIDRs.
    ServiceCidr,
    /// IPAddresses.
    IpAddress,
    /// Leases.
    Lease,
    /// Secrets.
    Secret,
    /// MeshHTTPRoutes.
    HttpRoute,
    /// MeshGatewayHTTPRoutes.
    GatewayHttpRoute,
    /// MeshTCPRoutes.
    TcpRoute,
    /// MeshGateways.
    Gateway,
}

impl Kind {
    /// Our own kinds: routes and gateways.
    pub const MESH: [Self; 4] = [Self::HttpRoute, Self::GatewayHttpRoute, Self::TcpRoute, Self::Gateway];

    /// Where the API has it.
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
            Self::HttpRoute => own("MeshHTTPRoute", "meshhttproutes"),
            Self::GatewayHttpRoute => own("MeshGatewayHTTPRoute", "meshgatewayhttproutes"),
            Self::TcpRoute => own("MeshTCPRoute", "meshtcproutes"),
            Self::Gateway => own("MeshGateway", "meshgateways"),
        }
    }

    /// The word for it in logs and metrics.
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

/// A kind of our own group.
fn own(kind: &str, plural: &str) -> ApiResource {
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
