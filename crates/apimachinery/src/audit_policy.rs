//! The audit policy (`audit.k8s.io/v1` Policy): how much of a request is recorded, and at which stages.

use std::fmt;

use serde_json::Value;

use crate::rbac::{AccessAttributes, UserInfo};

/// How much of a request is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuditLevel {
    None,
    Metadata,
    /// With the body of the request.
    Request,
    /// With the bodies of request and response.
    RequestResponse,
}

impl AuditLevel {
    fn parse(word: &str) -> Option<Self> {
        [Self::None, Self::Metadata, Self::Request, Self::RequestResponse]
            .into_iter()
            .find(|level| level.to_string() == word)
    }
}

impl fmt::Display for AuditLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        })
    }
}

/// When an event is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditStage {
    RequestReceived,
    /// Of watches, when the response begins.
    ResponseStarted,
    ResponseComplete,
    Panic,
}

impl AuditStage {
    const ALL: [Self; 4] =
        [Self::RequestReceived, Self::ResponseStarted, Self::ResponseComplete, Self::Panic];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

/// An audit policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditPolicy {
    rules: Vec<AuditRule>,
    omit_stages: Vec<AuditStage>,
    omit_managed_fields: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct AuditRule {
    level: AuditLevel,
    users: Vec<String>,
    user_groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    non_resource_urls: Vec<String>,
    omit_stages: Vec<AuditStage>,
    omit_managed_fields: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    names: Vec<String>,
}

/// What is recorded of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditDecision {
    pub level: AuditLevel,
    omit_stages: Vec<AuditStage>,
    pub omit_managed_fields: bool,
}

impl AuditDecision {
    /// Whether an event is recorded at a stage.
    pub fn records(&self, stage: AuditStage) -> bool {
        self.level > AuditLevel::None && !self.omit_stages.contains(&stage)
    }
}

impl AuditPolicy {
    /// Reads a policy; errors name the field and what to do.
    pub fn parse(policy: &Value) -> Result<Self, String> {
        let version = policy["apiVersion"].as_str().unwrap_or_default();
        if policy["kind"] != "Policy" || version != "audit.k8s.io/v1" {
            return Err("expected kind Policy of apiVersion audit.k8s.io/v1".to_owned());
        }
        const FIELDS: &[&str] =
            &["apiVersion", "kind", "metadata", "rules", "omitStages", "omitManagedFields"];
        known("", policy, FIELDS)?;
        let rules = items("rules", &policy["rules"])?;
        if rules.is_empty() {
            return Err("rules: the list is empty, so nothing would be recorded: add a rule, e.g. `- level: Metadata`"
                .to_owned());
        }
        let rules = rules.iter().enumerate();
        let rules: Result<Vec<AuditRule>, String> =
            rules.map(|(at, rule)| AuditRule::parse(&format!("rules[{at}]"), rule)).collect();
        Ok(Self {
            rules: rules?,
            omit_stages: stages("omitStages", &policy["omitStages"])?,
            omit_managed_fields: flag("omitManagedFields", &policy["omitManagedFields"])?.unwrap_or_default(),
        })
    }

    /// The policy that records metadata of every request.
    pub fn metadata() -> Self {
        let rule = AuditRule {
            level: AuditLevel::Metadata,
            users: Vec::new(),
            user_groups: Vec::new(),
            verbs: Vec::new(),
            resources: Vec::new(),
            namespaces: Vec::new(),
            non_resource_urls: Vec::new(),
            omit_stages: Vec::new(),
            omit_managed_fields: None,
        };
        let omit_stages = vec![AuditStage::RequestReceived];
        Self { rules: vec![rule], omit_stages, omit_managed_fields: false }
    }

    /// What is recorded of a request: the first rule that matches decides.
    pub fn decide(&self, user: &UserInfo, attributes: &AccessAttributes<'_>) -> AuditDecision {
        let Some(rule) = self.rules.iter().find(|rule| rule.matches(user, attributes)) else {
            return AuditDecision {
                level: AuditLevel::None,
                omit_stages: Vec::new(),
                omit_managed_fields: false,
            };
        };
        let mut omit_stages = self.omit_stages.clone();
        omit_stages.extend(&rule.omit_stages);
        let omit_managed_fields = rule.omit_managed_fields.unwrap_or(self.omit_managed_fields);
        AuditDecision { level: rule.level, omit_stages, omit_managed_fields }
    }
}

