//! Configurations as people have them, and what becomes of each field.

use std::time::Duration;

use clap::Parser;

use model::forward::ForwardingMode;

use super::fields::{FIELDS, FLAGS, Support};
use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    node: flags::NodeFlags,
}

fn line(words: &[&str]) -> flags::NodeFlags {
    let words = std::iter::once("node").chain(words.iter().copied());
    Line::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).node
}

fn with_flags(words: &[&str]) -> Result<(NodeSettings, Vec<Notice>)> {
    settings(&line(words))
}

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn with_file(text: &str) -> Result<(NodeSettings, Vec<Notice>)> {
    let (config, mut notices) = file::parse(&format!("{HEAD}{text}"))?;
    let (settings, more) = resolve(config, false)?;
    notices.extend(more);
    Ok((settings, notices))
}

#[test]
fn the_content_type_selects_protobuf_or_json_as_in_kube_proxy() {
    let accepts = |accept: &str, content_type: &str| {
        let text =
            format!("clientConnection:\n  acceptContentTypes: {accept:?}\n  contentType: {content_type:?}\n");
        let (settings, notices) = with_file(&text).unwrap();
        assert!(notices.is_empty(), "{notices:?}");
        settings.configuration.client_connection.accepts_protobuf()
    };
    let protobuf = "application/vnd.kubernetes.protobuf";
    assert!(accepts("", "") && accepts("", protobuf) && accepts(protobuf, "application/json"));
    assert!(accepts("application/json, application/vnd.kubernetes.protobuf;q=0.5", ""));
    assert!(!accepts("", "application/json") && !accepts("application/json", protobuf));
}

/// What kubeadm writes into its ConfigMap.
const KUBEADM: &str = r#"
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: null
  tcpEstablishedTimeout: null
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables:
  localhostNodePorts: null
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: ""
  strictARP: false
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: ""
mode: ""
nftables:
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: ""
  rootHnsEndpointName: ""
  sourceVip: ""
"#;

#[test]
fn the_configuration_of_kubeadm_is_read_without_a_complaint() {
    let (settings, notices) = with_file(KUBEADM).unwrap();
    let unexpected: Vec<_> = notices.iter().filter(|n| n.reason != "NoEffect").collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
    assert_eq!(settings.mode, Mode::Default);
    assert_eq!(settings.sync_period, Duration::from_secs(30), "0s means the default here");
    assert_eq!(settings.proxy.cluster_cidr, "10.244.0.0/16");
    assert_eq!(settings.proxy.node_port_addresses, ["all"], "as mode iptables does");
    assert_eq!(settings.kubeconfig, Some("/var/lib/kube-proxy/kubeconfig.conf".into()));
}

#[test]
fn explicit_0s_is_obeyed_and_nothing_said_goes_by_load() {
    // Seed 002: minSyncPeriod.
    let min_sync_period = |text: &str| with_file(text).unwrap().0.min_sync_period;
    assert_eq!(min_sync_period("mode: nftables"), MinSyncPeriod::Adaptive { max: Duration::from_secs(1) });
    assert_eq!(
        min_sync_period("mode: nftables\nnftables: {minSyncPeriod: 0s}"),
        MinSyncPeriod::Fixed(Duration::ZERO)
    );
    let five = MinSyncPeriod::Fixed(Duration::from_secs(5));
    assert_eq!(min_sync_period("mode: nftables\nnftables: {minSyncPeriod: 5s}"), five);
    let (settings, _) = with_flags(&["--proxy-mode", "nftables", "--iptables-min-sync-period=5s"]).unwrap();
    assert_eq!(settings.min_sync_period, five, "semantics D15: the flags count for nftables, too");
}

#[test]
fn the_periods_and_masquerading_of_the_mode_count() {
    let text = "iptables: {syncPeriod: 10s, masqueradeAll: true}\nnftables: {syncPeriod: 20s}\nipvs: {syncPeriod: 40s}";
    let of = |mode: &str| with_file(&format!("mode: {mode}\n{text}")).unwrap().0;
    assert_eq!(of("iptables").sync_period.as_secs(), 10);
    assert_eq!(of("nftables").sync_period.as_secs(), 20);
    assert_eq!(of("ipvs").sync_period.as_secs(), 40);
    assert!(of("iptables").proxy.masquerade_all && !of("nftables").proxy.masquerade_all);
    assert_eq!(of("iptables").min_sync_period, MinSyncPeriod::Fixed(Duration::from_secs(1)));
    assert!(of("iptables").proxy.localhost_node_ports && !of("nftables").proxy.localhost_node_ports);
    assert_eq!(of("nftables").proxy.node_port_addresses, Vec::<String>::new());
}

