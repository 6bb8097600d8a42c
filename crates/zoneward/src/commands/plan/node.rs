//! `zoneward plan node`: the changes of a node's rules when objects change, in mode ipvs also those of virtual servers, in
//! mode kernelspace those of HNS.
//!
//! With `--live`, summarizes by Service which rules in the kernel differ from the desired ones.

mod iptables;
mod summary;

use anyhow::{Context, Result, bail};
use dataplane::ipvs::{IpvsListing, IpvsSettings, IpvsSocket, nft_table};
use dataplane::kernelspace::{HcnListing, HcnObjects};
use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::apply::read;
use dataplane::nftables::diff::{DiffLine, RulesetDiff, diff, lines};
use dataplane::nftables::ir::Ruleset;
use dataplane::nftables::render::{Renderer, SetSizes, render, table_id};
use model::forward::ForwardingMode;
use model::{Family, ForwardingTable};
use serde_json::{Value, json};

use crate::cli::{Format, InputArgs, PlanNode};
use cluster::input::LoadedObjects;
use node::{NodeChoice, NodeWorld};
use output::{count, notices_text, notices_value, print_text, print_value};

pub(crate) fn run(args: &PlanNode) -> Result<bool> {
    let choice = NodeChoice::new(&args.node, args.live)?;
    let mut loaded = LoadedObjects::read(&choice.input(&args.input))?;
    choice.apply_view(&mut loaded);
    let mut node = NodeWorld::new(&choice, &loaded)?;
    if node.table.node.mode == ForwardingMode::Iptables {
        return run_iptables(args, &choice, loaded, node);
    }
    if node.kernelspace.is_some() {
        return run_kernelspace(args, &choice, loaded, node);
    }
    let before = Planned::new(&choice, &node)?;
    let (renderer, program) = Renderer::start(&before.rules);
    let mut ipvs = before.ipvs.as_ref().map(|new| IpvsListing::default().changes(new));
    let (old, new) = if args.live {
        let live = live_rules()?;
        if let Some(new) = &before.ipvs {
            ipvs = Some(IpvsListing::read(&mut IpvsSocket::open()?)?.changes(new));
        }
        // The sets of a running node keep their sizes while everything fits.
        let sizes = SetSizes::of_ruleset(&live);
        let fits = renderer.fits(&sizes);
        (live, if fits { render(&before.rules, &sizes) } else { program })
    } else if args.with.is_empty() {
        (Ruleset::default(), program)
    } else {
        add(args, &choice, &mut loaded)?;
        node = NodeWorld::new(&choice, &loaded)?;
        let planned = Planned::new(&choice, &node)?;
        let after = Renderer::start(&planned.rules);
        ipvs = before.ipvs.as_ref().zip(planned.ipvs).map(|(old, new)| old.changes(&new));
        // As on a running node, sets keep their sizes while everything fits.
        let fits = after.0.fits(renderer.sizes());
        (program, if fits { render(&planned.rules, renderer.sizes()) } else { after.1 })
    };
    loaded.notices.append(&mut node.notices);
    let difference = diff(&old, &new);
    let rule_changes = RuleChanges { ipvs, ..RuleChanges::new(&difference, &old, &new) };
    let rows = if args.live { summary::rows(rule_changes.all(), [&old, &new]) } else { Vec::new() };
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
        add(args, choice, &mut loaded)?;
        node = NodeWorld::new(choice, &loaded)?;
    }
    let now = iptables::changes(&old, &iptables::rendered(&node.table)?);
    loaded.notices.append(&mut node.notices);
    let rule_changes = RuleChanges { now, later: Vec::new(), ipvs: None };
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

