//! L7 proxies of joined machines: each has a credential of its own, which its node asks for. A gateway is the same user of
//! the API on every machine, so that the rights to its certificates are those of the gateway, and no other's.
//!
//! ```text
//! system:node:box-2 --POST /join/gateways/shop/edge (RBAC)--> system:zoneward:gateway:shop:edge, while Node box-2 exists
//! ```

use std::fmt;

use serde_json::Value;

use super::NodeIdentity;
use crate::rbac::{AUTHENTICATED, UserInfo};

/// The group of all L7 proxies of `zoneward up` and of joined machines.
pub const PROXIES: &str = "system:zoneward:proxies";
/// The group of those on joined machines.
pub const JOINED_PROXIES: &str = "system:zoneward:joined-proxies";
/// The ClusterRole by which a node gets credentials for gateways.
pub const GATEWAYS_ROLE: &str = "zoneward:joined-gateways";
/// The ClusterRole by which a node gets credentials for sidecars.
pub const SIDECARS_ROLE: &str = "zoneward:joined-sidecars";
/// The paths of those credentials.
pub const GATEWAYS_PATH: &str = "/join/gateways/*";
pub const SIDECARS_PATH: &str = "/join/sidecars/*";

const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const NODE_UID: &str = "authentication.kubernetes.io/node-uid";
const USER: &str = "system:zoneward:";

/// What a node may run beside its node proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllowedProxies {
    pub gateways: bool,
    pub sidecars: bool,
}

impl AllowedProxies {
    /// Of the text that [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Self {
        let has = |word: &str| text.split(',').any(|own| own == word);
        Self { gateways: has("gateways"), sidecars: has("sidecars") }
    }

    /// The ClusterRoles, and whether each is granted.
    pub fn roles(self) -> [(&'static str, bool); 2] {
        [(GATEWAYS_ROLE, self.gateways), (SIDECARS_ROLE, self.sidecars)]
    }
}

impl fmt::Display for AllowedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [("gateways", self.gateways), ("sidecars", self.sidecars)];
        let own: Vec<&str> = words.into_iter().filter(|(_, is)| *is).map(|(word, _)| word).collect();
        f.write_str(&own.join(","))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProxyKind {
    Gateway,
    Sidecar,
}

impl ProxyKind {
    fn word(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Sidecar => "sidecar",
        }
    }
}

/// An L7 proxy as a user of the API.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProxyUser {
    pub kind: ProxyKind,
    pub namespace: String,
    /// The name of a gateway, or the number of a sidecar.
    pub name: String,
}

