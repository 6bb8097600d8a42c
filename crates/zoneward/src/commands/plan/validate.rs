//! `zoneward plan validate`: what an API server would reject, and what it would silently drop or ignore.

mod fields;
mod kube_proxy;

use anyhow::Result;
use apimachinery::validate::{FieldErrorType, Violation, is_known, lint, validate, without_effect};
use serde_json::{Value, json};

use crate::cli::{Format, PlanValidate};
use cluster::input::Documents;
use output::{count, print_text, print_value, render, table};

pub(crate) fn run(args: &PlanValidate) -> Result<bool> {
    args.gateway_api_channel.apply();
    let documents = Documents::read(&args.input)?;
    let mut report = ValidationReport::default();
    documents.objects.iter().for_each(|object| report.add(object));
    report.violations.extend(documents.notices.into_iter().map(|n| Violation {
        object: n.object,
        field: String::new(),
        reason: n.message,
        error_type: FieldErrorType::Invalid,
    }));
    let accepted = report.violations.is_empty();
    match args.output.format {
        Format::Table => print_text(&report.text())?,
        format => print_value(&report.value(), format)?,
    }
    Ok(accepted)
}

#[derive(Default)]
struct ValidationReport {
    violations: Vec<Violation>,
    /// Valid, but without effect.
    warnings: Vec<Violation>,
    checked: usize,
    /// Objects of unknown kinds.
    others: usize,
}

impl ValidationReport {
    fn add(&mut self, object: &Value) {
        let mut found = validate(object);
        found.extend(lint(object));
        self.warnings.extend(without_effect(object));
        let mut known = is_known(object) || !found.is_empty();
        if let Some((violations, warnings)) = kube_proxy::check(object) {
            known = true;
            found.extend(violations);
            self.warnings.extend(warnings);
        }
        if let Some(unknown) = fields::check(object) {
            known = true;
            // Skip duplicates of violations that the validation of the kind reports.
            let fresh = unknown.into_iter().filter(|new| found.iter().all(|old| old.field != new.field));
            let fresh: Vec<Violation> = fresh.collect();
            found.extend(fresh);
        }
        self.violations.extend(found);
        if known {
            self.checked += 1;
        } else {
            self.others += 1;
        }
    }

    fn value(&self) -> Value {
        let one =
            |v: &Violation| json!({"object": v.object.to_string(), "field": v.field, "reason": v.reason});
        let list = |list: &[Violation]| list.iter().map(one).collect::<Vec<Value>>();
        let mut value = json!({"accepted": self.violations.is_empty(), "violations": list(&self.violations)});
        if !self.warnings.is_empty() {
            value["warnings"] = list(&self.warnings).into();
        }
        value
    }

    fn text(&self) -> String {
        let mut text = String::new();
        if !self.violations.is_empty() {
            text = listed(&self.violations) + "\n";
        }
        if !self.warnings.is_empty() {
            text += &format!("Warnings:\n{}\n", listed(&self.warnings));
        }
        text += &match self.violations.len() {
            0 => format!("{} accepted.", count(self.checked, "object")),
            n => format!("{} in {}.", count(n, "violation"), count(self.checked, "object")),
        };
        if self.others > 0 {
            text += &format!(" {} of other kinds skipped.", count(self.others, "object"));
        }
        text + "\n"
    }
}

fn listed(violations: &[Violation]) -> String {
    let mut table = table(&["OBJECT", "FIELD", "REASON"]);
    table.add_rows(violations.iter().map(|v| [v.object.to_string(), v.field.clone(), v.reason.clone()]));
    render(&table)
}
