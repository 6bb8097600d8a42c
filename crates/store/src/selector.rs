//! Label and field selectors, as in `?labelSelector=app in (a,b),!old&fieldSelector=metadata.name=x`.

use serde_json::Value;

use crate::kinds::ResourceKind;
use crate::meta::at;

/// A label selector; empty matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operator {
    Exists,
    Missing,
    In(Vec<String>),
    NotIn(Vec<String>),
    Above(i64),
    Below(i64),
}

impl LabelSelector {
    /// Parses the parameter `labelSelector`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let parts = split_outside_brackets(text)?;
        let wanted = parts.into_iter().filter(|part| !part.trim().is_empty());
        let read: Result<Vec<_>, _> = wanted.map(|part| requirement(part.trim())).collect();
        read.map(Self).map_err(|why| format!("unable to parse requirement: {why}"))
    }

    /// Parses the selector of an object (`matchLabels`, `matchExpressions`).
    pub(crate) fn of_object(selector: &Value) -> Result<Self, String> {
        let mut requirements = Vec::new();
        for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
            let value = value.as_str().unwrap_or_default().to_owned();
            requirements.push(Requirement { key: key.clone(), operator: Operator::In(vec![value]) });
        }
        for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
            let values = expression["values"].as_array().into_iter().flatten();
            let values = values.filter_map(Value::as_str).map(str::to_owned).collect();
            let operator = match expression["operator"].as_str().unwrap_or_default() {
                "In" => Operator::In(values),
                "NotIn" => Operator::NotIn(values),
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::Missing,
                other => return Err(format!("{other:?} is not a valid label selector operator")),
            };
            let key = expression["key"].as_str().unwrap_or_default().to_owned();
            requirements.push(Requirement { key, operator });
        }
        Ok(Self(requirements))
    }

    /// Whether every object matches.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.0.iter().all(|requirement| requirement.holds(labels[&requirement.key].as_str()))
    }
}

impl Requirement {
    fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.operator {
            Operator::Exists => value.is_some(),
            Operator::Missing => value.is_none(),
            Operator::In(values) => value.is_some_and(|value| values.iter().any(|v| v == value)),
            Operator::NotIn(values) => value.is_none_or(|value| values.iter().all(|v| v != value)),
            Operator::Above(bound) => number().is_some_and(|number| number > *bound),
            Operator::Below(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

fn split_outside_brackets(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1).ok_or("found ')' without '('")?,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err("found '(' without ')'".to_owned());
    }
    parts.push(&text[start..]);
    Ok(parts)
}

fn requirement(text: &str) -> Result<Requirement, String> {
    if let Some(key) = text.strip_prefix('!') {
        return Ok(Requirement { key: key_of(key)?, operator: Operator::Missing });
    }
    if let Some((head, list)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        return set_requirement(head.trim(), list);
    }
    for (sign, negated) in [("!=", true), ("==", false), ("=", false)] {
        if let Some((key, value)) = text.split_once(sign) {
            let values = vec![value_of(value)?];
            let operator = if negated { Operator::NotIn(values) } else { Operator::In(values) };
            return Ok(Requirement { key: key_of(key)?, operator });
        }
    }
    for (sign, make) in [(">", Operator::Above as fn(i64) -> Operator), ("<", Operator::Below)] {
        if let Some((key, bound)) = text.split_once(sign) {
            let bound = bound.trim().parse().map_err(|_| format!("{bound:?} is not an integer"))?;
            return Ok(Requirement { key: key_of(key)?, operator: make(bound) });
        }
    }
    Ok(Requirement { key: key_of(text)?, operator: Operator::Exists })
}

fn set_requirement(head: &str, list: &str) -> Result<Requirement, String> {
    let (key, word) = head.rsplit_once(char::is_whitespace).unwrap_or((head, ""));
    let values: Vec<String> = list.split(',').map(value_of).collect::<Result<_, _>>()?;
    let operator = match word {
        "in" => Operator::In(values),
        "notin" => Operator::NotIn(values),
        other => return Err(format!("found {other:?}, expected: in, notin")),
    };
    Ok(Requirement { key: key_of(key)?, operator })
}

fn key_of(text: &str) -> Result<String, String> {
    let key = text.trim();
    let name = key.rsplit('/').next().unwrap_or(key);
    if is_word(name, 63) && key.matches('/').count() <= 1 && key.len() <= 317 {
        return Ok(key.to_owned());
    }
    Err(format!("{key:?} is not a valid label key"))
}

fn value_of(text: &str) -> Result<String, String> {
    let value = text.trim();
    if value.is_empty() || is_word(value, 63) {
        return Ok(value.to_owned());
    }
    Err(format!("{value:?} is not a valid label value"))
}

/// Letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
fn is_word(text: &str, longest: usize) -> bool {
    let ends = |c: char| c.is_ascii_alphanumeric();
    text.len() <= longest
        && text.starts_with(ends)
        && text.ends_with(ends)
        && text.chars().all(|c| ends(c) || "-_.".contains(c))
}

/// A field selector; empty matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSelector(Vec<FieldRequirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldRequirement {
    path: String,
    value: String,
    negated: bool,
}

