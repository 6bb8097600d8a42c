//! Users of routes, of traffic distribution and of ZoneDrains. They have random numbers of their own: the other users do
//! the same with and without them.

use model::random::Random;
use serde_json::{Value, json};

use super::{MERGE, UserAction, Workload};
use crate::envoys::GATEWAY;
use crate::options::Options;
use crate::time::wall_time;

const VERSION: &str = "zoneward.dev/v1alpha1";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const DRAINS: &str = "/apis/zoneward.dev/v1alpha1/zonedrains";

/// Mechanisms by annotation; the last is no mechanism.
const MECHANISMS: [&str; 6] = ["Spill", "Spill", "PreferSameZone", "PreferSameNode", "Auto", "Nonsense"];

/// A kind of route, and how many names it has.
struct RouteKind {
    kind: &'static str,
    collection: &'static str,
    names: usize,
    spec: fn(&mut PolicyUsers, usize) -> Value,
}

static ROUTES: [RouteKind; 5] = [
    RouteKind {
        kind: "MeshHTTPRoute",
        collection: "/apis/zoneward.dev/v1alpha1/namespaces/default/meshhttproutes",
        names: 4,
        spec: PolicyUsers::http_route,
    },
    RouteKind {
        kind: "MeshTCPRoute",
        collection: "/apis/zoneward.dev/v1alpha1/namespaces/default/meshtcproutes",
        names: 2,
        spec: PolicyUsers::tcp_route,
    },
    RouteKind {
        kind: "MeshGateway",
        collection: "/apis/zoneward.dev/v1alpha1/namespaces/default/meshgateways",
        names: 1,
        spec: PolicyUsers::gateway,
    },
    RouteKind {
        kind: "MeshGatewayHTTPRoute",
        collection: "/apis/zoneward.dev/v1alpha1/namespaces/default/meshgatewayhttproutes",
        names: 4,
        spec: PolicyUsers::gateway_route,
    },
    RouteKind {
        kind: "MeshLoadBalancing",
        collection: "/apis/zoneward.dev/v1alpha1/namespaces/default/meshloadbalancings",
        names: 2,
        spec: PolicyUsers::load_balancing,
    },
];

/// What these users do, and when.
pub(super) struct PolicyUsers {
    random: Random,
    next_at: u64,
    action_ms: usize,
    services: usize,
    zones: usize,
    has_routes: bool,
    has_distributions: bool,
    has_drains: bool,
}

impl PolicyUsers {
    pub(super) fn new(options: &Options) -> Self {
        let Options { has_routes, has_distributions, has_drains, .. } = *options;
        Self {
            random: Random::seeded(options.seed ^ 0x706f_6c69),
            next_at: if has_routes || has_distributions || has_drains { 0 } else { u64::MAX },
            action_ms: 2 * options.action_ms as usize,
            services: options.services.max(8),
            zones: options.zones,
            has_routes,
            has_distributions,
            has_drains,
        }
    }

    pub(super) fn next_at(&self) -> u64 {
        self.next_at
    }

    /// A Service; rarely one that never exists.
    fn service(&mut self) -> String {
        if self.random.below(12) == 0 { "lost".to_owned() } else { self.existing_service() }
    }

    fn existing_service(&mut self) -> String {
        format!("s{}", self.random.below(self.services))
    }

    fn backends(&mut self) -> Value {
        let mut backend = |kind: &str| {
            let mut backend =
                json!({"kind": kind, "name": self.service(), "weight": 1 + self.random.below(9)});
            if kind == "MeshServiceSubset" {
                backend["tags"] = json!({"app": format!("a{}", self.random.below(4))});
            }
            // A port that the Service does not have.
            if self.random.below(12) == 0 {
                backend["port"] = json!(9_999);
            }
            backend
        };
        json!([backend("MeshService"), backend("MeshServiceSubset")])
    }

    fn rules(&mut self) -> Value {
        let count = 1 + self.random.below(3);
        let one = |_| {
            let path = ["/", "/a", "/b", "/a/b"][self.random.below(4)];
            json!({"matches": [{"path": {"type": "Prefix", "value": path}}],
                "default": {"backendRefs": self.backends()}})
        };
        (0..count).map(one).collect()
    }

    fn target(&mut self) -> Value {
        match self.random.below(4) {
            0 => json!({"kind": "MeshService", "name": "s0"}),
            1 => json!({"kind": "MeshSubset", "tags": {"topology.kubernetes.io/zone": "zone-0"}}),
            2 => json!({"kind": "MeshServiceSubset", "name": "s0", "tags": {"app": "a1"}}),
            _ => json!({"kind": "Mesh"}),
        }
    }

    fn http_route(&mut self, _: usize) -> Value {
        let to = json!({"targetRef": {"kind": "MeshService", "name": self.service()}, "rules": self.rules()});
        json!({"targetRef": self.target(), "to": [to]})
    }

    fn tcp_route(&mut self, _: usize) -> Value {
        let rules = json!([{"default": {"backendRefs": self.backends()}}]);
        let to = json!({"targetRef": {"kind": "MeshService", "name": self.service()}, "rules": rules});
        json!({"targetRef": {"kind": "Mesh"}, "to": [to]})
    }

