//! The rules that kube-proxy wrote for each scenario of vectors/packetflow-iptables.json, evaluated.
//!
//! The verdicts in that file are kube-proxy's, so that they judge the evaluator, and the recordings are what
//! iptables-save prints, so that they judge the parser.

use std::net::{IpAddr, SocketAddr};

use dataplane::backend::TracedVerdict;
use dataplane::iptables::ruleset::{FlushMode, IptablesRuleset, trace};
use model::forward::FirstPacket;
use model::{Family, Protocol};
use serde_json::Value;

struct Recording {
    id: String,
    text: String,
    family: Family,
    scenario: Value,
}

fn recordings() -> Vec<Recording> {
    let root = env!("CARGO_MANIFEST_DIR");
    let vectors = std::fs::read_to_string(format!("{root}/../../vectors/packetflow-iptables.json"))
        .expect("the vectors are in the repository");
    let file: Value = serde_json::from_str(&vectors).expect("the vectors are JSON");
    let scenarios = file["scenarios"].as_array().expect("scenarios");
    let recording = |scenario: &Value| {
        let id = scenario["id"].as_str().expect("an id").to_owned();
        let path = format!("{root}/tests/kube_proxy/{id}.save");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let is_v6 = scenario["config"]["ipFamily"] == "IPv6";
        let family = if is_v6 { Family::V6 } else { Family::V4 };
        Recording { id, text, family, scenario: scenario.clone() }
    };
    scenarios.iter().map(recording).collect()
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Debug>>(value: &Value) -> Vec<T> {
    let list = value.as_array().into_iter().flatten();
    list.map(|text| text.as_str().expect("a string").parse().expect("well formed")).collect()
}

/// Tables in the order in which this program prints them; libxt_nfacct prints two spaces.
fn normalised(text: &str) -> String {
    let tables: Vec<&str> = text.split_inclusive("COMMIT\n").collect();
    let in_order = ["*raw\n", "*mangle\n", "*nat\n", "*filter\n"]
        .iter()
        .filter_map(|name| tables.iter().find(|table| table.starts_with(name)));
    in_order.copied().collect::<String>().replace("--nfacct-name  ", "--nfacct-name ")
}

#[test]
fn recorded_rules_print_as_iptables_save_printed_them() {
    for Recording { id, text, family, .. } in recordings() {
        let ruleset = IptablesRuleset::parse(family, &text).unwrap_or_else(|error| panic!("{id}: {error}"));
        assert_eq!(ruleset.to_save(false), normalised(&text), "{id}");
        let mut restored = IptablesRuleset::new(family);
        restored.restore(&text, FlushMode::Keep).unwrap_or_else(|error| panic!("{id}: {error}"));
        assert_eq!(restored, ruleset, "{id}");
    }
}

#[test]
fn recorded_rules_give_kube_proxys_verdicts() {
    let mut flows = 0;
    for Recording { id, text, family, scenario } in recordings() {
        let ruleset = IptablesRuleset::parse(family, &text).expect("the other test parses it");
        let addresses: Vec<IpAddr> = parsed(&scenario["config"]["nodeLocalAddresses"]);
        for flow in scenario["flows"].as_array().expect("flows") {
            let case = format!("{id} flow {}: {}", flow["n"], flow["what"]);
            let (given, expect) = (&flow["packet"], &flow["expect"]);
            let address =
                |field: &str| given[field].as_str().expect("an address").parse().expect("an address");
            let port = u16::try_from(given["port"].as_u64().expect("a port")).expect("a port");
            let packet = FirstPacket {
                src: SocketAddr::new(address("src"), 40_000),
                dst: SocketAddr::new(address("dst"), port),
                protocol: Protocol::Tcp,
                iif: None,
            };
            let traced =
                trace(&ruleset, &packet, &addresses).unwrap_or_else(|error| panic!("{case}: {error}"));
            let verdict = match traced.verdict {
                TracedVerdict::Dnat => "DNAT",
                TracedVerdict::Reject => "REJECT",
                TracedVerdict::Drop => "DROP",
                TracedVerdict::Accept => "ACCEPT",
                TracedVerdict::Untouched => "UNTOUCHED",
            };
            assert_eq!(verdict, expect["verdict"], "{case}: {traced:?}");
            let mut endpoints: Vec<SocketAddr> = parsed(&expect["endpoints"]);
            endpoints.sort();
            let share = 1.0 / endpoints.len() as f64;
            assert_eq!(traced.endpoints.iter().map(|(to, _)| *to).collect::<Vec<_>>(), endpoints, "{case}");
            assert!(traced.endpoints.iter().all(|(_, of)| (of - share).abs() < 1e-9), "{case}: {traced:?}");
            assert_eq!(Some(traced.masquerade), expect["masquerade"].as_bool(), "{case}: {traced:?}");
            flows += 1;
        }
    }
    assert!(flows >= 79, "{flows}");
}