#[test]
fn what_cannot_work_is_refused_with_the_reason() {
    for (text, words) in [
        ("mode: kernelspace", "`zoneward trace packet` with --proxy-mode kernelspace show"),
        ("mode: userspace", "is not nftables, iptables or ipvs"),
        ("mode: ipvs\nipvs: {scheduler: bogus}", "IPVS has no scheduler \"bogus\", only rr, wrr"),
        ("ipvs: {excludeCIDRs: [here]}", "ipvs.excludeCIDRs"),
        ("winkernel: {enableDSR: true}", "winkernel.enableDSR: only for Windows"),
        ("windowsRunAsService: true", "for Windows"),
        ("enableProfiling: true", "enableProfiling: this program has no Go profiler"),
        ("featureGates: {WinDSR: true}", "featureGates.WinDSR"),
        ("nftables: {masqueradeBit: 32}", "0 to 31"),
        ("oomScoreAdj: -1001", "-1000 to 1000"),
        ("healthzBindAddress: node:10256", "healthzBindAddress"),
        ("metricsBindAddress: '10249'", "metricsBindAddress"),
        ("bindAddress: here", "bindAddress"),
        ("clusterCIDR: 10.0.0.0/8,10.1.0.0/16", "at most one range of each family"),
        ("clusterCIDR: pods", "clusterCIDR"),
        ("nodePortAddresses: [primary, primary]", "twice"),
        ("nodePortAddresses: [everywhere]", "nodePortAddresses"),
        ("detectLocalMode: BridgeInterface", "detectLocal.bridgeInterface"),
        ("detectLocalMode: Magic", "detectLocalMode"),
        ("nftables: {minSyncPeriod: 31s}", "longer than syncPeriod"),
        ("nftables: {syncPeriod: soon}", "is not a duration"),
        ("logging: {format: xml}", "logging.format"),
        ("conntrack: {min: -1}", "conntrack.min"),
    ] {
        let error = format!("{:#}", with_file(text).expect_err(text));
        assert!(error.contains(words), "{text}: {error}");
    }
    let error = with_flags(&["--strict-mode"]).unwrap_err().to_string();
    assert!(error.contains("--strict-mode forbids"), "{error}");
    assert!(with_flags(&["--strict-mode", "--proxy-mode=nftables"]).is_ok());
    let (settings, _) = with_flags(&["--strict-mode", "--proxy-mode=iptables"]).unwrap();
    assert_eq!(settings.mode, Mode::Iptables);
    assert!(with_flags(&["--enable-dsr"]).is_err());
    assert!(with_flags(&["--enable-dsr=false"]).is_ok());
}

#[test]
fn a_field_that_does_not_exist_is_said_to_be_ignored() {
    let (_, notices) =
        with_file("conntrak: {min: 1}\nnftables: {burst: 1}\nfeatureGates: {Any: true}").unwrap();
    let unknown: Vec<_> = notices.iter().filter(|n| n.reason == "UnknownField").collect();
    assert_eq!(unknown.len(), 2, "{unknown:?}");
    assert!(notices.iter().any(|n| n.message.starts_with("featureGates.Any: ")));
    assert!(unknown.iter().any(|n| n.message.ends_with("; did you mean conntrack?")), "{unknown:?}");
}

#[test]
fn fields_of_ipvs_have_an_effect_in_mode_ipvs_alone() {
    let text = "ipvs: {scheduler: lc, strictARP: true, excludeCIDRs: [192.0.2.0/24], tcpTimeout: 5m}";
    let of = |mode: &str| with_file(&format!("mode: {mode}\n{text}")).unwrap();
    let (settings, notices) = of("ipvs");
    assert!(
        settings.mode == super::Mode::Ipvs
            && settings.proxy.mode == ForwardingMode::Ipvs
            && notices.is_empty(),
        "{notices:?}"
    );
    assert_eq!(settings.proxy.ipvs_scheduler, "lc");
    let (settings, notices) = of("nftables");
    assert_eq!(settings.proxy.mode, ForwardingMode::Nftables);
    assert_eq!(notices.iter().filter(|notice| notice.message.starts_with("ipvs.")).count(), 4, "{notices:?}");
}