    fn gateway(&mut self, _: usize) -> Value {
        let mut listeners = vec![json!({"name": "one", "port": 8_080, "protocol": "HTTP"})];
        if self.random.below(2) == 0 {
            let port = 8_080 + self.random.below(2);
            listeners.push(json!({"name": "two", "port": port, "protocol": "HTTP", "tags": {"port": "two"},
                "hostname": "*.example.com"}));
        }
        json!({ "listeners": listeners })
    }

    fn gateway_route(&mut self, number: usize) -> Value {
        let mut target = json!({"kind": "MeshGateway", "name": GATEWAY});
        if self.random.below(3) == 0 {
            target["tags"] = json!({"port": "two"});
        }
        let host = ["a.example.com", "*.example.com", "b.example.org"][self.random.below(3)];
        let hostnames = if number == 0 { json!(null) } else { json!([host]) };
        json!({"targetRef": target, "hostnames": hostnames, "rules": self.rules()})
    }

    fn load_balancing(&mut self, number: usize) -> Value {
        let target = match number {
            0 => json!({"kind": "Mesh"}),
            _ => json!({"kind": "MeshGateway", "name": GATEWAY}),
        };
        let default = match self.random.below(3) {
            0 => json!({"algorithm": {"type": "RoundRobin"}}),
            1 => json!({"localities": [{"priorities": [{"zones": [{"type": "Same"}]}]}]}),
            _ => json!({"localities": [{"priorities": [{"zones": [{"name": "zone-1"}]},
                {"zones": [{"type": "Other"}]}]}]}),
        };
        let to = json!({"targetRef": {"kind": "MeshService", "name": self.service()}, "default": default});
        json!({"targetRef": target, "to": [to]})
    }

    fn drain(&mut self, now: u64) -> Value {
        // Over long before the run is quiet, or long after it ends.
        let after = if self.random.below(3) == 0 { 5 + self.random.below(25) as u64 } else { 36_000 };
        let percent = [100, 100, 50, 10][self.random.below(4)];
        json!({
            "zone": format!("zone-{}", self.random.below(self.zones)),
            "expiresAt": wall_time(now + 1_000 * after).to_string(),
            "over": format!("{}s", self.random.below(10)),
            "percent": percent,
            "dryRun": self.random.below(5) == 0,
            "force": self.random.below(3) == 0,
        })
    }
}

impl Workload {
    /// What users of policies do, if it is time for it.
    pub(super) fn step_policies(&mut self, now: u64) {
        if !self.is_active || now < self.policies.next_at {
            return;
        }
        let users = &mut self.policies;
        users.next_at = now + 1 + users.random.below(2 * users.action_ms) as u64;
        let all = [users.has_routes, users.has_routes, users.has_distributions, users.has_drains];
        let turns: Vec<usize> = (0..all.len()).filter(|turn| all[*turn]).collect();
        match users.random.pick(&turns) {
            Some(0 | 1) => self.change_route(),
            Some(2) => self.change_distribution(),
            Some(_) => self.change_drain(now),
            None => return,
        }
        self.actions += 1;
    }

    fn change_route(&mut self) {
        let users = &mut self.policies;
        let row = &ROUTES[users.random.below(ROUTES.len())];
        let number = users.random.below(row.names);
        let name = if row.kind == "MeshGateway" { GATEWAY.to_owned() } else { format!("r{number}") };
        let spec = (row.spec)(users, number);
        let action = users.create_edit_or_delete(row.collection, VERSION, row.kind, &name, spec);
        self.push(&format!("{}/{name}", row.collection), action);
    }

    fn change_distribution(&mut self) {
        let users = &mut self.policies;
        let name = users.existing_service();
        let value = match users.random.below(4) {
            0 => json!(null),
            _ => json!(MECHANISMS[users.random.below(MECHANISMS.len())]),
        };
        let body = json!({"metadata": {"annotations": {(model::annotation::TRAFFIC_DISTRIBUTION): value}}});
        let action = UserAction::Patch { content_type: MERGE, subresource: "", body };
        self.push(&format!("{SERVICES}/{name}"), action);
    }

    fn change_drain(&mut self, now: u64) {
        let users = &mut self.policies;
        let name = format!("d{}", users.random.below(2));
        let spec = users.drain(now);
        let action = users.create_edit_or_delete(DRAINS, VERSION, "ZoneDrain", &name, spec);
        self.push(&format!("{DRAINS}/{name}"), action);
    }
}

impl PolicyUsers {
    fn create_edit_or_delete(
        &mut self,
        collection: &'static str,
        version: &str,
        kind: &str,
        name: &str,
        spec: Value,
    ) -> UserAction {
        match self.random.below(10) {
            0..5 => {
                let body =
                    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec});
                UserAction::Create { collection, body }
            }
            5..8 => UserAction::Patch { content_type: MERGE, subresource: "", body: json!({ "spec": spec }) },
            _ => UserAction::Delete { frees: None },
        }
    }
}
