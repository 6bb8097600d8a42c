//! Validation as in kube-proxy: errors name the field and its valid values.

use ipnet::IpNet;
use model::GoDuration;

use super::Configuration;

/// Adds an error for every invalid field.
pub(super) fn check(config: &Configuration, refusals: &mut Vec<String>) {
    let mut say = |field: &str, message: String| refusals.push(format!("{field}: {message}"));
    for (field, bit) in [
        ("iptables.masqueradeBit", config.iptables.masquerade_bit),
        ("nftables.masqueradeBit", config.nftables.masquerade_bit),
    ] {
        if let Some(bit) = bit.filter(|bit| !(0..=31).contains(bit)) {
            say(field, format!("{bit} is not within 0 to 31"));
        }
    }
    if let Some(score) = config.oom_score_adj.filter(|score| !(-1000..=1000).contains(score)) {
        say("oomScoreAdj", format!("{score} is not within -1000 to 1000"));
    }
    for (field, number) in
        [("conntrack.maxPerCore", config.conntrack.max_per_core), ("conntrack.min", config.conntrack.min)]
    {
        if let Some(number) = number.filter(|number| *number < 0) {
            say(field, format!("{number} is below 0"));
        }
    }
    if let Some(text) = config.bind_address.as_deref()
        && model::address::parse_ip(text).is_none()
    {
        say("bindAddress", format!("{text:?} is not an IP address"));
    }
    if !matches!(config.logging.format.as_str(), "" | "text" | "json") {
        say("logging.format", format!("{:?} is not text or json", config.logging.format));
    }
    check_periods(config, &mut say);
    check_ranges(config, &mut say);
    check_detection(config, &mut say);
}

fn check_periods(config: &Configuration, say: &mut impl FnMut(&str, String)) {
    let modes: [(&str, Option<GoDuration>, Option<GoDuration>); 3] = [
        ("iptables", config.iptables.sync_period, config.iptables.min_sync_period),
        ("ipvs", config.ipvs.sync_period, config.ipvs.min_sync_period),
        ("nftables", config.nftables.sync_period, config.nftables.min_sync_period),
    ];
    for (mode, period, least) in modes {
        if let (Some(period), Some(least)) = (period, least)
            && least > period
        {
            say(&format!("{mode}.minSyncPeriod"), format!("{least} is longer than syncPeriod, {period}"));
        }
    }
}

fn check_ranges(config: &Configuration, say: &mut impl FnMut(&str, String)) {
    let mut families = Vec::new();
    for text in config.cluster_cidr.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        match text.parse::<IpNet>() {
            Ok(range) => families.push(range.addr().is_ipv4()),
            Err(_) => say("clusterCIDR", format!("{text:?} is not a CIDR such as 10.0.0.0/8")),
        }
    }
    if families.len() > 2 || (families.len() == 2 && families[0] == families[1]) {
        say("clusterCIDR", "at most one range of each family".to_owned());
    }
    for text in &config.ipvs.exclude_cidrs {
        if text.parse::<IpNet>().is_err() {
            say("ipvs.excludeCIDRs", format!("{text:?} is not a CIDR such as 10.0.0.0/8"));
        }
    }
    let mut seen: Vec<&str> = Vec::new();
    for text in config.node_port_addresses.iter().map(|text| text.trim()) {
        let is_word = matches!(text, "primary" | "localhost" | "all");
        if !is_word && text.parse::<IpNet>().is_err() {
            say("nodePortAddresses", format!("{text:?} is not a CIDR, primary, localhost or all"));
        }
        if is_word && seen.contains(&text) {
            say("nodePortAddresses", format!("{text:?} is listed twice"));
        }
        seen.push(text);
    }
}

fn check_detection(config: &Configuration, say: &mut impl FnMut(&str, String)) {
    let detect = &config.detect_local;
    match config.detect_local_mode.as_str() {
        "" | "ClusterCIDR" | "NodeCIDR" => {}
        "BridgeInterface" if detect.bridge_interface.trim().is_empty() => {
            say("detectLocal.bridgeInterface", "mode BridgeInterface needs it".to_owned());
        }
        "InterfaceNamePrefix" if detect.interface_name_prefix.trim().is_empty() => {
            say("detectLocal.interfaceNamePrefix", "mode InterfaceNamePrefix needs it".to_owned());
        }
        "BridgeInterface" | "InterfaceNamePrefix" => {}
        other => say(
            "detectLocalMode",
            format!("{other:?} is not ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix"),
        ),
    }
}
