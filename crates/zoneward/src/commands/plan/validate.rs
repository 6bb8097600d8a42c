//! `zoneward plan validate`: what an API server would refuse.

use anyhow::Result;
use plan::validate::{Fault, Violation, is_known, validate, without_effect};
use serde_json::{Value, json};

use crate::cli::{Format, PlanValidate};
use crate::input::Documents;
use crate::output::{count, print_text, print_value, render, table};

/// Runs the command.
pub fn run(args: &PlanValidate) -> Result<bool> {
    let documents = Documents::read(&args.input)?;
    let known: Vec<&Value> = documents.objects.iter().filter(|object| is_known(object)).collect();
    let mut violations: Vec<Violation> = known.iter().flat_map(|object| validate(object)).collect();
    let unreadable = documents.notices.into_iter();
    violations.extend(unreadable.map(|n| Violation {
        object: n.object,
        field: String::new(),
        reason: n.message,
        fault: Fault::Invalid,
    }));
    let accepted = violations.is_empty();
    let warnings: Vec<Violation> = known.iter().flat_map(|object| without_effect(object)).collect();
    match args.output.format {
        Format::Table => {
            let others = documents.objects.len() - known.len();
            print_text(&text(&violations, &warnings, known.len(), others))?;
        }
        format => {
            let one =
                |v: &Violation| json!({"object": v.object.to_string(), "field": v.field, "reason": v.reason});
            let rows = |list: &[Violation]| list.iter().map(one).collect::<Vec<Value>>();
            let (violations, warnings) = (rows(&violations), rows(&warnings));
            let answer = json!({"accepted": accepted, "violations": violations, "warnings": warnings});
            print_value(&answer, format)?;
        }
    }
    Ok(accepted)
}

fn listed(violations: &[Violation]) -> String {
    let mut table = table(&["OBJECT", "FIELD", "REASON"]);
    table.add_rows(violations.iter().map(|v| [v.object.to_string(), v.field.clone(), v.reason.clone()]));
    render(&table)
}

fn text(violations: &[Violation], warnings: &[Violation], known: usize, others: usize) -> String {
    let mut text = String::new();
    if !violations.is_empty() {
        text = listed(violations) + "\n";
    }
    if !warnings.is_empty() {
        text += &format!("Accepted, without effect:\n{}\n", listed(warnings));
    }
    text += &match violations.len() {
        0 => format!("{} accepted.", count(known, "object")),
        n => format!("{} in {}.", count(n, "violation"), count(known, "object")),
    };
    if others > 0 {
        text += &format!(" {} of other kinds passed over.", count(others, "object"));
    }
    text + "\n"
}
