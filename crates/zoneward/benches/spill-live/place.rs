//! Where things are in the demo's cluster, and who competes.

/// The zones of the demo.
pub const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];

/// Who decides where a connection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Competitor {
    PreferSameZone,
    SpillMeasured,
    ZoneAware,
    LoadAware,
}

impl Competitor {
    pub const ALL: [Self; 4] = [Self::PreferSameZone, Self::SpillMeasured, Self::ZoneAware, Self::LoadAware];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::PreferSameZone => "PreferSameZone",
            Self::SpillMeasured => "**Spill measured**",
            Self::ZoneAware => "Envoy, zone-aware routing",
            Self::LoadAware => "Envoy, load_aware_locality",
        }
    }

    /// Its port of every server, which no other competitor uses.
    pub fn server_port(self) -> u16 {
        9_001 + self as u16
    }

    /// Cluster and listener of an Envoy beside a client.
    pub fn envoy_cluster(self) -> Option<&'static str> {
        match self {
            Self::ZoneAware => Some("zone_aware"),
            Self::LoadAware => Some("load_aware"),
            Self::PreferSameZone | Self::SpillMeasured => None,
        }
    }

    /// Its port of an Envoy beside a client.
    pub fn envoy_port(self) -> u16 {
        15_001 + self as u16
    }
}

/// A pod of the demo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub pod: String,
    /// Index in [`ZONES`].
    pub zone: usize,
    pub address: String,
}

/// Nodes with their number of servers: 4, 5 and 3 by zone. The demo has more, which stay unused.
const SERVERS: [(&str, usize, usize); 6] =
    [("a1", 0, 2), ("a2", 0, 2), ("b1", 1, 3), ("b2", 1, 2), ("c1", 2, 2), ("c2", 2, 1)];

/// The pods that serve.
pub fn servers() -> Vec<Place> {
    let node = |(number, (node, zone, count)): (usize, (&'static str, usize, usize))| {
        (0..count).map(move |i| Place {
            pod: format!("web-{node}-{i}"),
            zone,
            address: format!("10.1.{}.{}", number + 1, 10 + i),
        })
    };
    SERVERS.into_iter().enumerate().flat_map(node).collect()
}

/// The pods that connect, one on every node.
pub fn clients() -> Vec<Place> {
    let client = |(number, (node, zone, _)): (usize, (&str, usize, usize))| Place {
        pod: format!("client-{node}"),
        zone,
        address: format!("10.1.{}.2", number + 1),
    };
    SERVERS.into_iter().enumerate().map(client).collect()
}
