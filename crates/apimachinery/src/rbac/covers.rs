//! Whether some rules grant no more than others: each combination of group, resource, verb and name (or of URL and verb)
//! must be covered by one rule.

use std::collections::BTreeSet;

use super::PolicyRule;

/// Combinations that are examined. A role that needs more is refused, because the number of combinations grows with the
/// product of the lists of a rule.
pub(super) const MAX_COMBINATIONS: usize = 100_000;
/// Comparisons of words: some tenths of a second. Both sides are written by users, and their product counts.
const MAX_COMPARISONS: usize = 50_000_000;

/// The combinations of `servant` that no rule of `owner` covers; an error if there are too many to examine.
pub fn uncovered(owner: &[&PolicyRule], servant: &[PolicyRule]) -> Result<Vec<PolicyRule>, String> {
    let owner: Vec<&PolicyRule> = owner.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
    let owner = owner.as_slice();
    let words: usize =
        owner.iter().map(|rule| rule.lists().iter().map(|(_, list)| list.len()).sum::<usize>()).sum();
    let (mut missing, mut examined, mut comparisons) = (Vec::new(), 0usize, 0usize);
    let mut compare = |count: usize| {
        comparisons = comparisons.saturating_add(words.saturating_mul(count));
        if comparisons > MAX_COMPARISONS {
            return Err("the rules are too many to compare with those of the writer: use several roles, or rules with \
                        more in common"
                .to_owned());
        }
        Ok(())
    };
    for rule in servant {
        let longest = rule.lists().iter().map(|(_, list)| list.len()).max().unwrap_or_default();
        compare(longest)?;
        if is_covered(owner, rule) {
            continue;
        }
        examined = examined.saturating_add(combinations(rule));
        if examined > MAX_COMBINATIONS {
            return Err(format!(
                "the rules have more than {MAX_COMBINATIONS} combinations of group, resource, verb and name: \
                 use several roles"
            ));
        }
        compare(combinations(rule))?;
        missing.extend(atoms(rule).filter(|atom| !is_covered(owner, atom)));
    }
    Ok(missing)
}

/// Whether one rule of the owner covers the whole rule.
fn is_covered(owner: &[&PolicyRule], rule: &PolicyRule) -> bool {
    let resource = !rule.resources.is_empty() || !rule.api_groups.is_empty();
    let plain = resource == rule.non_resource_urls.is_empty();
    plain && owner.iter().any(|own| covers(own, rule))
}

fn combinations(rule: &PolicyRule) -> usize {
    let names = rule.resource_names.len().max(1);
    let resources = [rule.api_groups.len(), rule.resources.len(), rule.verbs.len(), names];
    let resources = resources.into_iter().fold(1, usize::saturating_mul);
    resources.saturating_add(rule.non_resource_urls.len().saturating_mul(rule.verbs.len()))
}

/// The combinations of a rule, each as a rule.
fn atoms(rule: &PolicyRule) -> impl Iterator<Item = PolicyRule> + '_ {
    let one = |item: &String| vec![item.clone()];
    let names: Vec<Vec<String>> = match rule.resource_names.as_slice() {
        [] => vec![Vec::new()],
        names => names.iter().map(one).collect(),
    };
    let mut all = Vec::new();
    for group in &rule.api_groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                all.extend(names.iter().map(|names| PolicyRule {
                    verbs: one(verb),
                    api_groups: one(group),
                    resources: one(resource),
                    resource_names: names.clone(),
                    non_resource_urls: Vec::new(),
                }));
            }
        }
    }
    for url in &rule.non_resource_urls {
        let of_url =
            |verb| PolicyRule { verbs: one(verb), non_resource_urls: one(url), ..PolicyRule::default() };
        all.extend(rule.verbs.iter().map(of_url));
    }
    all.into_iter()
}

fn covers(own: &PolicyRule, rule: &PolicyRule) -> bool {
    let names = own.resource_names.is_empty()
        || !rule.resource_names.is_empty() && has_all(&own.resource_names, &rule.resource_names);
    has_all_or_star(&own.verbs, &rule.verbs)
        && has_all_or_star(&own.api_groups, &rule.api_groups)
        && rule.resources.iter().all(|resource| covers_resource(&own.resources, resource))
        && rule.non_resource_urls.iter().all(|url| covers_url(&own.non_resource_urls, url))
        && names
}

fn has_all(list: &[String], wanted: &[String]) -> bool {
    wanted.iter().all(|item| list.contains(item))
}

fn has_all_or_star(list: &[String], wanted: &[String]) -> bool {
    list.iter().any(|item| item == "*") || has_all(list, wanted)
}

fn covers_resource(own: &[String], resource: &str) -> bool {
    let part = resource.split_once('/').map(|(_, part)| part);
    own.iter().any(|item| {
        item == "*"
            || item == resource
            || part.is_some_and(|part| item.strip_prefix("*/").is_some_and(|own| own == part))
    })
}

fn covers_url(own: &[String], url: &str) -> bool {
    own.iter().any(|item| item == url || item.ends_with('*') && url.starts_with(item.trim_end_matches('*')))
}

/// Merges rules of one group and resource, and at most one name, that differ only in verbs; for messages.
pub fn compact(rules: &[PolicyRule]) -> Vec<PolicyRule> {
    let mut merged: Vec<PolicyRule> = Vec::new();
    for rule in rules {
        let is_simple = |rule: &PolicyRule| {
            rule.api_groups.len() == 1
                && rule.resources.len() == 1
                && rule.resource_names.len() <= 1
                && rule.non_resource_urls.is_empty()
        };
        let same = |other: &&mut PolicyRule| {
            is_simple(other)
                && other.api_groups == rule.api_groups
                && other.resources == rule.resources
                && other.resource_names == rule.resource_names
        };
        match merged.iter_mut().find(same).filter(|_| is_simple(rule)) {
            Some(other) => {
                for verb in &rule.verbs {
                    if !other.verbs.contains(verb) {
                        other.verbs.push(verb.clone());
                    }
                }
            }
            None => merged.push(rule.clone()),
        }
    }
    merged
}
