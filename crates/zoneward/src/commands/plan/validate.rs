//! `zoneward plan validate`: what an API server would refuse.

use anyhow::Result;
use plan::validate::{Fault, Violation, is_known, validate};
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
    match args.output.format {
        Format::Table => {
            let others = documents.objects.len() - known.len();
            print_text(&text(&violations, known.len(), others))?;
        }
        format => {
            let one =
                |v: &Violation| json!({"object": v.object.to_string(), "field": v.field, "reason": v.reason});
            let rows: Vec<Value> = violations.iter().map(one).collect();
            print_value(&json!({"accepted": accepted, "violations": rows}), format)?;
        }
    }
    Ok(accepted)
}

fn text(violations: &[Violation], known: usize, others: usize) -> String {
    let mut text = String::new();
    if !violations.is_empty() {
        let mut table = table(&["OBJECT", "FIELD", "REASON"]);
        table.add_rows(violations.iter().map(|v| [v.object.to_string(), v.field.clone(), v.reason.clone()]));
        text = render(&table) + "\n";
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
