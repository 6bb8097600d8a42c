//! Aggregated ClusterRoles: the rules of all ClusterRoles that the selectors of an aggregationRule match.

use std::collections::BTreeSet;

use serde_json::Value;

use super::PolicyRule;

/// The rules that an aggregated ClusterRole should have; `None` if it has them, has no aggregationRule, or has a selector
/// that cannot be evaluated. `all` is sorted by name.
pub fn aggregated_rules(role: &Value, all: &[Value]) -> Option<Vec<Value>> {
    let selectors = role["aggregationRule"]["clusterRoleSelectors"].as_array()?;
    let (mut rules, mut parsed, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    for selector in selectors {
        for other in all {
            if other["metadata"]["name"] == role["metadata"]["name"]
                || !matches_labels(selector, &other["metadata"]["labels"])?
            {
                continue;
            }
            for rule in other["rules"].as_array().into_iter().flatten() {
                let read = PolicyRule::parse(rule);
                if seen.insert(read.clone()) {
                    parsed.push(read);
                    rules.push(rule.clone());
                }
            }
        }
    }
    (parsed != PolicyRule::parse_all(role)).then_some(rules)
}

/// Whether a label selector matches labels; `None` if it is malformed.
fn matches_labels(selector: &Value, labels: &Value) -> Option<bool> {
    let pairs = selector["matchLabels"].as_object().into_iter().flatten();
    let mut matches = pairs.into_iter().all(|(key, value)| labels.get(key) == Some(value));
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let label = labels.get(expression["key"].as_str()?);
        let values = expression["values"].as_array().map(Vec::as_slice).unwrap_or_default();
        let listed = label.is_some_and(|label| values.contains(label));
        matches &= match expression["operator"].as_str()? {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => label.is_some(),
            "DoesNotExist" => label.is_none(),
            _ => return None,
        };
    }
    Some(matches)
}