/// Refuses other fields: a misspelt one would let a rule match more than was meant.
fn known(path: &str, object: &Value, fields: &[&str]) -> Result<(), String> {
    let Some(object) = object.as_object() else { return Err(format!("{path}: expected an object")) };
    match object.keys().find(|name| !fields.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(format!(
            "{path}{}{name}: unknown field: use {}",
            if path.is_empty() { "" } else { "." },
            fields.join(", ")
        )),
    }
}

fn items<'a>(path: &str, value: &'a Value) -> Result<&'a [Value], String> {
    match value {
        Value::Null => Ok(&[]),
        Value::Array(list) => Ok(list),
        _ => Err(format!("{path}: expected a list")),
    }
}

fn flag(path: &str, value: &Value) -> Result<Option<bool>, String> {
    match value {
        Value::Null => Ok(None),
        Value::Bool(flag) => Ok(Some(*flag)),
        _ => Err(format!("{path}: expected true or false")),
    }
}

fn strings(path: &str, value: &Value) -> Result<Vec<String>, String> {
    let list = items(path, value)?;
    let text = |item: &Value| item.as_str().map(str::to_owned);
    list.iter().map(text).collect::<Option<_>>().ok_or_else(|| format!("{path}: expected a list of strings"))
}

fn stages(path: &str, value: &Value) -> Result<Vec<AuditStage>, String> {
    let find = |word: &String| {
        let found = AuditStage::ALL.into_iter().find(|stage| stage.as_str() == word);
        found.ok_or_else(|| {
            format!("{path}: {word:?}: use RequestReceived, ResponseStarted, ResponseComplete or Panic")
        })
    };
    strings(path, value)?.iter().map(find).collect()
}

impl GroupResources {
    fn parse(path: &str, part: &Value) -> Result<Self, String> {
        known(path, part, &["group", "resources", "resourceNames"])?;
        let group = match &part["group"] {
            Value::Null => String::new(),
            Value::String(group) => group.clone(),
            _ => return Err(format!("{path}.group: expected a string, empty for the core group")),
        };
        if group.contains('/') {
            return Err(format!("{path}.group: {group:?}: use the group without a version"));
        }
        let resources = strings(&format!("{path}.resources"), &part["resources"])?;
        let names = strings(&format!("{path}.resourceNames"), &part["resourceNames"])?;
        if resources.is_empty() && !names.is_empty() {
            return Err(format!("{path}.resourceNames: using resourceNames requires at least one resource"));
        }
        Ok(Self { group, resources, names })
    }
}

impl AuditRule {
    fn parse(path: &str, rule: &Value) -> Result<Self, String> {
        const FIELDS: &[&str] = &[
            "level",
            "users",
            "userGroups",
            "verbs",
            "resources",
            "namespaces",
            "nonResourceURLs",
            "omitStages",
            "omitManagedFields",
        ];
        known(path, rule, FIELDS)?;
        let word = rule["level"].as_str().unwrap_or_default();
        let level = AuditLevel::parse(word).ok_or_else(|| {
            format!("{path}.level: {word:?}: use None, Metadata, Request or RequestResponse")
        })?;
        let list = |name: &str| strings(&format!("{path}.{name}"), &rule[name]);
        let resources = items(&format!("{path}.resources"), &rule["resources"])?;
        let resources = resources
            .iter()
            .enumerate()
            .map(|(at, part)| GroupResources::parse(&format!("{path}.resources[{at}]"), part));
        let resources: Result<Vec<GroupResources>, String> = resources.collect();
        let read = Self {
            level,
            users: list("users")?,
            user_groups: list("userGroups")?,
            verbs: list("verbs")?,
            resources: resources?,
            namespaces: list("namespaces")?,
            non_resource_urls: list("nonResourceURLs")?,
            omit_stages: stages(&format!("{path}.omitStages"), &rule["omitStages"])?,
            omit_managed_fields: flag(&format!("{path}.omitManagedFields"), &rule["omitManagedFields"])?,
        };
        let has_resources = !read.resources.is_empty() || !read.namespaces.is_empty();
        if has_resources && !read.non_resource_urls.is_empty() {
            return Err(format!(
                "{path}.nonResourceURLs: rules cannot apply to both regular resources and non-resource URLs"
            ));
        }
        for (at, url) in read.non_resource_urls.iter().enumerate() {
            let star = url.trim_end_matches('*').contains('*');
            if url != "*" && (!url.starts_with('/') || star) {
                return Err(format!(
                    "{path}.nonResourceURLs[{at}]: {url:?}: use \"*\", a path, or a path with a * at its end"
                ));
            }
        }
        Ok(read)
    }

