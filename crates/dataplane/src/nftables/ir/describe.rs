//! Changes as text, for errors that name the refused change.

use std::fmt;

use super::{NftChange, RulePosition};

impl fmt::Display for NftChange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NftChange::AddTable { table, .. } => write!(out, "add table {table}"),
            NftChange::DeleteTable { table } => write!(out, "delete table {table}"),
            NftChange::AddChain { table, chain, .. } => write!(out, "add chain {table} {chain}"),
            NftChange::FlushChain { table, chain } => write!(out, "flush chain {table} {chain}"),
            NftChange::DeleteChain { table, chain } => write!(out, "delete chain {table} {chain}"),
            NftChange::AddSet { table, set, spec } => {
                let kind = if spec.data.is_some() { "map" } else { "set" };
                write!(out, "add {kind} {table} {set}")
            }
            NftChange::FlushSet { table, set } => write!(out, "flush set {table} {set}"),
            NftChange::DeleteSet { table, set } => write!(out, "delete set {table} {set}"),
            NftChange::AddElements { table, set, elements, .. } => {
                write!(out, "add {} to {table} {set}", count(elements))
            }
            NftChange::DeleteElements { table, set, elements, .. } => {
                write!(out, "delete {} from {table} {set}", count(elements))
            }
            NftChange::AddRule { table, chain, rule, position } => {
                let verb = match position {
                    RulePosition::Last => "add",
                    RulePosition::First => "insert",
                };
                write!(out, "{verb} rule {table} {chain}")?;
                rule.comment.iter().try_for_each(|comment| write!(out, " ({comment})"))
            }
            NftChange::ReplaceRule { table, chain, handle, .. } => {
                write!(out, "replace rule {table} {chain} handle {handle}")
            }
            NftChange::DeleteRule { table, chain, handle } => {
                write!(out, "delete rule {table} {chain} handle {handle}")
            }
        }
    }
}

/// The number of elements, and the comment of the first.
fn count(elements: &[super::Element]) -> String {
    let whose = elements.first().and_then(|element| element.value.comment.as_ref());
    let whose = whose.map(|comment| format!(" ({comment})")).unwrap_or_default();
    match elements.len() {
        1 => format!("1 element{whose}"),
        many => format!("{many} elements{whose}"),
    }
}
