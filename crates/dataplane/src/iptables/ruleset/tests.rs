//! Rules as kube-proxy writes them, changed as iptables-restore would, and traced.

use std::net::{IpAddr, SocketAddr};

use model::forward::FirstPacket;
use model::{Family, Protocol};

use super::{
    ConnectionState, FlushMode, IpSets, IptablesNode, IptablesRuleset, IpvsServers, evaluate, evaluate_state,
    trace,
};
use crate::backend::TracedVerdict;

const NODE: &str = "192.168.0.2";

fn packet(src: &str, dst: &str) -> FirstPacket {
    let socket = |text: &str| text.parse::<SocketAddr>().unwrap();
    FirstPacket { src: socket(src), dst: socket(dst), protocol: Protocol::Tcp, iif: None }
}

fn node() -> IptablesNode {
    IptablesNode::new(&[NODE.parse::<IpAddr>().unwrap()])
}

fn restored(text: &str) -> IptablesRuleset {
    let mut ruleset = IptablesRuleset::new(Family::V4);
    ruleset.restore(text, FlushMode::Keep).unwrap();
    ruleset
}

/// What kube-proxy writes for a Service with two endpoints and session affinity.
const KUBE_PROXY: &str = r#"
*filter
:KUBE-FORWARD - [0:0]
-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SVC-A - [0:0]
:KUBE-EXT-A - [0:0]
:KUBE-SEP-1 - [0:0]
:KUBE-SEP-2 - [0:0]
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-SERVICES -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp -p tcp -d 172.30.0.41 --dport 80 -j KUBE-SVC-A
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -m comment --comment ns1/svc1:p80 -m tcp -p tcp --dport 3001 -j KUBE-EXT-A
-A KUBE-EXT-A -m comment --comment "masquerade traffic for ns1/svc1:p80 external destinations" -j KUBE-MARK-MASQ
-A KUBE-EXT-A -j KUBE-SVC-A
-A KUBE-SVC-A -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp -p tcp -d 172.30.0.41 --dport 80 ! -s 10.0.0.0/8 -j KUBE-MARK-MASQ
-A KUBE-SVC-A -m comment --comment "ns1/svc1:p80 -> 10.180.0.1:80" -m recent --name KUBE-SEP-1 --rcheck --seconds 10800 --reap -j KUBE-SEP-1
-A KUBE-SVC-A -m comment --comment "ns1/svc1:p80 -> 10.180.0.2:80" -m recent --name KUBE-SEP-2 --rcheck --seconds 10800 --reap -j KUBE-SEP-2
-A KUBE-SVC-A -m comment --comment "ns1/svc1:p80 -> 10.180.0.1:80" -m statistic --mode random --probability 0.5000000000 -j KUBE-SEP-1
-A KUBE-SVC-A -m comment --comment "ns1/svc1:p80 -> 10.180.0.2:80" -j KUBE-SEP-2
-A KUBE-SEP-1 -m comment --comment ns1/svc1:p80 -s 10.180.0.1 -j KUBE-MARK-MASQ
-A KUBE-SEP-1 -m comment --comment ns1/svc1:p80 -m recent --name KUBE-SEP-1 --set -m tcp -p tcp -j DNAT --to-destination 10.180.0.1:80
-A KUBE-SEP-2 -m comment --comment ns1/svc1:p80 -s 10.180.0.2 -j KUBE-MARK-MASQ
-A KUBE-SEP-2 -m comment --comment ns1/svc1:p80 -m recent --name KUBE-SEP-2 --set -m tcp -p tcp -j DNAT --to-destination 10.180.0.2:80
-I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
COMMIT
"#;

#[test]
fn cluster_ip_goes_to_each_endpoint_with_its_probability() {
    let ruleset = restored(KUBE_PROXY);
    let traced = trace(&ruleset, &packet("10.0.0.2:40000", "172.30.0.41:80"), &node().addresses).unwrap();
    assert_eq!(traced.verdict, TracedVerdict::Dnat);
    let even = [("10.180.0.1:80", 0.5), ("10.180.0.2:80", 0.5)];
    assert_eq!(traced.endpoints, even.map(|(address, share)| (address.parse().unwrap(), share)));
    assert!(!traced.masquerade);
    assert_eq!(traced.affinity, Some(10_800_000));
    assert_eq!(traced.steps[0].rule, "iptables nat PREROUTING");
    assert!(traced.steps.iter().any(|step| step.detail.starts_with("ns1/svc1:p80 cluster IP: jump to")));
}

