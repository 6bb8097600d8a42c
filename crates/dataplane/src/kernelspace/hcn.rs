//! The calls of `computenetwork.dll` that the mode needs, and what HNS holds as values.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::de::DeserializeOwned;

use super::object::{Guid, HcnEndpoint, LoadBalancer, Network};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HcnKind {
    Network,
    Endpoint,
    LoadBalancer,
}

impl HcnKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Endpoint => "endpoint",
            Self::LoadBalancer => "load balancer",
        }
    }
}

/// The version of HNS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HcnVersion {
    pub major: u32,
    pub minor: u32,
}

impl HcnVersion {
    /// Whether load balancers can be modified; in earlier versions they are deleted and created.
    pub fn can_modify(self) -> bool {
        self >= Self { major: 15, minor: 5 }
    }
}

/// HNS. Each call is one of `HcnEnumerate...`, `HcnQuery...Properties`, `HcnCreate...`, `HcnModify...` and `HcnDelete...`;
/// documents are JSON.
pub trait Hcn {
    fn version(&mut self) -> Result<HcnVersion, HcnError>;
    fn enumerate(&mut self, kind: HcnKind) -> Result<Vec<Guid>, HcnError>;
    fn query(&mut self, kind: HcnKind, id: &Guid) -> Result<String, HcnError>;
    fn create(&mut self, kind: HcnKind, id: &Guid, settings: &str) -> Result<(), HcnError>;
    fn modify(&mut self, kind: HcnKind, id: &Guid, settings: &str) -> Result<(), HcnError>;
    fn delete(&mut self, kind: HcnKind, id: &Guid) -> Result<(), HcnError>;
}

impl<H: Hcn> Hcn for Arc<Mutex<H>> {
    fn version(&mut self) -> Result<HcnVersion, HcnError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).version()
    }

    fn enumerate(&mut self, kind: HcnKind) -> Result<Vec<Guid>, HcnError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).enumerate(kind)
    }

    fn query(&mut self, kind: HcnKind, id: &Guid) -> Result<String, HcnError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).query(kind, id)
    }

    fn create(&mut self, kind: HcnKind, id: &Guid, settings: &str) -> Result<(), HcnError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).create(kind, id, settings)
    }

    fn modify(&mut self, kind: HcnKind, id: &Guid, settings: &str) -> Result<(), HcnError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).modify(kind, id, settings)
    }

    fn delete(&mut self, kind: HcnKind, id: &Guid) -> Result<(), HcnError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).delete(kind, id)
    }
}

/// The HRESULT of a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HcnError(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HcnErrorKind {
    /// Another load balancer has the address and port.
    PortExists,
    NotFound,
    NotImplemented,
    /// The service does not run.
    ServiceAway,
    Other,
}

impl HcnError {
    pub const NETWORK_NOT_FOUND: Self = Self(0x803b_0001);
    pub const ENDPOINT_NOT_FOUND: Self = Self(0x803b_0002);
    pub const PORT_ALREADY_EXISTS: Self = Self(0x803b_0013);
    pub const ELEMENT_NOT_FOUND: Self = Self(0x8007_0490);
    pub const ALREADY_EXISTS: Self = Self(0x8007_00b7);
    pub const NOT_IMPLEMENTED: Self = Self(0x8000_4001);
    pub const FAILED: Self = Self(0x8000_4005);
    pub const SERVICE_NOT_ACTIVE: Self = Self(0x8007_0426);
    pub const SERVER_UNAVAILABLE: Self = Self(0x8007_06ba);

    pub fn kind(self) -> HcnErrorKind {
        match self {
            Self::PORT_ALREADY_EXISTS => HcnErrorKind::PortExists,
            Self::NETWORK_NOT_FOUND | Self::ENDPOINT_NOT_FOUND | Self::ELEMENT_NOT_FOUND => {
                HcnErrorKind::NotFound
            }
            Self::NOT_IMPLEMENTED => HcnErrorKind::NotImplemented,
            Self::SERVICE_NOT_ACTIVE | Self::SERVER_UNAVAILABLE => HcnErrorKind::ServiceAway,
            _ => HcnErrorKind::Other,
        }
    }
}

impl fmt::Display for HcnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind() {
            HcnErrorKind::PortExists => {
                "another load balancer has this address and port: stop the other service proxy"
            }
            HcnErrorKind::NotFound => "not found",
            HcnErrorKind::NotImplemented => "not implemented in this version of HNS",
            HcnErrorKind::ServiceAway => "HNS does not run: start the service hns",
            HcnErrorKind::Other => "refused by HNS",
        };
        write!(f, "{what} (0x{:08x})", self.0)
    }
}

impl std::error::Error for HcnError {}

/// What HNS holds, of every program.
#[derive(Debug, Default)]
pub(super) struct HcnState {
    pub(super) network: Network,
    pub(super) endpoints: BTreeMap<Guid, HcnEndpoint>,
    pub(super) load_balancers: BTreeMap<Guid, LoadBalancer>,
}

impl HcnState {
    /// Without a network of the name it is an error.
    pub(super) fn read(hcn: &mut dyn Hcn, network: &str) -> Result<Self, HcnError> {
        let networks: Vec<Network> = objects(hcn, HcnKind::Network)?;
        let network = networks.into_iter().find(|held| held.name.eq_ignore_ascii_case(network));
        let endpoints: Vec<HcnEndpoint> = objects(hcn, HcnKind::Endpoint)?;
        let load_balancers: Vec<LoadBalancer> = objects(hcn, HcnKind::LoadBalancer)?;
        Ok(Self {
            network: network.ok_or(HcnError::NETWORK_NOT_FOUND)?,
            endpoints: endpoints.into_iter().map(|held| (held.id.clone(), held)).collect(),
            load_balancers: load_balancers
                .into_iter()
                .map(|held| (held.id.clone(), held.normalized()))
                .collect(),
        })
    }
}

/// Objects of one kind. One that goes meanwhile is left out, and so is one of another program that cannot be read.
fn objects<T: DeserializeOwned>(hcn: &mut dyn Hcn, kind: HcnKind) -> Result<Vec<T>, HcnError> {
    let mut read = Vec::new();
    for id in hcn.enumerate(kind)? {
        match hcn.query(kind, &id) {
            Ok(text) => read.extend(serde_json::from_str(&text).ok()),
            Err(error) if error.kind() == HcnErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}
