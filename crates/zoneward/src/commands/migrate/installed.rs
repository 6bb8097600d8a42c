//! The rules of kube-proxy on this machine, or in files.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use dataplane::iptables::ruleset::{IpSets, IptablesRuleset, IpvsServers};
use dataplane::ipvs::{IpvsSocket, foreign_servers};
use dataplane::migration::{InstalledIptables, InstalledRules};
use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::apply::read;
use dataplane::nftables::ir::{NftFamily, NftName, Ruleset, TableId};
use model::Family;

use super::KubeProxyMode;
use crate::commands::cleanup::ipvs::interface_addresses;
use crate::commands::cleanup::program::run;

/// The chain that modes iptables and ipvs both have.
const SERVICES: &str = "KUBE-SERVICES";
/// The chain that only mode ipvs has.
const IPVS_CHAIN: &str = "KUBE-IPVS-FILTER";

pub(super) type Found = (KubeProxyMode, InstalledRules);

/// The rules of this machine.
pub(super) fn live(wanted: Option<KubeProxyMode>) -> Result<Found> {
    if wanted.is_none_or(|mode| mode == KubeProxyMode::Nftables) {
        let tables = nftables()?;
        if !tables.tables.is_empty() {
            return Ok((KubeProxyMode::Nftables, InstalledRules::Nftables(tables)));
        }
    }
    if wanted != Some(KubeProxyMode::Nftables) {
        let mut texts = vec![flavour("iptables")?, flavour("ip6tables")?];
        match run("ipset", &["save"], "") {
            Ok(Some(text)) => texts.push(("ipset".to_owned(), text)),
            // Without its kernel module it fails; mode ipvs needs it.
            Ok(None) | Err(_) if wanted != Some(KubeProxyMode::Ipvs) => {}
            Ok(None) => bail!("ipset is not installed, and mode ipvs cannot be read without it"),
            Err(error) => return Err(error),
        }
        let named: Vec<(&str, &str)> =
            texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        return parsed(&named, virtual_servers()?, wanted);
    }
    bail!("no rules of kube-proxy in mode {} here; run this on a node where it runs", mode_text(wanted))
}

/// The virtual servers of this machine. A kernel without the file has no IPVS, and asking it would load the module.
fn virtual_servers() -> Result<IpvsServers> {
    if !Path::new("/proc/net/ip_vs").exists() {
        return Ok(IpvsServers::default());
    }
    foreign_servers(&mut IpvsSocket::open()?).context("reading the virtual servers of IPVS")
}

fn mode_text(wanted: Option<KubeProxyMode>) -> &'static str {
    wanted.map_or("iptables, ipvs or nftables", KubeProxyMode::as_str)
}

/// The output of the flavour of iptables that has kube-proxy's chains; of nft if none has.
fn flavour(program: &str) -> Result<(String, String)> {
    let mut first = None;
    for flavour in ["nft", "legacy"] {
        let name = format!("{program}-{flavour}-save");
        let saved =
            run(&name, &["-c"], "").with_context(|| "reading the rules of the kernel requires NET_ADMIN")?;
        match saved {
            Some(text) if text.contains(&format!(":{SERVICES} ")) => return Ok((name, text)),
            Some(text) => first = first.or(Some((name, text))),
            None => {}
        }
    }
    first.with_context(|| format!("{program}-nft-save and {program}-legacy-save are not installed"))
}

/// The tables of kube-proxy's mode nftables.
fn nftables() -> Result<Ruleset> {
    let mut kernel = NetlinkSocket::open().context("reading the rules of the kernel requires NET_ADMIN")?;
    let wanted =
        [NftFamily::Ip, NftFamily::Ip6].map(|family| TableId { family, name: NftName::from("kube-proxy") });
    let (ruleset, problems) =
        read(&mut kernel, &wanted).context("reading the nftables tables of kube-proxy")?;
    if let Some(problem) = problems.first() {
        bail!("unsupported object in the nftables tables of kube-proxy: {problem}");
    }
    Ok(ruleset)
}

/// The addresses of this machine, without those that kube-proxy's mode ipvs gives its interface.
pub(super) fn local_addresses(from: KubeProxyMode) -> Vec<IpAddr> {
    let mut addresses = node::local_addresses::local();
    if from == KubeProxyMode::Ipvs {
        let virtual_addresses = interface_addresses();
        addresses.retain(|address| !virtual_addresses.contains(&address.to_string()));
    }
    addresses
}