#[test]
fn node_port_is_masqueraded_and_the_mark_accepted() {
    let ruleset = restored(KUBE_PROXY);
    let evaluation = evaluate(&ruleset, &packet("203.0.113.2:40000", "192.168.0.2:3001"), &node()).unwrap();
    assert_eq!(evaluation.verdict, TracedVerdict::Dnat);
    assert!(evaluation.masquerade);
    assert!(evaluation.paths.iter().all(|path| path.accepted && path.mark == 0));
}

#[test]
fn hairpin_masquerades_only_the_endpoint_that_is_its_own_client() {
    let ruleset = restored(KUBE_PROXY);
    let evaluation = evaluate(&ruleset, &packet("10.180.0.1:40000", "172.30.0.41:80"), &node()).unwrap();
    assert!(!evaluation.masquerade);
    let masqueraded: Vec<_> = evaluation
        .paths
        .iter()
        .filter(|path| path.masquerade)
        .map(|path| path.destination.to_string())
        .collect();
    assert_eq!(masqueraded, ["10.180.0.1:80"]);
}

#[test]
fn a_remembered_client_keeps_its_endpoint() {
    let ruleset = restored(KUBE_PROXY);
    let mut node = node();
    node.recent.insert("KUBE-SEP-2".to_string(), ["10.0.0.2".parse().unwrap()].into());
    let evaluation = evaluate(&ruleset, &packet("10.0.0.2:40000", "172.30.0.41:80"), &node).unwrap();
    assert_eq!(evaluation.endpoints, [("10.180.0.2:80".parse().unwrap(), 1.0)]);
}

#[test]
fn an_invalid_packet_is_dropped_when_forwarded_and_counted() {
    let ruleset = restored(KUBE_PROXY);
    let packet = packet("10.0.0.2:40000", "10.9.9.9:80");
    let evaluation = evaluate_state(&ruleset, &packet, &node(), ConnectionState::Invalid).unwrap();
    assert_eq!(evaluation.verdict, TracedVerdict::Drop);
    assert_eq!(evaluation.paths[0].counted, ["ct_state_invalid_dropped_pkts"]);
    let new = evaluate(&ruleset, &packet, &node()).unwrap();
    assert_eq!(new.verdict, TracedVerdict::Untouched);
}

#[test]
fn save_text_is_the_spelling_of_iptables_save() {
    let ruleset = restored(KUBE_PROXY);
    let saved = ruleset.to_save(false);
    for line in [
        r#"-A KUBE-SERVICES -d 172.30.0.41/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-SVC-A"#,
        r#"-A KUBE-SVC-A ! -s 10.0.0.0/8 -d 172.30.0.41/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ"#,
        r#"-A KUBE-SVC-A -m comment --comment "ns1/svc1:p80 -> 10.180.0.1:80" -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-1 --mask 255.255.255.255 --rsource -j KUBE-SEP-1"#,
        r#"-A KUBE-SVC-A -m comment --comment "ns1/svc1:p80 -> 10.180.0.1:80" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-1"#,
        "-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0",
        "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
        "-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
    ] {
        assert!(saved.lines().any(|found| found == line), "{line}\nis not in\n{saved}");
    }
    assert_eq!(IptablesRuleset::parse(Family::V4, &saved).unwrap(), ruleset);
}

#[test]
fn redeclared_chain_is_emptied_and_others_stay() {
    let mut ruleset = restored(KUBE_PROXY);
    let change = "*nat\n:KUBE-SVC-A - [0:0]\n-A KUBE-SVC-A -j KUBE-SEP-2\n:KUBE-SEP-1 - [0:0]\n-X KUBE-SEP-1\nCOMMIT\n";
    ruleset.restore(change, FlushMode::Keep).unwrap();
    assert_eq!(ruleset.chain("nat", "KUBE-SVC-A").unwrap().rules.len(), 1);
    assert!(ruleset.chain("nat", "KUBE-SEP-1").is_none());
    assert_eq!(ruleset.chain("nat", "PREROUTING").unwrap().rules.len(), 1);
}

