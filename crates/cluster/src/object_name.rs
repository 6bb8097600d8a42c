//! Names of Services on the command line: `web`, `svc/web`, `shop/web` or `svc/shop/web`.
//!
//! As in kubectl, a prefix `svc`, `service` or `services` is the kind.

use std::fmt;
use std::str::FromStr;

use model::{Name, ServiceKey, suggestion};

const KINDS: [&str; 3] = ["svc", "service", "services"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectName {
    pub namespace: Option<String>,
    pub name: String,
}

impl ObjectName {
    /// The key, with `namespace` as default.
    pub fn key(&self, namespace: &str) -> ServiceKey {
        let namespace = self.namespace.as_deref().unwrap_or(namespace);
        ServiceKey::new(&Name::new(namespace), &Name::new(&self.name))
    }

    /// Whether the name refers to this Service, with `namespace` as default; without either, the namespace is ignored.
    pub fn matches(&self, key: &ServiceKey, namespace: Option<&str>) -> bool {
        let namespace = self.namespace.as_deref().or(namespace);
        key.name == self.name.as_str() && namespace.is_none_or(|namespace| key.namespace == namespace)
    }

    /// `there is no Service shop/crat; did you mean "shop/cart"?`
    pub fn unknown<'a>(
        &self,
        namespace: Option<&str>,
        known: impl IntoIterator<Item = &'a ServiceKey>,
    ) -> String {
        let keys: Vec<&ServiceKey> = known.into_iter().collect();
        let namespace = self.namespace.as_deref().or(namespace);
        let wanted = namespace.map_or_else(|| self.name.clone(), |n| format!("{n}/{}", self.name));
        let same_name = keys.iter().find(|key| key.name == self.name.as_str());
        let here = keys.iter().filter(|key| namespace.is_none_or(|n| key.namespace == n));
        let near = suggestion::nearest(&self.name, here.map(|key| key.name.as_str()));
        let near_key = near.and_then(|near| {
            keys.iter().find(|key| key.name == near && namespace.is_none_or(|n| key.namespace == n))
        });
        match same_name.or(near_key) {
            Some(key) => format!("there is no Service {wanted}; did you mean \"{key}\"?"),
            None if keys.is_empty() => format!("there is no Service {wanted}: the input has no Service"),
            None => {
                let shown: Vec<String> = keys.iter().take(MAX_SHOWN).map(|key| key.to_string()).collect();
                let rest = if keys.len() > MAX_SHOWN { ", ..." } else { "" };
                format!("there is no Service {wanted}; there are {}{rest}", shown.join(", "))
            }
        }
    }
}

/// Parses a name without a namespace.
pub fn plain(text: &str) -> Result<String, String> {
    let name: ObjectName = text.parse()?;
    match name.namespace {
        Some(namespace) => Err(format!("use -n for the namespace: {} -n {namespace}", name.name)),
        None => Ok(name.name),
    }
}

/// Maximum number of names in a message.
const MAX_SHOWN: usize = 5;

impl FromStr for ObjectName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, rest) = text.split_once('/').unwrap_or(("", text));
        let (is_kind, rest) = if KINDS.contains(&first) { (true, rest) } else { (false, text) };
        let (namespace, name) = match rest.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, rest),
        };
        let is_bad = |part: &str| part.is_empty() || part.contains(|c: char| c == '/' || c.is_whitespace());
        if is_bad(name) || namespace.is_some_and(is_bad) {
            let kind = if is_kind { format!("{first}/") } else { String::new() };
            return Err(format!("expected a Service as {kind}NAME or {kind}NAMESPACE/NAME"));
        }
        Ok(Self { namespace: namespace.map(str::to_owned), name: name.to_owned() })
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Option<String>, String) {
        let name: ObjectName = text.parse().unwrap();
        (name.namespace, name.name)
    }

    #[test]
    fn a_first_word_svc_is_the_kind_and_any_other_is_the_namespace() {
        let named = |namespace: Option<&str>, name: &str| (namespace.map(str::to_owned), name.to_owned());
        assert_eq!(read("web"), named(None, "web"));
        assert_eq!(read("svc/web"), named(None, "web"));
        assert_eq!(read("service/web"), named(None, "web"));
        assert_eq!(read("services/web"), named(None, "web"));
        assert_eq!(read("shop/web"), named(Some("shop"), "web"));
        assert_eq!(read("svc/shop/web"), named(Some("shop"), "web"));
        assert_eq!(plain("svc/web").as_deref(), Ok("web"));
        assert_eq!(plain("shop/web"), Err("use -n for the namespace: web -n shop".to_owned()));
        for bad in ["", "/", "svc/", "shop/", "/web", "a/b/c", "svc/a/b/c", "my web"] {
            assert!(bad.parse::<ObjectName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_namespace_of_the_flag_applies_to_names_without_one() {
        let key = ServiceKey::new(&Name::new("shop"), &Name::new("web"));
        let is = |text: &str, namespace| text.parse::<ObjectName>().unwrap().matches(&key, namespace);
        assert!(is("web", None) && is("svc/web", Some("shop")) && is("shop/web", Some("other")));
        assert!(!is("svc/web", Some("other")) && !is("other/web", None));
    }

    #[test]
    fn an_unknown_service_is_reported_with_the_nearest_name() {
        let keys = [("shop", "cart"), ("shop", "web"), ("bank", "ledger")]
            .map(|(namespace, name)| ServiceKey::new(&Name::new(namespace), &Name::new(name)));
        let said = |text: &str, namespace| text.parse::<ObjectName>().unwrap().unknown(namespace, &keys);
        assert_eq!(said("crat", Some("shop")), "there is no Service shop/crat; did you mean \"shop/cart\"?");
        assert_eq!(said("svc/web", Some("bank")), "there is no Service bank/web; did you mean \"shop/web\"?");
        assert_eq!(
            said("x", Some("shop")),
            "there is no Service shop/x; there are shop/cart, shop/web, bank/ledger"
        );
    }
}
