//! `zoneward plan node`: the nftables changes of a node when objects change.
//!
//! With `--live` they are summed up by Service: an operator asks whether the kernel holds what it should, and for which
//! Services not.

mod summary;

use anyhow::{Context, Result, bail};
use dataplane::nftables::apply::read;
use dataplane::nftables::diff::{Difference, Line, diff, lines};
use dataplane::nftables::ir::Program;
use dataplane::nftables::netlink::Socket;
use dataplane::nftables::render::{Renderer, Sizes, render, table_id};
use model::Family;
use serde_json::{Value, json};

use crate::cli::{Format, InputArgs, PlanNode};
use crate::input::LoadedObjects;
use crate::node::{NodeChoice, NodeWorld};
use crate::output::{count, notices_text, notices_value, print_text, print_value};

/// Runs the command.
pub fn run(args: &PlanNode) -> Result<bool> {
    let choice = NodeChoice::new(&args.node, args.live)?;
    let mut loaded = LoadedObjects::read(&choice.input(&args.input))?;
    let mut node = NodeWorld::new(&choice, &loaded)?;
    let (renderer, program) = Renderer::start(&node.table);
    let (old, new) = if args.live {
        let held = held()?;
        // Sets of a node that runs keep their sizes as long as everything fits.
        let sizes = Sizes::of_program(&held);
        let fits = renderer.fits(&sizes);
        (held, if fits { render(&node.table, &sizes) } else { program })
    } else if args.with.is_empty() {
        (Program::default(), program)
    } else {
        add(args, &mut loaded)?;
        node = NodeWorld::new(&choice, &loaded)?;
        let after = Renderer::start(&node.table);
        // Sets keep their sizes as long as everything fits, as they would on a node that runs.
        let fits = after.0.fits(renderer.sizes());
        (program, if fits { render(&node.table, renderer.sizes()) } else { after.1 })
    };
    loaded.notices.append(&mut node.notices);
    let difference = diff(&old, &new);
    let answer = Answer::new(&difference, &old, &new);
    let rows = if args.live { summary::rows(&answer.now, &answer.later, [&old, &new]) } else { Vec::new() };
    match args.output.format {
        Format::Table => {
            let changes = if args.live && !args.full { summary::text(&rows) } else { answer.text() };
            let source = choice.source().unwrap_or_default();
            print_text(&(source + &changes + &notices_text(&loaded.notices)))?;
        }
        format => {
            let mut value = answer.value();
            if args.live {
                value["summary"] = rows.iter().map(summary::Row::value).collect();
            }
            value["notices"] = notices_value(&loaded.notices);
            print_value(&value, format)?;
        }
    }
    Ok(!loaded.unreadable)
}

/// Puts the objects of `--with` into the loaded.
fn add(args: &PlanNode, loaded: &mut LoadedObjects) -> Result<()> {
    let input = InputArgs {
        files: args.with.clone(),
        recursive: args.input.recursive,
        namespace: args.input.namespace.clone(),
        ..InputArgs::default()
    };
    loaded.add(&input)
}

/// The rules that this machine's kernel holds.
fn held() -> Result<Program> {
    let mut kernel = Socket::open().context("reading the kernel's rules needs NET_ADMIN")?;
    let wanted = [table_id(Family::V4), table_id(Family::V6)];
    let (program, problems) = read(&mut kernel, &wanted).context("reading the kernel's rules")?;
    if let Some(problem) = problems.first() {
        bail!("the kernel holds something that is not understood: {problem}");
    }
    Ok(program)
}

struct Answer {
    now: Vec<Line>,
    later: Vec<Line>,
}

impl Answer {
    fn new(difference: &Difference, old: &Program, new: &Program) -> Self {
        let programs = [new, old];
        Self { now: lines(&difference.now, &programs), later: lines(&difference.later, &programs) }
    }

    fn value(&self) -> Value {
        let line = |l: &Line| json!({"does": l.does, "table": l.table, "what": l.what, "detail": l.detail});
        let list = |lines: &[Line]| lines.iter().map(line).collect::<Value>();
        json!({"now": list(&self.now), "later": list(&self.later)})
    }

    fn text(&self) -> String {
        if self.now.is_empty() && self.later.is_empty() {
            return "Nothing changes.\n".to_owned();
        }
        let mut text = format!("{} in one transaction:\n", count(self.now.len(), "change"));
        self.now.iter().for_each(|line| text += &line_text(line));
        if !self.later.is_empty() {
            text += "\nCleared away afterwards:\n";
            self.later.iter().for_each(|line| text += &line_text(line));
        }
        text
    }
}

fn line_text(line: &Line) -> String {
    let sign = match line.does {
        "add" => "+",
        "delete" => "-",
        _ => "~",
    };
    let colon = if line.detail.is_empty() { "" } else { ": " };
    format!("  {sign} {} {}{colon}{}\n", line.table, line.what, line.detail)
}