#[test]
fn refused_text_names_the_line_and_keeps_its_table() {
    let cases = [
        ("*nat\n-A KUBE-NONE -j ACCEPT\nCOMMIT\n", "line 2: unknown chain \"KUBE-NONE\""),
        (
            "*nat\n:KUBE-X - [0:0]\n-A KUBE-X -j KUBE-Y\nCOMMIT\n",
            "line 3: unknown chain or target \"KUBE-Y\"",
        ),
        ("*nat\n-X KUBE-SVC-A\nCOMMIT\n", "line 2: chain KUBE-SVC-A is not empty"),
        (
            "*nat\n:KUBE-SVC-A - [0:0]\n-X KUBE-SVC-A\nCOMMIT\n",
            "line 3: chain KUBE-SVC-A is still used by chain KUBE-EXT-A",
        ),
        (
            "*nat\n-A PREROUTING -m owner --uid-owner 0 -j ACCEPT\nCOMMIT\n",
            "line 2: unknown match \"owner\" or option of it: [\"--uid-owner\", \"0\"]",
        ),
        ("*nat\n-A PREROUTING -j ACCEPT\n", "line 1: table \"nat\" has no COMMIT"),
        ("*nat\n-D PREROUTING -j ACCEPT\nCOMMIT\n", "line 2: chain PREROUTING has no such rule to delete"),
        ("*nt\nCOMMIT\n", "line 1: unknown table \"nt\""),
        (
            "*nat\n:KUBE-ABCDEFGHIJKLMNOPQRSTUVWXYZ - [0:0]\nCOMMIT\n",
            "line 2: chain name \
            \"KUBE-ABCDEFGHIJKLMNOPQRSTUVWXYZ\" is longer than 28 characters",
        ),
        ("*nat\n-A PREROUTING --dport 80 -j ACCEPT\nCOMMIT\n", "line 2: unknown option \"--dport\""),
        ("*nat\n-A PREROUTING -s fd00::1 -j ACCEPT\nCOMMIT\n", "line 2: \"fd00::1\" is no IPv4 address"),
        ("*nat\n-A PREROUTING -m comment --comment \"x -j ACCEPT\nCOMMIT\n", "line 2: a quote is not closed"),
    ];
    for (text, expected) in cases {
        let mut ruleset = restored(KUBE_PROXY);
        let error = ruleset.restore(text, FlushMode::Keep).unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert_eq!(ruleset, restored(KUBE_PROXY), "{text}");
    }
}

#[test]
fn tables_before_a_faulty_one_stay_changed() {
    let mut ruleset = restored(KUBE_PROXY);
    let text = "*filter\n-F FORWARD\nCOMMIT\n*nat\n-F PREROUTING\n-A NONE -j ACCEPT\nCOMMIT\n";
    assert!(ruleset.restore(text, FlushMode::Keep).is_err());
    assert!(ruleset.chain("filter", "FORWARD").unwrap().rules.is_empty());
    assert!(!ruleset.chain("nat", "PREROUTING").unwrap().rules.is_empty());
}

#[test]
fn rule_with_an_unknown_match_fails_only_the_packets_that_depend_on_it() {
    let text = "*filter\n:INPUT ACCEPT [3:180]\n:FORWARD DROP [0:0]\n:OUTPUT ACCEPT [0:0]\n\
        [7:420] -A INPUT -p tcp -m tcp --dport 22 -m hashlimit --hashlimit-upto 5/sec --hashlimit-name ssh -j ACCEPT\n\
        COMMIT\n";
    let ruleset = IptablesRuleset::parse(Family::V4, text).unwrap();
    assert!(ruleset.to_save(true).contains("[7:420] -A INPUT -p tcp -m tcp --dport 22 -m hashlimit"));
    let other = evaluate(&ruleset, &packet("203.0.113.2:1", "192.168.0.2:80"), &node()).unwrap();
    assert_eq!(other.verdict, TracedVerdict::Untouched);
    let error = evaluate(&ruleset, &packet("203.0.113.2:1", "192.168.0.2:22"), &node()).unwrap_err();
    assert!(error.to_string().starts_with("unknown match \"hashlimit --hashlimit-upto 5/sec"), "{error}");
    let forwarded = evaluate(&ruleset, &packet("203.0.113.2:1", "10.1.1.1:80"), &node()).unwrap();
    assert_eq!(forwarded.verdict, TracedVerdict::Drop);
}

#[test]
fn goto_returns_to_the_caller_of_its_chain() {
    let ruleset = restored(
        "*filter\n:A - [0:0]\n:B - [0:0]\n-A INPUT -j A\n-A INPUT -j DROP\n-A A -g B\n-A A -j ACCEPT\n\
         -A B -p udp -j ACCEPT\nCOMMIT\n",
    );
    let evaluation = evaluate(&ruleset, &packet("203.0.113.2:1", "192.168.0.2:80"), &node()).unwrap();
    assert_eq!(evaluation.verdict, TracedVerdict::Drop);
}