    fn matches(&self, user: &UserInfo, attributes: &AccessAttributes<'_>) -> bool {
        let listed = |list: &[String], item: &str| list.is_empty() || list.iter().any(|own| own == item);
        let in_group =
            self.user_groups.is_empty() || self.user_groups.iter().any(|group| user.groups.contains(group));
        if !listed(&self.users, &user.name) || !in_group || !listed(&self.verbs, attributes.verb()) {
            return false;
        }
        match attributes {
            AccessAttributes::Resource(wanted) => {
                if !self.non_resource_urls.is_empty() || !listed(&self.namespaces, wanted.namespace) {
                    return false;
                }
                self.resources.is_empty()
                    || self.resources.iter().any(|part| {
                        part.group == wanted.group
                            && listed(&part.names, wanted.name)
                            && (part.resources.is_empty()
                                || part
                                    .resources
                                    .iter()
                                    .any(|own| matches_resource(own, wanted.resource, wanted.subresource)))
                    })
            }
            AccessAttributes::Path { path, .. } => {
                if !self.resources.is_empty() || !self.namespaces.is_empty() {
                    return false;
                }
                let urls = &self.non_resource_urls;
                urls.is_empty()
                    || urls.iter().any(|own| {
                        own == "*"
                            || own == path
                            || own.ends_with('*') && path.starts_with(own.trim_end_matches('*'))
                    })
            }
        }
    }
}