impl FieldSelector {
    /// Parses the parameter `fieldSelector` over the selectable fields of a kind.
    pub(crate) fn parse(text: &str, kind: &ResourceKind) -> Result<Self, String> {
        let mut requirements = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let split = |(sign, negated)| part.split_once(sign).map(|(path, value)| (path, value, negated));
            let found = [("!=", true), ("==", false), ("=", false)].into_iter().find_map(split);
            let Some((path, value, negated)) = found else {
                return Err(format!("invalid selector: '{text}'; can't understand '{part}'"));
            };
            if !is_selectable(path, kind) {
                return Err(format!("field label not supported: {path}"));
            }
            let (path, value) = (path.to_owned(), value.to_owned());
            requirements.push(FieldRequirement { path, value, negated });
        }
        Ok(Self(requirements))
    }

    /// Adds a requirement of one name.
    pub(crate) fn require_name(&mut self, name: &str) {
        let (path, value) = ("metadata.name".to_owned(), name.to_owned());
        self.0.push(FieldRequirement { path, value, negated: false });
    }

    /// Whether every object matches.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|requirement| {
            let path = if requirement.path == "source" { "source.component" } else { &requirement.path };
            let found = match at(object, path) {
                // A missing field is empty, or false if it is a bool.
                Value::Null if requirement.value == "false" => "false".to_owned(),
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            (found == requirement.value) != requirement.negated
        })
    }
}

fn is_selectable(path: &str, kind: &ResourceKind) -> bool {
    path == "metadata.name"
        || path == "metadata.namespace" && kind.namespaced
        || kind.selectable.contains(&path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;
    use serde_json::json;

    #[test]
    fn label_selectors_match_as_kubernetes_does() {
        let pod = json!({"metadata": {"labels": {"app": "web", "tier": "front", "weight": "7"}}});
        for (selector, matches) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier=front", true),
            ("app!=web", false),
            ("missing!=x", true),
            ("app in (api, web)", true),
            ("app notin (api,web)", false),
            ("missing notin (a)", true),
            ("tier", true),
            ("!tier", false),
            ("!missing", true),
            ("weight>5", true),
            ("weight<7", false),
            ("missing>1", false),
            ("missing=", false),
        ] {
            assert_eq!(LabelSelector::parse(selector).unwrap().matches(&pod), matches, "{selector}");
        }
    }

    #[test]
    fn bad_label_selectors_are_refused_with_a_reason() {
        for selector in ["app in (a", "a)b", "-x=1", "a=b c", "app among (a)", "a/b/c=1", "w>x"] {
            assert!(LabelSelector::parse(selector).is_err(), "{selector}");
        }
    }

    #[test]
    fn field_selectors_know_the_fields_of_the_kind() {
        let pods = kinds::find("", "v1", "pods").unwrap();
        let pod =
            json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}});
        for (selector, matches) in [
            ("metadata.name=a", true),
            ("status.phase!=Running", false),
            ("spec.nodeName=n1,status.phase=Running", true),
            ("spec.hostNetwork=false", true),
        ] {
            assert_eq!(FieldSelector::parse(selector, pods).unwrap().matches(&pod), matches, "{selector}");
        }
        assert_eq!(
            FieldSelector::parse("spec.color=red", pods).unwrap_err(),
            "field label not supported: spec.color"
        );
        assert!(FieldSelector::parse("metadata.name", pods).is_err());
    }

    #[test]
    fn selectors_of_objects_match_as_those_of_queries() {
        let selector = json!({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]});
        let selector = LabelSelector::of_object(&selector).unwrap();
        assert!(selector.matches(&json!({"metadata": {"labels": {"a": "1"}}})));
        assert!(!selector.matches(&json!({"metadata": {"labels": {"a": "1", "b": ""}}})));
    }
}
