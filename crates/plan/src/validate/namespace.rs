//! Namespaces: nothing but metadata matters to us.

use super::Change;
use super::field::Findings;
use super::meta::{self, Naming};
use super::syntax::dns_label;

pub(super) fn check(change: &Change, findings: &mut Findings) {
    let naming = Naming { rule: dns_label, namespaced: false, generated: true };
    meta::check(change, &naming, findings);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::validate::validate;

    #[test]
    fn a_namespace_is_named_by_a_dns_label() {
        for (name, accepted) in [("shop", true), ("8ball", true), ("a.b", false), ("Shop", false)] {
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            assert_eq!(validate(&object).is_empty(), accepted, "{name}");
        }
    }
}
