//! `zoneward plan slices`: the EndpointSlices that the controller would write.

use anyhow::Result;
use model::{Endpoint, ObjectKey, Service, ServiceKey, Slice, SliceContent, annotation, write};
use plan::hints::{self, Condition, HintOutcome, Hysteresis, NodeAcks};
use plan::planner::Planner;
use plan::slices::{self, SlicePlan, TriggerTimes};
use serde_json::{Value, json};

use crate::cli::{Format, PlanSlices};
use crate::commands::planning;
use cluster::input::LoadedObjects;
use output::{count, notices_text, notices_value, print_text, print_value, render, table};

pub(crate) fn run(args: &PlanSlices) -> Result<bool> {
    let mut loaded = LoadedObjects::read(&args.input)?;
    let base = planning::base(&args.input, &mut loaded.notices);
    let planner = Planner::new(&loaded.snapshot, args.making.planning(args.coexist, base));
    let mut report = SlicePlanReport::default();
    let mut notices = Vec::new();
    let services = loaded.snapshot.services();
    for (service, slices) in services.filter(|(service, _)| is_wanted(service, args)) {
        let memory = |family| Hysteresis::from_slices(family, slices);
        let trigger = TriggerTimes::default();
        let (plan, outcomes) = planner.plan(&loaded.snapshot, service, slices, &trigger, memory);
        notices.extend(plan.notices.iter().cloned());
        notices.extend(outcomes.iter().flat_map(|outcome| outcome.notices.iter().cloned()));
        report.add(service, &plan, &loaded, args.all);
        report.add_conditions(service, &outcomes);
    }
    let orphaned = loaded.snapshot.orphaned_slices().filter(|(key, _)| is_in_namespace(&key.namespace, args));
    for (service, stored) in orphaned {
        for slice in slices::orphans(stored, planner.config.slices.mode) {
            report.add_orphan(service, slice);
        }
    }
    loaded.notices.append(&mut notices);
    match args.output.format {
        Format::Table => print_text(&report.text(&loaded, args.all))?,
        format => print_value(&report.value(&loaded, args.all), format)?,
    }
    Ok(!loaded.unreadable)
}

fn is_wanted(service: &Service, args: &PlanSlices) -> bool {
    is_in_namespace(&service.key.namespace, args)
}

fn is_in_namespace(namespace: &str, args: &PlanSlices) -> bool {
    args.input.namespace.as_ref().is_none_or(|n| namespace == n.as_str())
}

/// The plans of all Services, as JSON objects and table rows.
#[derive(Default)]
struct SlicePlanReport {
    creates: Vec<Value>,
    updates: Vec<Value>,
    deletes: Vec<Value>,
    unchanged: Vec<Value>,
    conditions: Vec<Value>,
    rows: Vec<[String; 6]>,
}

impl SlicePlanReport {
    fn add(&mut self, service: &Service, plan: &SlicePlan, loaded: &LoadedObjects, all: bool) {
        for content in &plan.creates {
            self.creates.push(write::new_slice(&service.key, service.uid.as_ref(), content));
            self.row(&service.key, "create", "(new)", content, describe_new(content));
        }
        for (key, content) in &plan.updates {
            let mut stored = stored(loaded, key);
            write::update_slice(&mut stored, content);
            self.updates.push(stored);
            let before = stored_content(loaded, service, key);
            let why = before.map(|before| describe_change(before, content)).unwrap_or_default();
            self.row(&service.key, "update", &key.name, content, why);
        }
        for key in &plan.deletes {
            self.deletes.push(json!({"namespace": key.namespace.as_str(), "name": key.name.as_str()}));
            if let Some(content) = stored_content(loaded, service, key) {
                self.row(&service.key, "delete", &key.name, content, describe_delete(content));
            }
        }
        for key in &plan.unchanged {
            self.unchanged.push(stored(loaded, key));
            if let Some(content) = stored_content(loaded, service, key).filter(|_| all) {
                self.row(&service.key, "keep", &key.name, content, "unchanged".to_owned());
            }
        }
    }

    /// The conditions of KEP-4444, for Services with a traffic distribution.
    fn add_conditions(&mut self, service: &Service, outcomes: &[HintOutcome]) {
        if !outcomes.iter().any(|outcome| outcome.requested) {
            return;
        }
        // Whether nodes have programmed them is unknown offline.
        let conditions = hints::conditions(outcomes, &NodeAcks::default());
        let one = |c: &Condition| json!({"type": c.kind, "status": c.status.as_str(), "reason": c.reason, "message": c.message});
        let conditions: Vec<Value> = conditions.iter().map(one).collect();
        let key = &service.key;
        self.conditions.push(
            json!({"namespace": key.namespace.as_str(), "name": key.name.as_str(), "conditions": conditions}),
        );
    }