/// Mode kernelspace: objects of HNS, one by one. JSON has the documents, too.
fn run_kernelspace(
    args: &PlanNode,
    choice: &NodeChoice,
    mut loaded: LoadedObjects,
    mut node: NodeWorld,
) -> Result<bool> {
    let rendered = |node: &NodeWorld| {
        node.kernelspace.as_ref().map(|preview| preview.render(&node.table)).unwrap_or_default()
    };
    let mut old = HcnListing::default();
    if !args.with.is_empty() {
        old = HcnListing::of(&rendered(&node));
        add(args, choice, &mut loaded)?;
        node = NodeWorld::new(choice, &loaded)?;
    }
    let new = rendered(&node);
    let changes = old.changes(&HcnListing::of(&new));
    loaded.notices.append(&mut node.notices);
    match args.output.format {
        Format::Table => {
            let mut text = match changes.len() {
                0 => "No changes.\n".to_owned(),
                number => format!("{}, one by one:\n", count(number, "change")),
            };
            changes.iter().for_each(|line| text += &line_text(line));
            print_text(&(text + &notices_text(&loaded.notices)))?;
        }
        format => {
            let mut value = RuleChanges { now: changes, later: Vec::new(), ipvs: None }.value();
            value["hcn"] = hcn_value(&new);
            value["notices"] = notices_value(&loaded.notices);
            print_value(&value, format)?;
        }
    }
    Ok(!loaded.unreadable)
}

/// The documents that HNS would get.
fn hcn_value(rendered: &HcnObjects) -> Value {
    let endpoints: Vec<_> = rendered.endpoints.values().collect();
    let load_balancers: Vec<_> = rendered.load_balancers.values().map(|wanted| &wanted.object).collect();
    json!({"endpoints": endpoints, "loadBalancers": load_balancers})
}

/// What a node should hold.
struct Planned {
    /// The table that the rules are rendered from.
    rules: ForwardingTable,
    /// In mode ipvs.
    ipvs: Option<IpvsListing>,
}

impl Planned {
    fn new(choice: &NodeChoice, node: &NodeWorld) -> Result<Self> {
        if node.table.node.mode != ForwardingMode::Ipvs {
            return Ok(Self { rules: node.table.clone(), ipvs: None });
        }
        let scheduler = choice.ipvs_scheduler().parse().context("ipvs.scheduler")?;
        let settings =
            IpvsSettings { scheduler, node: choice.name.as_str().into(), ..IpvsSettings::default() };
        let ipvs = Some(IpvsListing::of(&node.table, &settings));
        Ok(Self { rules: nft_table(&node.table), ipvs })
    }
}

/// Adds the objects of `--with`.
fn add(args: &PlanNode, choice: &NodeChoice, loaded: &mut LoadedObjects) -> Result<()> {
    let input = InputArgs {
        files: args.with.clone(),
        recursive: args.input.recursive,
        namespace: args.input.namespace.clone(),
        ..InputArgs::default()
    };
    loaded.add(&input)?;
    choice.apply_view(loaded);
    Ok(())
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
    /// In mode ipvs.
    ipvs: Option<Vec<DiffLine>>,
}

impl RuleChanges {
    fn new(difference: &RulesetDiff, old: &Ruleset, new: &Ruleset) -> Self {
        let programs = [new, old];
        Self {
            now: lines(&difference.now, &programs),
            later: lines(&difference.later, &programs),
            ipvs: None,
        }
    }

    fn value(&self) -> Value {
        let line =
            |l: &DiffLine| json!({"does": l.does, "table": l.table, "what": l.what, "detail": l.detail});
        let list = |lines: &[DiffLine]| lines.iter().map(line).collect::<Value>();
        let mut value = json!({"now": list(&self.now), "later": list(&self.later)});
        if let Some(ipvs) = &self.ipvs {
            value["ipvs"] = list(ipvs);
        }
        value
    }

    fn all(&self) -> impl Iterator<Item = &DiffLine> {
        self.now.iter().chain(&self.later).chain(self.ipvs.iter().flatten())
    }

    fn text(&self) -> String {
        if self.all().next().is_none() {
            return "No changes.\n".to_owned();
        }
        let mut text = format!("{} in one transaction:\n", count(self.now.len(), "change"));
        self.now.iter().for_each(|line| text += &line_text(line));
        if let Some(ipvs) = self.ipvs.as_ref().filter(|ipvs| !ipvs.is_empty()) {
            text += "\nVirtual servers and routes, one by one:\n";
            ipvs.iter().for_each(|line| text += &line_text(line));
        }
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