/// `*`, `pods`, `pods/log`, `*/status`, or `pods/*` for a resource with all of its subresources.
fn matches_resource(own: &str, resource: &str, subresource: &str) -> bool {
    match own.split_once('/') {
        None => own == "*" || own == resource && subresource.is_empty(),
        Some((base, "*")) => base == resource,
        Some((base, part)) => !part.is_empty() && part == subresource && (base == "*" || base == resource),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::rbac::ResourceAttributes;

    fn policy(rules: &Value) -> Result<AuditPolicy, String> {
        AuditPolicy::parse(&json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}))
    }

    fn level(rules: &Value, user: &UserInfo, attributes: &AccessAttributes<'_>) -> AuditLevel {
        policy(rules).unwrap().decide(user, attributes).level
    }

    fn pods(verb: &'static str, subresource: &'static str) -> AccessAttributes<'static> {
        AccessAttributes::Resource(ResourceAttributes {
            verb,
            group: "",
            resource: "pods",
            subresource,
            namespace: "n",
            name: "p",
        })
    }

    #[test]
    fn the_first_rule_that_matches_decides_and_none_is_none() {
        let jane = UserInfo::new("jane", &["dev"]);
        let rules = json!([
            {"level": "None", "users": ["jane"], "verbs": ["watch"]},
            {"level": "Request", "userGroups": ["ops", "dev"], "namespaces": ["n"]},
            {"level": "Metadata", "nonResourceURLs": ["/healthz*"]},
        ]);
        assert_eq!(level(&rules, &jane, &pods("watch", "")), AuditLevel::None);
        assert_eq!(level(&rules, &jane, &pods("get", "")), AuditLevel::Request);
        assert_eq!(level(&rules, &UserInfo::new("joe", &[]), &pods("get", "")), AuditLevel::None);
        for (path, wanted) in [
            ("/healthz", AuditLevel::Metadata),
            ("/healthz/x", AuditLevel::Metadata),
            ("/version", AuditLevel::None),
        ] {
            assert_eq!(level(&rules, &jane, &AccessAttributes::Path { verb: "get", path }), wanted, "{path}");
        }
    }

    #[test]
    fn resources_match_with_subresources_and_names_as_in_kubernetes() {
        let jane = UserInfo::new("jane", &[]);
        for (resource, whole, log) in [
            ("pods", true, false),
            ("pods/log", false, true),
            ("pods/*", true, true),
            ("*/log", false, true),
            ("*", true, true),
            ("*/*", false, false),
            ("pods/", false, false),
            ("services", false, false),
        ] {
            let rules = json!([{"level": "Metadata", "resources": [{"group": "", "resources": [resource]}]}]);
            for (subresource, wanted) in [("", whole), ("log", log)] {
                let recorded = level(&rules, &jane, &pods("get", subresource)) == AuditLevel::Metadata;
                assert_eq!(recorded, wanted, "{resource} {subresource}");
            }
        }
        let named = |name: &str| {
            json!([{"level": "Metadata",
                "resources": [{"group": "", "resources": ["pods"], "resourceNames": [name]}]}])
        };
        assert_eq!(level(&named("p"), &jane, &pods("get", "")), AuditLevel::Metadata);
        assert_eq!(level(&named("q"), &jane, &pods("get", "")), AuditLevel::None);
        let other = json!([{"level": "Metadata", "resources": [{"group": "apps"}]}]);
        assert_eq!(level(&other, &jane, &pods("get", "")), AuditLevel::None);
        let path = AccessAttributes::Path { verb: "get", path: "/version" };
        assert_eq!(level(&named("p"), &jane, &path), AuditLevel::None, "a path is no resource");
    }

    #[test]
    fn stages_of_the_policy_and_of_the_rule_are_left_out() {
        let parsed = AuditPolicy::parse(&json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
            "omitManagedFields": true,
            "rules": [{"level": "Metadata", "omitStages": ["Panic"], "verbs": ["get"], "omitManagedFields": false},
                {"level": "Metadata"}],
        }))
        .unwrap();
        let jane = UserInfo::new("jane", &[]);
        let decision = parsed.decide(&jane, &pods("get", ""));
        let stages = AuditStage::ALL.map(|stage| decision.records(stage));
        assert_eq!((stages, decision.omit_managed_fields), ([false, true, true, false], false));
        assert!(parsed.decide(&jane, &pods("list", "")).omit_managed_fields);
    }

    #[test]
    fn mistakes_name_the_field_and_never_widen_a_rule() {
        for (rules, said) in [
            (json!([]), "rules: the list is empty"),
            (json!({"level": "None"}), "rules: expected a list"),
            (json!([{"level": "metadata"}]), "rules[0].level: \"metadata\": use None, Metadata"),
            (json!([{"level": "None", "verb": ["get"]}]), "rules[0].verb: unknown field: use level, users"),
            (json!([{"level": "None", "verbs": "get"}]), "rules[0].verbs: expected a list"),
            (json!([{"level": "None", "users": [1]}]), "rules[0].users: expected a list of strings"),
            (json!([{"level": "None", "resources": {"group": ""}}]), "rules[0].resources: expected a list"),
            (
                json!([{"level": "None", "resources": [{"group": "", "resource": ["pods"]}]}]),
                "rules[0].resources[0].resource: unknown field",
            ),
            (
                json!([{"level": "None", "resources": [{"group": "apps/v1"}]}]),
                "rules[0].resources[0].group: \"apps/v1\": use the group without a version",
            ),
            (
                json!([{"level": "None", "resources": [{"resourceNames": ["a"]}]}]),
                "rules[0].resources[0].resourceNames: using resourceNames requires at least one resource",
            ),
            (
                json!([{"level": "None", "namespaces": ["n"], "nonResourceURLs": ["/a"]}]),
                "rules[0].nonResourceURLs: rules cannot apply to both",
            ),
            (
                json!([{"level": "None", "nonResourceURLs": ["/a*b"]}]),
                "rules[0].nonResourceURLs[0]: \"/a*b\"",
            ),
            (json!([{"level": "None", "omitStages": ["End"]}]), "rules[0].omitStages: \"End\""),
            (json!([{"level": "None", "omitManagedFields": 1}]), "rules[0].omitManagedFields: expected true"),
            (json!(["None"]), "rules[0]: expected an object"),
        ] {
            let found = policy(&rules).unwrap_err();
            assert!(found.starts_with(said), "{rules}: {found}");
        }
        let other = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rule": []});
        assert!(AuditPolicy::parse(&other).unwrap_err().starts_with("rule: unknown field"));
        assert!(AuditPolicy::parse(&json!({"kind": "Policy"})).is_err());
    }
}
