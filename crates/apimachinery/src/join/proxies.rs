//! L7 proxies of joined machines: each has a credential of its own, which its node asks for. A gateway is the same user of
//! the API on every machine, so that the rights to its certificates are those of the gateway, and no other's.
//!
//! ```text
//! system:node:box-2 --POST /join/gateways/shop/edge (RBAC)--> system:zoneward:gateway:shop:edge, while Node box-2 exists
//! ```

use std::fmt;

use model::ProxyUser;
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

/// The claims of a proxy's credential, from those of its node.
pub fn proxy_claims(proxy: &ProxyUser, mut node: Value) -> Value {
    node["sub"] = proxy.user_name().into();
    node
}

/// The user of a proxy on a joined machine. It says on which, because the credential ends with the Node.
pub fn proxy_on_node(proxy: &ProxyUser, node: &NodeIdentity) -> UserInfo {
    let mut user = UserInfo::new(&proxy.user_name(), &[PROXIES, JOINED_PROXIES, AUTHENTICATED]);
    user.extra.insert(NODE_NAME.to_owned(), vec![node.name.clone()]);
    user.extra.insert(NODE_UID.to_owned(), vec![node.uid.clone()]);
    user
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
    fn the_credential_of_a_proxy_ends_with_its_node() {
        let node = NodeIdentity { name: "box-2".to_owned(), uid: "u".to_owned() };
        let user = proxy_on_node(&ProxyUser::gateway("shop", "edge"), &node);
        assert_eq!(bound_node(&user), Some(node.clone()));
        assert_eq!(bound_node(&node.user()), Some(node));
        assert_eq!(NodeIdentity::of(&user), None, "it is no node");
        // A user that only says so is bound to none.
        let mut other = user;
        other.groups.retain(|group| group != JOINED_PROXIES);
        assert_eq!(bound_node(&other), None);
    }

    #[test]
    fn what_is_allowed_is_read_back() {
        for allowed in [(false, false), (true, false), (false, true), (true, true)] {
            let allowed = AllowedProxies { gateways: allowed.0, sidecars: allowed.1 };
            assert_eq!(AllowedProxies::parse(&allowed.to_string()), allowed);
        }
    }
}
