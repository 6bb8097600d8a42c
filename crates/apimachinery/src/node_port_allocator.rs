//! NodePort allocation, including healthCheckNodePort. A port belongs to one Service, on every node.
//!
//! ```text
//! 30000 ... static band ... 30085 | 30086 ......... dynamic band ......... 32767
//!           for users               searched first, from a random offset with wrap-around; then the static band
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;

use model::{Name, Service};

/// The node ports of a Service: requested ones, and how many to allocate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePortRequest {
    pub ports: Vec<PortRequest>,
    /// Whether ports without a node port get one: type NodePort, and LoadBalancer unless
    /// `allocateLoadBalancerNodePorts` is false.
    pub allocates: bool,
    /// Requested `spec.healthCheckNodePort`.
    pub health_check: Option<u16>,
    /// Whether it is allocated if not requested.
    pub needs_health_check: bool,
}

/// One port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortRequest {
    pub port: u16,
    pub protocol: Name,
    /// Requested node port.
    pub node_port: Option<u16>,
}

/// The node ports of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePortAllocation {
    /// By port, in the order of the request.
    pub ports: Vec<Option<u16>>,
    pub health_check: Option<u16>,
}

impl NodePortAllocation {
    pub fn numbers(&self) -> BTreeSet<u16> {
        self.ports.iter().copied().flatten().chain(self.health_check).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortError {
    /// A requested port is allocated to another Service.
    Taken {
        field: String,
        port: u16,
    },
    Full,
}

impl fmt::Display for NodePortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken { port, .. } => write!(f, "{port}: provided port is already allocated"),
            Self::Full => f.write_str("failed to allocate a nodePort: range is full; delete unused Services"),
        }
    }
}

impl NodePortRequest {
    /// Only the ports that a Service requests.
    pub fn requested_by(service: &Service) -> Self {
        let port = |port: &model::ServicePort| PortRequest {
            port: port.port,
            protocol: Name::new(port.protocol.as_str()),
            node_port: port.node_port,
        };
        let ports = service.ports.iter().map(port).collect();
        Self { ports, health_check: service.health_check_node_port, ..Self::default() }
    }

    /// Requested ports, each with its field.
    pub fn requested(&self) -> impl Iterator<Item = (u16, String)> + '_ {
        let ports = self.ports.iter().enumerate();
        let ports =
            ports.filter_map(|(i, port)| Some((port.node_port?, format!("spec.ports[{i}].nodePort"))));
        ports.chain(self.health_check.map(|port| (port, "spec.healthCheckNodePort".to_owned())))
    }

    /// Whether a port has to be allocated.
    pub fn needs_allocation(&self) -> bool {
        let unnamed = self.ports.iter().any(|port| port.node_port.is_none());
        self.allocates && unnamed || self.needs_health_check && self.health_check.is_none()
    }
}

/// Allocates the ports of a Service. `in_use` are the ports of all other Services; `seed` is the offset of the search.
pub fn allocate(
    request: &NodePortRequest,
    range: &RangeInclusive<u16>,
    in_use: &BTreeSet<u16>,
    seed: u64,
) -> Result<NodePortAllocation, NodePortError> {
    if let Some((port, field)) = request.requested().find(|(port, _)| in_use.contains(port)) {
        return Err(NodePortError::Taken { field, port });
    }
    let own = request.requested().map(|(port, _)| port);
    let mut search = PortSearch { range, seed, taken: in_use.iter().copied().chain(own).collect() };
    let ports = match request.allocates {
        true => allocate_ports(request, &mut search)?,
        false => request.ports.iter().map(|port| port.node_port).collect(),
    };
    let health_check = match request.health_check {
        None if request.needs_health_check => Some(search.next()?),
        given => given,
    };
    Ok(NodePortAllocation { ports, health_check })
}

/// Semantics E3: ports with equal numbers and different protocols share one node port.
fn allocate_ports(
    request: &NodePortRequest,
    search: &mut PortSearch<'_>,
) -> Result<Vec<Option<u16>>, NodePortError> {
    let mut given_by_port: BTreeMap<u16, (Vec<&Name>, u16)> = BTreeMap::new();
    for port in &request.ports {
        if let Some(given) = port.node_port {
            given_by_port.insert(port.port, (vec![&port.protocol], given));
        }
    }
    let mut ports = Vec::new();
    for port in &request.ports {
        if port.node_port.is_some() {
            ports.push(port.node_port);
            continue;
        }
        let known =
            given_by_port.get_mut(&port.port).filter(|(protocols, _)| !protocols.contains(&&port.protocol));
        let given = match known {
            Some((protocols, given)) => {
                protocols.push(&port.protocol);
                *given
            }
            None => {
                let given = search.next()?;
                given_by_port.insert(port.port, (vec![&port.protocol], given));
                given
            }
        };
        ports.push(Some(given));
    }
    Ok(ports)
}

struct PortSearch<'a> {
    range: &'a RangeInclusive<u16>,
    seed: u64,
    taken: BTreeSet<u16>,
}