impl ProxyUser {
    pub fn gateway(namespace: &str, name: &str) -> Self {
        Self { kind: ProxyKind::Gateway, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    pub fn sidecar(namespace: &str, number: usize) -> Self {
        Self { kind: ProxyKind::Sidecar, namespace: namespace.to_owned(), name: number.to_string() }
    }

    /// Of the parts of a path after `/join`.
    pub fn of_path(kind: &str, namespace: &str, name: &str) -> Option<Self> {
        let kind = match kind {
            "gateways" => ProxyKind::Gateway,
            "sidecars" => ProxyKind::Sidecar,
            _ => return None,
        };
        let is_plain = |text: &str| {
            let is_known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            !text.is_empty() && text.len() <= 253 && text.bytes().all(|byte| is_known(byte) || byte == b'.')
        };
        let is_number = kind == ProxyKind::Gateway || name.bytes().all(|byte| byte.is_ascii_digit());
        let is_valid = is_plain(namespace) && is_plain(name) && is_number;
        is_valid.then(|| Self { kind, namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// Of the name of a user.
    pub fn of_name(user: &str) -> Option<Self> {
        let mut parts = user.strip_prefix(USER)?.splitn(3, ':');
        let kind = match parts.next()? {
            "gateway" => "gateways",
            "sidecar" => "sidecars",
            _ => return None,
        };
        Self::of_path(kind, parts.next()?, parts.next()?)
    }

    pub fn path(&self) -> String {
        format!("{}/{}s/{}/{}", super::PATH, self.kind.word(), self.namespace, self.name)
    }

    /// The name of the user.
    pub fn user_name(&self) -> String {
        format!("{USER}{}:{}:{}", self.kind.word(), self.namespace, self.name)
    }

    /// The claims of its credential, from those of its node.
    pub fn claims(&self, mut node: Value) -> Value {
        node["sub"] = self.user_name().into();
        node
    }

    /// The user on a joined machine. It says on which, because the credential ends with the Node.
    pub fn user(&self, node: &NodeIdentity) -> UserInfo {
        let mut user = UserInfo::new(&self.user_name(), &[PROXIES, JOINED_PROXIES, AUTHENTICATED]);
        user.extra.insert(NODE_NAME.to_owned(), vec![node.name.clone()]);
        user.extra.insert(NODE_UID.to_owned(), vec![node.uid.clone()]);
        user
    }

    /// Its name in reports of traffic from a joined machine; that of a proxy of `zoneward up` has no node.
    pub fn reporter(&self, node: Option<&str>) -> String {
        let own = format!("{}-{}", self.kind.word(), self.name);
        match node {
            Some(node) => format!("proxy/{}/{node}.{own}", self.namespace),
            None => format!("proxy/{}/{own}", self.namespace),
        }
    }
}

/// The Node that the credential of a user ends with: of a node, or of a proxy of its machine.
pub fn bound_node(user: &UserInfo) -> Option<NodeIdentity> {
    if !user.groups.iter().any(|group| group == JOINED_PROXIES) {
        return NodeIdentity::of(user).filter(|node| !node.uid.is_empty());
    }
    let text = |key: &str| user.extra.get(key)?.first().cloned();
    Some(NodeIdentity { name: text(NODE_NAME)?, uid: text(NODE_UID)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_read_back_from_its_path_and_its_name() {
        for proxy in [ProxyUser::gateway("shop", "edge.public"), ProxyUser::sidecar("default", 3)] {
            let path = proxy.path();
            let parts: Vec<&str> = path.trim_start_matches("/join/").split('/').collect();
            assert_eq!(ProxyUser::of_path(parts[0], parts[1], parts[2]), Some(proxy.clone()), "{path}");
            assert_eq!(ProxyUser::of_name(&proxy.user_name()), Some(proxy));
        }
        for (kind, namespace, name) in [
            ("nodes", "a", "b"),
            ("gateways", "", "b"),
            ("gateways", "a", ""),
            ("gateways", "a:b", "c"),
            ("gateways", "a", "b:c"),
            ("sidecars", "a", "edge"),
        ] {
            assert_eq!(ProxyUser::of_path(kind, namespace, name), None, "{kind}/{namespace}/{name}");
        }
        assert_eq!(ProxyUser::of_name("system:zoneward"), None);
    }

    #[test]
    fn the_credential_of_a_proxy_ends_with_its_node() {
        let node = NodeIdentity { name: "box-2".to_owned(), uid: "u".to_owned() };
        let user = ProxyUser::gateway("shop", "edge").user(&node);
        assert_eq!(bound_node(&user), Some(node.clone()));
        assert_eq!(bound_node(&node.user()), Some(node));
        assert_eq!(NodeIdentity::of(&user), None, "it is no node");
        // A user that only says so is bound to none.
        let mut other = user;
        other.groups.retain(|group| group != JOINED_PROXIES);
        assert_eq!(bound_node(&other), None);
    }

    #[test]
    fn reporters_of_one_gateway_differ_by_machine() {
        let edge = ProxyUser::gateway("shop", "edge");
        assert_eq!(edge.reporter(None), "proxy/shop/gateway-edge");
        assert_eq!(edge.reporter(Some("box-2")), "proxy/shop/box-2.gateway-edge");
    }

    #[test]
    fn what_is_allowed_is_read_back() {
        for allowed in [(false, false), (true, false), (false, true), (true, true)] {
            let allowed = AllowedProxies { gateways: allowed.0, sidecars: allowed.1 };
            assert_eq!(AllowedProxies::parse(&allowed.to_string()), allowed);
        }
    }
}