    /// A slice without a Service.
    fn add_orphan(&mut self, service: &ServiceKey, slice: &Slice) {
        let key = &slice.key;
        self.deletes.push(json!({"namespace": key.namespace.as_str(), "name": key.name.as_str()}));
        let why = "its Service does not exist".to_owned();
        self.row(service, "delete", &key.name, &slice.content, why);
    }

    fn row(&mut self, service: &ServiceKey, action: &str, slice: &str, content: &SliceContent, why: String) {
        let ready = content.endpoints.iter().filter(|e| e.conditions.is_ready()).count();
        self.rows.push([
            service.to_string(),
            action.to_owned(),
            slice.to_owned(),
            content.address_type.as_str().to_owned(),
            format!("{ready}/{}", content.endpoints.len()),
            why,
        ]);
    }

    fn value(self, loaded: &LoadedObjects, all: bool) -> Value {
        let mut value = json!({
            "creates": self.creates,
            "updates": self.updates,
            "deletes": self.deletes,
            "conditions": self.conditions,
            "notices": notices_value(&loaded.notices),
        });
        if all {
            value["unchanged"] = self.unchanged.into();
        }
        value
    }

    fn text(&self, loaded: &LoadedObjects, all: bool) -> String {
        let mut text = String::new();
        if !self.rows.is_empty() {
            let mut table = table(&["SERVICE", "ACTION", "SLICE", "TYPE", "READY", "WHY"]);
            table.add_rows(&self.rows);
            text = render(&table) + "\n";
        }
        text += &format!(
            "{} to create, {} to update, {} to delete, {} unchanged.{}\n",
            count(self.creates.len(), "slice"),
            self.updates.len(),
            self.deletes.len(),
            self.unchanged.len(),
            if all || self.unchanged.is_empty() { "" } else { " (Use --all to show them.)" },
        );
        text + &notices_text(&loaded.notices)
    }
}

fn stored(loaded: &LoadedObjects, key: &ObjectKey) -> Value {
    loaded.stored_slices.get(key).cloned().unwrap_or_default()
}

fn stored_content<'a>(
    loaded: &'a LoadedObjects,
    service: &Service,
    key: &ObjectKey,
) -> Option<&'a SliceContent> {
    let slices = loaded.snapshot.slices(&service.key);
    slices.iter().find(|slice| slice.key == *key).map(|slice| &slice.content)
}

fn ports(content: &SliceContent) -> String {
    if content.ports.is_empty() {
        return "no ports".to_owned();
    }
    let port = |p: &model::SlicePort| {
        let number = p.port.map_or("all".to_owned(), |n| n.to_string());
        match p.name.as_deref().filter(|n| !n.is_empty()) {
            Some(name) => format!("{name}={number}/{}", p.protocol),
            None => format!("{number}/{}", p.protocol),
        }
    };
    content.ports.iter().map(port).collect::<Vec<_>>().join(" ")
}

fn describe_new(content: &SliceContent) -> String {
    if content.endpoints.is_empty() {
        return "no pods selected: placeholder slice".to_owned();
    }
    format!("{} on {} that fit in no slice", count(content.endpoints.len(), "endpoint"), ports(content))
}

fn describe_delete(content: &SliceContent) -> String {
    match content.endpoints.len() {
        0 => "empty and unused".to_owned(),
        _ => "none of its endpoints match its ports and owner".to_owned(),
    }
}

/// The differences between an existing slice and the planned one.
fn describe_change(before: &SliceContent, after: &SliceContent) -> String {
    let same = |a: &&Endpoint, b: &Endpoint| a.addresses == b.addresses && a.target() == b.target();
    let old = |e: &Endpoint| before.endpoints.iter().find(|b| same(b, e));
    let added = after.endpoints.iter().filter(|e| old(e).is_none()).count();
    let gone = before.endpoints.iter().filter(|e| !after.endpoints.iter().any(|a| same(&a, e))).count();
    let differs = |a: &Endpoint, b: &Endpoint| {
        a.conditions != b.conditions || a.node != b.node || a.zone != b.zone || a.hostname() != b.hostname()
    };
    let pairs = || after.endpoints.iter().filter_map(|e| Some((old(e)?, e)));
    let changed = pairs().filter(|(b, a)| differs(b, a)).count();
    let hinted = pairs().filter(|(b, a)| b.hints != a.hints).count();
    let mut parts = Vec::new();
    for (number, what) in
        [(added, "added"), (gone, "removed"), (changed, "changed"), (hinted, "with changed hints")]
    {
        if number > 0 {
            parts.push(format!("{} {what}", count(number, "endpoint")));
        }
    }
    if before.ports != after.ports {
        parts.push(format!("ports changed to {}", ports(after)));
    }
    if before.labels != after.labels {
        parts.push("labels synced with the Service".to_owned());
    }
    let mechanism = |content: &SliceContent| content.annotation(annotation::MECHANISM).cloned();
    if mechanism(before) != mechanism(after) {
        let name = mechanism(after).map_or("none".to_owned(), |m| m.to_string());
        parts.push(format!("mechanism changed to {name}"));
    }
    parts.join(", ")
}