/// Saved rules.
pub(super) fn files(paths: &[PathBuf], wanted: Option<KubeProxyMode>) -> Result<Found> {
    if wanted == Some(KubeProxyMode::Nftables) {
        bail!("rules of mode nftables are only read from the kernel: use --live instead of --rules");
    }
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        Ok((path.display().to_string(), text))
    };
    let texts: Vec<(String, String)> = paths.iter().map(read).collect::<Result<_>>()?;
    let named: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    parsed(&named, IpvsServers::default(), wanted)
}

/// What a text is, by its first line that is no comment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SavedBy {
    Iptables(Family),
    Ipset,
    Ipvsadm,
    Empty,
}

fn parsed(
    texts: &[(&str, &str)],
    virtual_servers: IpvsServers,
    wanted: Option<KubeProxyMode>,
) -> Result<Found> {
    let mut rules = InstalledIptables { virtual_servers, ..InstalledIptables::default() };
    for (name, text) in texts {
        let kind = saved_by(name, text)?;
        match kind {
            SavedBy::Iptables(family) => {
                let ruleset = IptablesRuleset::parse(family, text).with_context(|| (*name).to_owned())?;
                rules.has_counters |= text.lines().any(|line| line.starts_with('['));
                match family {
                    Family::V4 => rules.v4 = ruleset,
                    Family::V6 => rules.v6 = ruleset,
                }
            }
            SavedBy::Ipset => rules.sets = IpSets::parse(text).with_context(|| (*name).to_owned())?,
            SavedBy::Ipvsadm => {
                rules.virtual_servers = IpvsServers::parse(text).with_context(|| (*name).to_owned())?;
            }
            SavedBy::Empty => {}
        }
    }
    let has =
        |table: &str, chain: &str| [&rules.v4, &rules.v6].iter().any(|of| of.chain(table, chain).is_some());
    let from = match (has("nat", SERVICES), has("filter", IPVS_CHAIN)) {
        (false, _) => bail!(
            "no chain {SERVICES} in the rules, so kube-proxy does not run in mode {} there",
            mode_text(wanted)
        ),
        (true, true) => KubeProxyMode::Ipvs,
        (true, false) => KubeProxyMode::Iptables,
    };
    if let Some(wanted) = wanted.filter(|wanted| *wanted != from) {
        bail!(
            "the rules are of kube-proxy's mode {}, not {}: leave out --from",
            from.as_str(),
            wanted.as_str()
        );
    }
    if from == KubeProxyMode::Ipvs && rules.virtual_servers.0.is_empty() {
        bail!(
            "the rules are of kube-proxy's mode ipvs, and the output of ipvsadm -Sn is missing: add it with --rules"
        );
    }
    // Virtual servers of other programs do not belong to kube-proxy's mode iptables.
    if from == KubeProxyMode::Iptables {
        rules.virtual_servers = IpvsServers::default();
    }
    Ok((from, InstalledRules::Iptables(Box::new(rules))))
}

fn saved_by(name: &str, text: &str) -> Result<SavedBy> {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(match first {
        None => SavedBy::Empty,
        Some(line) if line.starts_with('*') => SavedBy::Iptables(family(name, text)),
        Some(line) if line.starts_with("create ") => SavedBy::Ipset,
        Some(line) if line.starts_with("-A ") || line.starts_with("-a ") => SavedBy::Ipvsadm,
        Some(line) if line.starts_with("table ") || line.starts_with('{') => {
            bail!(
                "{name}: rules of mode nftables are only read from the kernel: use --live instead of --rules"
            )
        }
        Some(line) => bail!(
            "{name}: not the output of iptables-save, ip6tables-save, ipset save or ipvsadm -Sn: {line:?}"
        ),
    })
}

/// By the program, by the comment that it writes, else by the addresses.
fn family(name: &str, text: &str) -> Family {
    let file = Path::new(name).file_name().map(|file| file.to_string_lossy()).unwrap_or_default();
    let is_v6 = file.starts_with("ip6tables")
        || text.lines().any(|line| line.starts_with("# Generated by ip6tables"))
        || (IptablesRuleset::parse(Family::V4, text).is_err()
            && IptablesRuleset::parse(Family::V6, text).is_ok());
    if is_v6 { Family::V6 } else { Family::V4 }
}