impl PortSearch<'_> {
    fn next(&mut self) -> Result<u16, NodePortError> {
        for band in bands(self.range) {
            let size = band.len() as u64;
            for step in 0..size {
                let offset = self.seed.wrapping_add(step) % size;
                let port = band.start().saturating_add(u16::try_from(offset).unwrap_or(0));
                if self.taken.insert(port) {
                    return Ok(port);
                }
            }
        }
        Err(NodePortError::Full)
    }
}

/// The dynamic and the static band.
pub fn bands(range: &RangeInclusive<u16>) -> [RangeInclusive<u16>; 2] {
    let (first, last) = (*range.start(), *range.end());
    let size = u32::from(last.saturating_sub(first)) + 1;
    // As in Kubernetes: 1/32 of the range, within 16 to 128; zero for small ranges.
    let offset = if size <= 16 { 0 } else { (size / 32).clamp(16, 128) };
    let middle = first.saturating_add(u16::try_from(offset).unwrap_or(0));
    let fixed = if offset == 0 { RangeInclusive::new(1, 0) } else { first..=middle - 1 };
    [middle..=last, fixed]
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: RangeInclusive<u16> = 30_000..=32_767;

    fn port(port: u16, protocol: &str, node_port: Option<u16>) -> PortRequest {
        PortRequest { port, protocol: Name::new(protocol), node_port }
    }

    fn wants(ports: &[PortRequest]) -> NodePortRequest {
        NodePortRequest { ports: ports.to_vec(), allocates: true, ..NodePortRequest::default() }
    }

    fn given(request: &NodePortRequest, in_use: &[u16], seed: u64) -> Result<Vec<u16>, NodePortError> {
        let grant = allocate(request, &RANGE, &in_use.iter().copied().collect(), seed)?;
        Ok(grant.ports.into_iter().flatten().chain(grant.health_check).collect())
    }

    #[test]
    fn the_static_band_is_the_lower_one() {
        assert_eq!(bands(&RANGE), [30_086..=32_767, 30_000..=30_085]);
        let [dynamic, fixed] = bands(&(1..=10));
        assert_eq!((dynamic, fixed.len()), (1..=10, 0));
    }

    #[test]
    fn a_free_port_is_found_from_the_seed_on() {
        let request = wants(&[port(80, "TCP", None), port(443, "TCP", None)]);
        assert_eq!(given(&request, &[], 0), Ok(vec![30_086, 30_087]));
        assert_eq!(given(&request, &[30_087], 0), Ok(vec![30_086, 30_088]));
        assert_eq!(given(&request, &[], 2_681), Ok(vec![32_767, 30_086]), "round the dynamic band");
    }

    #[test]
    fn equal_numbers_of_different_protocols_share_a_node_port() {
        let request = wants(&[port(53, "UDP", None), port(53, "TCP", None), port(53, "TCP", None)]);
        assert_eq!(given(&request, &[], 5), Ok(vec![30_091, 30_091, 30_092]));
        let request = wants(&[port(53, "UDP", None), port(53, "TCP", Some(30_053))]);
        assert_eq!(given(&request, &[], 5), Ok(vec![30_053, 30_053]));
    }

    #[test]
    fn a_port_of_another_service_is_refused_by_its_field() {
        let request = wants(&[port(80, "TCP", None), port(443, "TCP", Some(30_443))]);
        let refusal = NodePortError::Taken { field: "spec.ports[1].nodePort".to_owned(), port: 30_443 };
        assert_eq!(given(&request, &[30_443], 0), Err(refusal));
        let request = NodePortRequest { health_check: Some(30_001), ..NodePortRequest::default() };
        let refusal = NodePortError::Taken { field: "spec.healthCheckNodePort".to_owned(), port: 30_001 };
        assert_eq!(given(&request, &[30_001], 0), Err(refusal));
    }

    #[test]
    fn health_checks_get_a_port_of_their_own() {
        let balanced = NodePortRequest { needs_health_check: true, ..wants(&[port(80, "TCP", None)]) };
        assert_eq!(given(&balanced, &[], 0), Ok(vec![30_086, 30_087]));
        let without = NodePortRequest { allocates: false, ..balanced };
        assert_eq!(given(&without, &[], 0), Ok(vec![30_086]));
        assert!(without.needs_allocation());
        let named = NodePortRequest { health_check: Some(30_002), ..without };
        assert_eq!(given(&named, &[], 0), Ok(vec![30_002]));
        assert!(!named.needs_allocation());
    }

    #[test]
    fn the_static_band_comes_last_and_a_full_range_is_an_error() {
        let dynamic: Vec<u16> = (30_086..=32_767).collect();
        let request = wants(&[port(80, "TCP", None)]);
        assert_eq!(given(&request, &dynamic, 3), Ok(vec![30_003]));
        let all: Vec<u16> = RANGE.collect();
        assert_eq!(given(&request, &all, 3), Err(NodePortError::Full));
    }
}
