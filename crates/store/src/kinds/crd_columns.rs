//! The print columns of custom resources, from `additionalPrinterColumns` of their CustomResourceDefinitions.

use serde_json::Value;

use super::print_columns::{Cell, Column, NAME};

/// One step of a path.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// `.name`
    Member(String),
    /// `[2]`
    Item(usize),
    /// `[*]`
    All,
    /// `[?(@.type=='Accepted')]`: the items whose member is that text.
    Where(String, String),
}

/// A JSON path such as `.status.conditions[?(@.type=='Accepted')].status`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct JsonPath(Vec<Step>);

impl JsonPath {
    /// Parses a path; `None` if it has more than names, indices, `[*]` and comparisons with a string.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut steps = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (step, after) = match rest.strip_prefix('[') {
                Some(inside) => {
                    let (inside, after) = inside.split_once(']')?;
                    (bracket(inside)?, after)
                }
                None => {
                    let name = rest.strip_prefix('.')?;
                    let end = name.find(['.', '[']).unwrap_or(name.len());
                    let (name, after) = name.split_at(end);
                    (Step::Member((!name.is_empty()).then(|| name.to_owned())?), after)
                }
            };
            steps.push(step);
            rest = after;
        }
        Some(Self(steps))
    }

    /// The first value of the path; kube-apiserver shows no more.
    fn first<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        let mut found = vec![object];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.take(value)).collect();
        }
        found.into_iter().next()
    }
}

fn bracket(inside: &str) -> Option<Step> {
    if inside == "*" {
        return Some(Step::All);
    }
    let Some(comparison) = inside.strip_prefix("?(@.").and_then(|rest| rest.strip_suffix(')')) else {
        return inside.parse().ok().map(Step::Item);
    };
    let (member, text) = comparison.split_once("==")?;
    let text = text.trim();
    let unquoted = |quote: char| text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
    let text = unquoted('\'').or_else(|| unquoted('"'))?;
    Some(Step::Where(member.trim().to_owned(), text.to_owned()))
}

impl Step {
    fn take<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let items = || value.as_array().into_iter().flatten();
        match self {
            Self::Member(name) => value.get(name).into_iter().collect(),
            Self::Item(number) => value.get(number).into_iter().collect(),
            Self::All => items().collect(),
            Self::Where(name, text) => items().filter(|item| item[name] == text.as_str()).collect(),
        }
    }
}

/// The columns of a version: the name, then the listed ones.
pub(super) fn columns(crd: &str, version: &str) -> Result<Vec<Column>, String> {
    let crd: Value = serde_saphyr::from_str(crd).map_err(|error| error.to_string())?;
    let mut versions = crd["spec"]["versions"].as_array().into_iter().flatten();
    let found = versions.find(|entry| entry["name"] == version);
    let found = found.ok_or_else(|| format!("spec.versions: version {version:?} not found"))?;
    let listed = found["additionalPrinterColumns"].as_array().into_iter().flatten();
    std::iter::once(Ok(NAME)).chain(listed.map(column)).collect()
}

fn column(entry: &Value) -> Result<Column, String> {
    let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    let path = text("jsonPath");
    let cell = JsonPath::parse(&path).ok_or_else(|| format!("jsonPath: {path:?} is not supported"))?;
    let kind = text("type").leak();
    let priority = entry["priority"].as_i64().and_then(|number| i32::try_from(number).ok()).unwrap_or(0);
    let cell = Cell::Path(Box::leak(Box::new(cell)));
    Ok(Column { name: text("name").leak(), kind, priority, cell })
}

/// The content of a cell; null if the path leads nowhere.
pub(crate) fn cell(path: &JsonPath, kind: &str, object: &Value, now: i64) -> Value {
    match (kind, path.first(object)) {
        (_, None) => Value::Null,
        ("date", Some(Value::String(time))) => super::print_cells::since_time(time, now),
        ("string", Some(value @ (Value::Number(_) | Value::Bool(_)))) => value.to_string().into(),
        (_, Some(value)) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_path_leads_to_the_first_value_that_fits() {
        let object = json!({
            "spec": {"listeners": [{"port": 80}, {"port": 443}]},
            "status": {"conditions": [{"type": "Other", "status": "no"}, {"type": "Accepted", "status": "True"}]},
        });
        let shown = |path: &str, kind: &str| cell(&JsonPath::parse(path).unwrap(), kind, &object, 0);
        assert_eq!(shown(".spec.listeners[*].port", "string"), "80");
        assert_eq!(shown(".spec.listeners[1].port", "integer"), 443);
        assert_eq!(shown(".status.conditions[?(@.type=='Accepted')].status", "string"), "True");
        assert_eq!(shown(".status.conditions[?(@.type==\"None\")].status", "string"), Value::Null);
        assert_eq!(shown(".metadata.creationTimestamp", "date"), Value::Null);
        for bad in ["spec", ".spec[", ".spec[?(@.a>1)]", ".spec..a", ".spec[x]"] {
            assert_eq!(JsonPath::parse(bad), None, "{bad}");
        }
    }
}