#[test]
fn a_gate_or_scheduler_without_effect_is_said_and_a_near_miss_gets_its_name() {
    let text = "ipvs: {scheduler: bogus}\nfeatureGates: {ProxyTerminatingEndpoints: false, PreferSameTraficDistribution: true}";
    let (_, notices) = with_file(text).unwrap();
    let said: Vec<&str> =
        notices.iter().filter(|n| n.reason == "NoEffect").map(|n| n.message.as_str()).collect();
    for wanted in [
        "ipvs.scheduler: IPVS has no scheduler \"bogus\", only rr, wrr",
        "featureGates.ProxyTerminatingEndpoints: false has no effect",
        "unknown feature gate; did you mean \"PreferSameTrafficDistribution\"?",
    ] {
        assert!(said.iter().any(|message| message.contains(wanted)), "{wanted}: {said:?}");
    }
}

#[test]
fn file_goes_before_flags_but_for_those_that_kube_proxy_obeys() {
    let folder = std::env::temp_dir().join(format!("zoneward-config-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("config.yaml");
    std::fs::write(&path, format!("{HEAD}mode: nftables\nclusterCIDR: 10.0.0.0/8\n")).unwrap();
    let path_text = path.display().to_string();
    let (settings, notices) = with_flags(&[
        "--config",
        &path_text,
        "--cluster-cidr=10.1.0.0/16",
        "--hostname-override=Node-A",
        "-v=4",
    ])
    .unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(settings.proxy.cluster_cidr, "10.0.0.0/8");
    assert_eq!(settings.configuration.hostname_override, "node-a");
    assert_eq!(settings.configuration.logging.verbosity, 4);
    assert!(notices.iter().any(|n| n.reason == "FlagsIgnored"));
}

#[test]
fn every_flag_of_the_table_exists_and_every_field_is_in_the_reference() {
    let command = <Line as clap::CommandFactory>::command();
    let exists = |flag: &str| command.get_arguments().any(|arg| arg.get_long() == Some(flag));
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/kube-proxy.md");
    let page = std::fs::read_to_string(page).unwrap();
    for (flag, field) in FLAGS {
        assert!(exists(flag), "--{flag} is not read");
        assert!(page.contains(&format!("`--{flag}`")), "--{flag} is not in docs/reference/kube-proxy.md");
        assert!(field.is_empty() || FIELDS.iter().any(|(path, _)| path == field), "{field} is not listed");
    }
    for (path, support) in FIELDS {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{path}` |")));
        let row = row.unwrap_or_else(|| panic!("{path} is not in docs/reference/kube-proxy.md"));
        let word = match support {
            Support::Works => "works",
            Support::NoEffect(_) => "no effect",
            Support::InIpvs(_) => "in mode ipvs",
            Support::Refused(_) => "refused",
        };
        assert!(row.contains(word), "{path}: the page does not say that it {word}: {row}");
    }
}

#[test]
fn the_configuration_in_force_can_be_read_again() {
    let (settings, _) = with_file(KUBEADM).unwrap();
    let text = serde_saphyr::to_string(&settings.configuration).unwrap();
    let (again, notices) = file::parse(&text).unwrap();
    assert_eq!(again, settings.configuration);
    assert!(notices.is_empty());
}

// KEP-6032: of mode nftables only.
#[test]
fn the_gate_of_localhost_node_ports_is_for_mode_nftables() {
    let read = |mode: &str| {
        let gates = [("KubeProxyNFTablesLocalhostNodePorts".to_owned(), true)].into();
        let config =
            Configuration { mode: mode.to_owned(), feature_gates: gates, ..Configuration::default() };
        let (settings, notices) = resolve(config, false).unwrap();
        (settings.proxy.gates.localhost_node_ports, notices.iter().any(|n| n.message.contains("Localhost")))
    };
    assert_eq!(read("nftables"), (true, false));
    assert_eq!(read("iptables"), (false, true));
}
