//! L7 proxies as users of the API: their names, which the API, its clients and reports of traffic read alike.

const USER: &str = "system:zoneward:";

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

    /// Where its node asks for its credential.
    pub fn path(&self) -> String {
        format!("/join/{}s/{}/{}", self.kind.word(), self.namespace, self.name)
    }

    /// The name of the user.
    pub fn user_name(&self) -> String {
        format!("{USER}{}:{}:{}", self.kind.word(), self.namespace, self.name)
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
    fn reporters_of_one_gateway_differ_by_machine() {
        let edge = ProxyUser::gateway("shop", "edge");
        assert_eq!(edge.reporter(None), "proxy/shop/gateway-edge");
        assert_eq!(edge.reporter(Some("box-2")), "proxy/shop/box-2.gateway-edge");
    }
}
