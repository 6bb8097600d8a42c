//! Changes in words, for errors that must say which one the kernel refused, and for people who look before they leap.

use std::fmt;

use super::{Change, Place};

impl fmt::Display for Change {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::AddTable { table, .. } => write!(out, "add table {table}"),
            Change::DeleteTable { table } => write!(out, "delete table {table}"),
            Change::AddChain { table, chain, .. } => write!(out, "add chain {table} {chain}"),
            Change::FlushChain { table, chain } => write!(out, "flush chain {table} {chain}"),
            Change::DeleteChain { table, chain } => write!(out, "delete chain {table} {chain}"),
            Change::AddSet { table, set, spec } => {
                let kind = if spec.data.is_some() { "map" } else { "set" };
                write!(out, "add {kind} {table} {set}")
            }
            Change::FlushSet { table, set } => write!(out, "flush set {table} {set}"),
            Change::DeleteSet { table, set } => write!(out, "delete set {table} {set}"),
            Change::AddElements { table, set, elements, .. } => {
                write!(out, "add {} to {table} {set}", count(elements))
            }
            Change::DeleteElements { table, set, elements, .. } => {
                write!(out, "delete {} from {table} {set}", count(elements))
            }
            Change::AddRule { table, chain, rule, place } => {
                let verb = match place {
                    Place::Last => "add",
                    Place::First => "insert",
                };
                write!(out, "{verb} rule {table} {chain}")?;
                rule.comment.iter().try_for_each(|comment| write!(out, " ({comment})"))
            }
            Change::ReplaceRule { table, chain, handle, .. } => {
                write!(out, "replace rule {table} {chain} handle {handle}")
            }
            Change::DeleteRule { table, chain, handle } => {
                write!(out, "delete rule {table} {chain} handle {handle}")
            }
        }
    }
}

/// How many elements, and whose, if the first one says so.
fn count(elements: &[super::Element]) -> String {
    let whose = elements.first().and_then(|element| element.value.comment.as_ref());
    let whose = whose.map(|comment| format!(" ({comment})")).unwrap_or_default();
    match elements.len() {
        1 => format!("1 element{whose}"),
        many => format!("{many} elements{whose}"),
    }
}
