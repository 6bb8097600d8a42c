//! `zoneward plan node`: the changes of a node's rules when objects change.
//!
//! With `--live`, summarizes by Service which rules in the kernel differ from the desired ones.

mod iptables;
mod summary;

use anyhow::{Context, Result, bail};
use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::apply::read;
use dataplane::nftables::diff::{DiffLine, RulesetDiff, diff, lines};
use dataplane::nftables::ir::Ruleset;
use dataplane::nftables::render::{Renderer, SetSizes, render, table_id};
use model::Family;
use model::forward::ForwardingMode;
use serde_json::{Value, json};

use crate::cli::{Format, InputArgs, PlanNode};
use cluster::input::LoadedObjects;
use node::{NodeChoice, NodeWorld};
use output::{count, notices_text, notices_value, print_text, print_value};

pub fn run(args: &PlanNode) -> Result<bool> {
    let choice = NodeChoice::new(&args.node, args.live)?;
    let mut loaded = LoadedObjects::read(&choice.input(&args.input))?;
    let mut node = NodeWorld::new(&choice, &loaded)?;
    if node.table.node.mode == ForwardingMode::Iptables {
        return run_iptables(args, &choice, loaded, node);
    }
    let (renderer, program) = Renderer::start(&node.table);
    let (old, new) = if args.live {
        let live = live_rules()?;
        // The sets of a running node keep their sizes while everything fits.
        let sizes = SetSizes::of_ruleset(&live);
        let fits = renderer.fits(&sizes);
        (live, if fits { render(&node.table, &sizes) } else { program })
    } else if args.with.is_empty() {
        (Ruleset::default(), program)
    } else {
        add(args, &mut loaded)?;
        node = NodeWorld::new(&choice, &loaded)?;
        let after = Renderer::start(&node.table);
        // As on a running node, sets keep their sizes while everything fits.
        let fits = after.0.fits(renderer.sizes());
        (program, if fits { render(&node.table, renderer.sizes()) } else { after.1 })
    };
    loaded.notices.append(&mut node.notices);
    let difference = diff(&old, &new);
    let rule_changes = RuleChanges::new(&difference, &old, &new);
    let rows = if args.live {
        summary::rows(&rule_changes.now, &rule_changes.later, [&old, &new])
    } else {
        Vec::new()
    };
    match args.output.format {
        Format::Table => {
            let changes = if args.live && !args.full { summary::text(&rows) } else { rule_changes.text() };
            let source = choice.source().unwrap_or_default();
            print_text(&(source + &changes + &notices_text(&loaded.notices)))?;
        }
        format => {
            let mut value = rule_changes.value();
            if args.live {
                value["summary"] = rows.iter().map(summary::ServiceChanges::value).collect();
            }
            value["notices"] = notices_value(&loaded.notices);
            print_value(&value, format)?;
        }
    }
    Ok(!loaded.unreadable)
}

/// Mode iptables: by chain, and a change of many Services is one input of iptables-restore or a few.
fn run_iptables(
    args: &PlanNode,
    choice: &NodeChoice,
    mut loaded: LoadedObjects,
    mut node: NodeWorld,
) -> Result<bool> {
    let mut old = if args.live { iptables::live()? } else { iptables::ChainRules::new() };
    if !args.with.is_empty() && !args.live {
        old = iptables::rendered(&node.table)?;
        add(args, &mut loaded)?;
        node = NodeWorld::new(choice, &loaded)?;
    }
    let now = iptables::changes(&old, &iptables::rendered(&node.table)?);
    loaded.notices.append(&mut node.notices);
    let rule_changes = RuleChanges { now, later: Vec::new() };
    match args.output.format {
        Format::Table => {
            let source = choice.source().unwrap_or_default();
            print_text(&(source + &rule_changes.text() + &notices_text(&loaded.notices)))?;
        }
        format => {
            let mut value = rule_changes.value();
            value["notices"] = notices_value(&loaded.notices);
            print_value(&value, format)?;
        }
    }
    Ok(!loaded.unreadable)
}

/// Adds the objects of `--with`.
fn add(args: &PlanNode, loaded: &mut LoadedObjects) -> Result<()> {
    let input = InputArgs {
        files: args.with.clone(),
        recursive: args.input.recursive,
        namespace: args.input.namespace.clone(),
        ..InputArgs::default()
    };
    loaded.add(&input)
}

/// The rules in the kernel of this machine.
fn live_rules() -> Result<Ruleset> {
    let mut kernel = NetlinkSocket::open().context("reading the rules of the kernel requires NET_ADMIN")?;
    let wanted = [table_id(Family::V4), table_id(Family::V6)];
    let (program, problems) = read(&mut kernel, &wanted).context("reading the rules of the kernel")?;
    if let Some(problem) = problems.first() {
        bail!("unsupported object in the kernel: {problem}");
    }
    Ok(program)
}

struct RuleChanges {
    now: Vec<DiffLine>,
    later: Vec<DiffLine>,
}

impl RuleChanges {
    fn new(difference: &RulesetDiff, old: &Ruleset, new: &Ruleset) -> Self {
        let programs = [new, old];
        Self { now: lines(&difference.now, &programs), later: lines(&difference.later, &programs) }
    }

    fn value(&self) -> Value {
        let line =
            |l: &DiffLine| json!({"does": l.does, "table": l.table, "what": l.what, "detail": l.detail});
        let list = |lines: &[DiffLine]| lines.iter().map(line).collect::<Value>();
        json!({"now": list(&self.now), "later": list(&self.later)})
    }

    fn text(&self) -> String {
        if self.now.is_empty() && self.later.is_empty() {
            return "No changes.\n".to_owned();
        }
        let mut text = format!("{} in one transaction:\n", count(self.now.len(), "change"));
        self.now.iter().for_each(|line| text += &line_text(line));
        if !self.later.is_empty() {
            text += "\nDeleted afterwards:\n";
            self.later.iter().for_each(|line| text += &line_text(line));
        }
        text
    }
}

fn line_text(line: &DiffLine) -> String {
    let sign = match line.does {
        "add" => "+",
        "delete" => "-",
        _ => "~",
    };
    let colon = if line.detail.is_empty() { "" } else { ": " };
    format!("  {sign} {} {}{colon}{}\n", line.table, line.what, line.detail)
}
