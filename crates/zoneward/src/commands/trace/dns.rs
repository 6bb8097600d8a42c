//! `zoneward trace dns`: how DNS answers a name, and why.

use anyhow::Result;
use plan::FeatureGates;
use plan::dns::{DnsAnswer, DnsDecision, DnsQuestion, DnsRecord, DnsView, ReverseIndex, answer};
use plan::select::NodeView;
use serde_json::{Value, json};

use crate::cli::{Format, TraceDns};
use cluster::input::LoadedObjects;
use output::{notices_text, print_text, print_value};

pub(crate) fn run(args: &TraceDns) -> Result<bool> {
    let loaded = LoadedObjects::read(&args.input.for_node())?;
    let node = match &args.from_node {
        Some(name) => loaded.node(name)?,
        None => None,
    };
    let zone = args.zone.as_deref().or(node.and_then(|node| node.zone.as_deref()));
    let view = DnsView {
        snapshot: &loaded.snapshot,
        reverse: &ReverseIndex::of(&loaded.snapshot),
        domain: &args.cluster_domain,
        node: NodeView {
            name: args.from_node.as_deref().unwrap_or_default(),
            zone,
            gates: args.feature_gates.unwrap_or(FeatureGates::ALL),
        },
        servers: &[],
        serial: 1,
        synced: true,
    };
    let question = DnsQuestion { name: args.name.clone(), kind: args.kind };
    let decision = answer(&question, &view);
    match args.output.format {
        Format::Table => print_text(&(text(&question, &decision, &view) + &notices_text(&loaded.notices)))?,
        format => {
            eprint!("{}", notices_text(&loaded.notices).trim_start());
            print_value(&value(&question, &decision, &view), format)?;
        }
    }
    Ok(!loaded.unreadable)
}

/// Rules and what they did.
fn why(decision: &DnsDecision, view: &DnsView<'_>) -> Vec<(&'static str, String)> {
    match decision {
        DnsDecision::Forward => {
            let detail = format!("the name is not below {} and belongs to no Service", view.domain);
            vec![("forwarded", detail)]
        }
        DnsDecision::Answer(answer) => {
            let reasons = answer.why.iter().flat_map(|reason| reason.explain(view));
            let mut why: Vec<(&str, String)> = reasons.map(|reason| (reason.rule, reason.detail)).collect();
            let chased = |name| format!("the addresses of {name} are asked for at the nameservers");
            why.extend(answer.chase.as_ref().map(|name| ("forwarded", chased(name))));
            why
        }
    }
}

fn text(question: &DnsQuestion, decision: &DnsDecision, view: &DnsView<'_>) -> String {
    let zone = view.node.zone.map_or("without a zone".to_owned(), |zone| format!("in {zone}"));
    let mut text = format!("{} {} asked {zone}\n", question.name, question.kind.as_str());
    if let DnsDecision::Answer(answer) = decision {
        text += &format!("  {:<10} {}\n", "rcode", answer.rcode.as_str());
        for (section, records) in sections(answer) {
            for record in records {
                text += &format!("  {section:<10} {record}\n");
            }
        }
    }
    for (rule, detail) in why(decision, view) {
        text += &format!("  {:<10} {rule}: {detail}\n", "because");
    }
    text
}

fn sections(answer: &DnsAnswer) -> [(&'static str, &[DnsRecord]); 3] {
    [("answer", &answer.answers), ("authority", &answer.authority), ("additional", &answer.additional)]
}

fn value(question: &DnsQuestion, decision: &DnsDecision, view: &DnsView<'_>) -> Value {
    let why: Vec<Value> = why(decision, view)
        .into_iter()
        .map(|(rule, detail)| json!({"rule": rule, "detail": detail}))
        .collect();
    let question = json!({"name": question.name.to_string(), "type": question.kind.as_str()});
    let DnsDecision::Answer(answer) = decision else {
        return json!({"question": question, "forwarded": true, "why": why});
    };
    let records = |records: &[DnsRecord]| -> Vec<Value> { records.iter().map(record).collect() };
    json!({
        "question": question,
        "forwarded": false,
        "rcode": answer.rcode.as_str(),
        "answer": records(&answer.answers),
        "authority": records(&answer.authority),
        "additional": records(&answer.additional),
        "chase": answer.chase.as_ref().map(ToString::to_string),
        "why": why,
    })
}

fn record(record: &DnsRecord) -> Value {
    json!({
        "name": record.name.to_string(),
        "ttl": record.ttl,
        "type": record.data.kind().as_str(),
        "data": record.data.to_string(),
    })
}
