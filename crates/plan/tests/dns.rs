//! The cases of vectors/dns.json: one question.

use std::net::IpAddr;

use model::Snapshot;
use plan::FeatureGates;
use plan::dns::{DnsDecision, DnsName, DnsQuestion, DnsRecord, DnsView, ReverseIndex, answer};
use plan::select::NodeView;
use serde_json::Value;

fn file() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/dns.json");
    let text = std::fs::read_to_string(path).expect("the vectors are in the repository");
    serde_json::from_str(&text).expect("the vectors are JSON")
}

fn snapshot(objects: &Value) -> Snapshot {
    fixtures::snapshot(objects.as_array().expect("objects"))
}

fn texts(records: &[DnsRecord]) -> Vec<String> {
    let mut texts: Vec<String> = records.iter().map(ToString::to_string).collect();
    texts.sort();
    texts
}

fn expected(list: &Value) -> Vec<String> {
    let mut texts: Vec<String> = serde_json::from_value(list.clone()).expect("a list of records");
    texts.sort();
    texts
}

#[test]
fn every_question_has_its_answer() {
    let file = file();
    let snapshot = snapshot(&file["objects"]);
    let reverse = ReverseIndex::of(&snapshot);
    let domain = DnsName::parse(file["domain"].as_str().expect("a domain")).expect("a name");
    let servers: Vec<IpAddr> = serde_json::from_value(file["servers"].clone()).expect("addresses");
    let serial = u32::try_from(file["serial"].as_u64().expect("a number")).expect("32 bits");
    let view = DnsView {
        snapshot: &snapshot,
        reverse: &reverse,
        domain: &domain,
        node: NodeView { name: "n", zone: None, gates: FeatureGates::ALL },
        servers: &servers,
        serial,
        synced: true,
    };
    let vectors = file["vectors"].as_array().expect("a list of vectors");
    for vector in vectors {
        let (id, text) = (&vector["id"], |key: &str| vector[key].as_str().expect("text"));
        let name = DnsName::parse(text("name")).expect("a name");
        let question = DnsQuestion { name, kind: text("type").parse().expect("a type") };
        let decision = answer(&question, &view);
        let DnsDecision::Answer(answer) = decision else {
            assert_eq!(vector["forward"], true, "{id}: forwarded");
            continue;
        };
        assert_eq!(vector["forward"], Value::Null, "{id}: {answer:?}");
        assert_eq!(answer.rcode.as_str(), text("rcode"), "{id}: {answer:?}");
        assert_eq!(texts(&answer.answers), expected(&vector["answers"]), "{id}: answers");
        assert_eq!(texts(&answer.authority), expected(&vector["authority"]), "{id}: authority");
        assert_eq!(texts(&answer.additional), expected(&vector["additional"]), "{id}: additional");
        let chase = answer.chase.map(|name| name.to_string());
        assert_eq!(chase.as_deref(), vector["chase"].as_str(), "{id}: chase");
    }
    assert!(vectors.len() >= 80, "{}", vectors.len());
}