#[test]
fn bytecode_finds_a_packet_whose_source_is_its_destination() {
    let rule = "-A POSTROUTING -m conntrack --ctstate DNAT -m bpf --bytecode \
        \"6,32 0 0 12,7 0 0 0,32 0 0 16,29 0 1 0,6 0 0 65535,6 0 0 0\" -j MASQUERADE";
    let dnat = "-A PREROUTING -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.180.0.1:8080";
    let ruleset = restored(&format!("*nat\n{dnat}\n{rule}\nCOMMIT\n"));
    assert!(ruleset.to_save(false).contains(rule));
    for (src, expected) in [("10.180.0.1:1", true), ("10.180.0.2:1", false)] {
        let evaluation = evaluate(&ruleset, &packet(src, "172.30.0.41:80"), &node()).unwrap();
        assert_eq!(evaluation.masquerade, expected, "{src}");
        assert_eq!(evaluation.endpoints, [("10.180.0.1:8080".parse().unwrap(), 1.0)]);
    }
}

#[test]
fn exact_probabilities_and_multiports() {
    let ruleset = restored(
        "*nat\n-A PREROUTING -p tcp -m multiport --dports 80,8000:8010 -m statistic --mode random \
         --probability 0.25 -j DNAT --to-destination 10.0.0.1\n\
         -A PREROUTING -p tcp -m multiport ! --dports 81 -j DNAT --to-destination :9\nCOMMIT\n",
    );
    let evaluation = evaluate(&ruleset, &packet("203.0.113.2:1", "10.9.9.9:8005"), &node()).unwrap();
    let shares: Vec<_> =
        evaluation.endpoints.iter().map(|(address, share)| (address.to_string(), *share)).collect();
    assert_eq!(shares, [("10.0.0.1:8005".to_string(), 0.25), ("10.9.9.9:9".to_string(), 0.75)]);
}

#[test]
fn ipvs_takes_packets_for_its_virtual_servers() {
    let ruleset = restored(
        "*nat\n:KUBE-MARK-MASQ - [0:0]\n-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\n\
         -A PREROUTING -m set --match-set KUBE-CLUSTER-IP dst,dst ! -s 10.0.0.0/8 -j KUBE-MARK-MASQ\n\
         -A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE\nCOMMIT\n\
         *filter\n-A OUTPUT -s 203.0.113.9 -m ipvs --vaddr 172.30.0.41 --vproto TCP --vport 80 -j DROP\nCOMMIT\n",
    );
    let mut node = node();
    node.addresses.push("172.30.0.41".parse().unwrap());
    node.sets = IpSets::parse(
        "create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536\n\
         add KUBE-CLUSTER-IP 172.30.0.41,tcp:80\n",
    )
    .unwrap();
    node.virtual_servers = IpvsServers::parse(
        "-A -t 172.30.0.41:80 -s wrr -p 300\n-a -t 172.30.0.41:80 -r 10.180.0.1:80 -m -w 3\n\
         -a -t 172.30.0.41:80 -r 10.180.0.2:80 -m -w 1\n-a -t 172.30.0.41:80 -r 10.180.0.3:80 -m -w 0\n\
         -A -u 172.30.0.41:53 -s rr -b flag-1,flag-2\n",
    )
    .unwrap();
    for (src, masquerade) in [("10.0.0.2:1", false), ("203.0.113.2:1", true), ("192.168.0.2:1", false)] {
        let evaluation = evaluate(&ruleset, &packet(src, "172.30.0.41:80"), &node).unwrap();
        assert_eq!(evaluation.verdict, TracedVerdict::Dnat);
        assert_eq!(evaluation.masquerade, masquerade, "{src}");
        assert_eq!(evaluation.affinity, Some(300_000));
        let shares: Vec<f64> = evaluation.endpoints.iter().map(|(_, share)| *share).collect();
        assert_eq!(shares, [0.75, 0.25]);
    }
    let refused = evaluate(&ruleset, &packet("203.0.113.9:1", "172.30.0.41:80"), &node).unwrap();
    assert_eq!(refused.verdict, TracedVerdict::Drop);
    let dns = FirstPacket { protocol: Protocol::Udp, ..packet("10.0.0.2:1", "172.30.0.41:53") };
    assert_eq!(evaluate(&ruleset, &dns, &node).unwrap().verdict, TracedVerdict::Reject);
}

#[test]
fn loop_of_chains_is_an_error() {
    let ruleset = restored("*filter\n:A - [0:0]\n:B - [0:0]\n-A A -j B\n-A B -j A\n-A INPUT -j A\nCOMMIT\n");
    let error = evaluate(&ruleset, &packet("203.0.113.2:1", "192.168.0.2:80"), &node()).unwrap_err();
    assert!(error.to_string().contains("is a loop"), "{error}");
}
