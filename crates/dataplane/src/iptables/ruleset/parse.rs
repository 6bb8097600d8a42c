//! A rule from the words of its line.
//!
//! Options belong to the last `-m` or `-j` that knows them, in any order: kube-proxy writes
//! `-m tcp -p tcp -d 10.0.0.1 --dport 80`, iptables-save `-d 10.0.0.1/32 -p tcp -m tcp --dport 80`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use model::Family;

use super::IptablesError;
use super::bpf::BpfProgram;
use super::rule::{
    AddrtypeKind, ConntrackStates, FULL_PROBABILITY, IptablesMatch, IptablesRule, IptablesTarget, MarkChange,
    Negatable, PacketDirection, PortRange, PortsOf, RecentAction, protocol_name, protocol_number,
};

/// Splits a line into words. Quotes and backslashes as in iptables-restore.
pub(super) fn words(line: &str) -> Result<Vec<String>, IptablesError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(_), '\\') => word.get_or_insert_default().extend(chars.next()),
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err(IptablesError::new("a quote is not closed"));
    }
    words.extend(word);
    Ok(words)
}

/// Options of one `-m` or `-j`: whether `!` precedes, name, arguments.
struct Module {
    name: String,
    options: Vec<(bool, String, Vec<String>)>,
    is_known: bool,
}

impl Module {
    fn new(name: String, arity: fn(&str, &str) -> Option<usize>) -> Self {
        // Any option will do: an unknown module has none.
        let is_known = arity(&name, "").is_some();
        Self { name, options: Vec::new(), is_known }
    }

    fn into_words(self) -> (String, Vec<String>) {
        let spelled = self.options.into_iter().flat_map(|(negated, option, arguments)| {
            negated.then(|| "!".to_string()).into_iter().chain([option]).chain(arguments)
        });
        (self.name, spelled.collect())
    }
}

/// The number of arguments of an option of a match. With an empty option: whether the match is known.
fn match_arity(module: &str, option: &str) -> Option<usize> {
    let options: &[(&str, usize)] = match module {
        "comment" => &[("--comment", 1)],
        "tcp" | "udp" | "sctp" => &[
            ("--sport", 1),
            ("--source-port", 1),
            ("--dport", 1),
            ("--destination-port", 1),
            ("--syn", 0),
            ("--tcp-flags", 2),
        ],
        "multiport" => &[
            ("--sports", 1),
            ("--source-ports", 1),
            ("--dports", 1),
            ("--destination-ports", 1),
            ("--ports", 1),
        ],
        "conntrack" => &[("--ctstate", 1)],
        "state" => &[("--state", 1)],
        "addrtype" => &[("--src-type", 1), ("--dst-type", 1)],
        "statistic" => &[("--mode", 1), ("--probability", 1)],
        "recent" => &[
            ("--set", 0),
            ("--rcheck", 0),
            ("--update", 0),
            ("--remove", 0),
            ("--seconds", 1),
            ("--reap", 0),
            ("--name", 1),
            ("--mask", 1),
            ("--rsource", 0),
            ("--rdest", 0),
        ],
        "mark" => &[("--mark", 1)],
        "physdev" => &[("--physdev-is-in", 0)],
        "set" => &[("--match-set", 2)],
        "bpf" => &[("--bytecode", 1)],
        "nfacct" => &[("--nfacct-name", 1)],
        "ipvs" => &[("--vaddr", 1), ("--vproto", 1), ("--vport", 1)],
        _ => return None,
    };
    if option.is_empty() {
        return Some(0);
    }
    options.iter().find(|(name, _)| *name == option).map(|(_, arity)| *arity)
}

fn target_arity(module: &str, option: &str) -> Option<usize> {
    let options: &[(&str, usize)] = match module {
        "ACCEPT" | "DROP" | "RETURN" => &[],
        "REJECT" => &[("--reject-with", 1)],
        "MARK" => {
            &[("--set-xmark", 1), ("--set-mark", 1), ("--or-mark", 1), ("--and-mark", 1), ("--xor-mark", 1)]
        }
        "DNAT" => &[("--to-destination", 1), ("--random", 0), ("--persistent", 0)],
        "SNAT" => &[("--to-source", 1), ("--random", 0), ("--random-fully", 0), ("--persistent", 0)],
        "MASQUERADE" => &[("--to-ports", 1), ("--random", 0), ("--random-fully", 0)],
        _ => return None,
    };
    if option.is_empty() {
        return Some(0);
    }
    options.iter().find(|(name, _)| *name == option).map(|(_, arity)| *arity)
}

/// Targets that are programs of the kernel, in upper case, and no chains.
pub(super) const OTHER_TARGETS: [&str; 26] = [
    "AUDIT",
    "CHECKSUM",
    "CLASSIFY",
    "CLUSTERIP",
    "CONNMARK",
    "CONNSECMARK",
    "CT",
    "DNPT",
    "DSCP",
    "ECN",
    "HMARK",
    "LED",
    "NETMAP",
    "NFQUEUE",
    "NOTRACK",
    "RATEEST",
    "REDIRECT",
    "SECMARK",
    "SET",
    "SNPT",
    "SYNPROXY",
    "TEE",
    "TOS",
    "TPROXY",
    "TTL",
    "ULOG",
];
/// Targets after which the next rule runs and that change nothing that a rule for a first packet matches.
const PASSIVE_TARGETS: [&str; 12] =
    ["AUDIT", "CHECKSUM", "CLASSIFY", "DSCP", "ECN", "LED", "LOG", "NFLOG", "TCPMSS", "TOS", "TRACE", "ULOG"];

/// Whether a name of `-j` is a target of the kernel rather than a chain.
pub(super) fn is_target(name: &str) -> bool {
    target_arity(name, "").is_some() || OTHER_TARGETS.contains(&name) || PASSIVE_TARGETS.contains(&name)
}

/// Parses the words after `-A CHAIN`.
pub(super) fn rule(family: Family, words: &[String]) -> Result<IptablesRule, IptablesError> {
    let mut rule = IptablesRule::default();
    let mut matches: Vec<Module> = Vec::new();
    let mut target: Option<Module> = None;
    let mut goes = false;
    let mut negated = false;
    let mut rest = words.iter();
    let mut target_was_last = false;
    while let Some(word) = rest.next() {
        let mut argument = || rest.next().cloned().ok_or_else(|| missing(word));
        match word.as_str() {
            "!" => {
                negated = true;
                continue;
            }
            "-s" | "--source" | "--src" => rule.source = network(family, negated, &argument()?)?,
            "-d" | "--destination" | "--dst" => rule.destination = network(family, negated, &argument()?)?,
            "-i" | "--in-interface" => rule.in_interface = interface(negated, argument()?),
            "-o" | "--out-interface" => rule.out_interface = interface(negated, argument()?),
            "-p" | "--protocol" | "--proto" => {
                let text = argument()?;
                let number = protocol_number(&text).ok_or_else(|| wrong("protocol", &text))?;
                rule.protocol = number.map(|value| Negatable { negated, value });
            }
            "-m" | "--match" => {
                matches.push(Module::new(argument()?, match_arity));
                target_was_last = false;
            }
            "-j" | "--jump" | "-g" | "--goto" => {
                goes = word.starts_with("-g") || word == "--goto";
                target = Some(Module::new(argument()?, target_arity));
                target_was_last = true;
            }
            "-c" | "--set-counters" => {
                rule.counters.packets = number(&argument()?)?;
                rule.counters.bytes = number(&argument()?)?;
            }
            option if option.starts_with("--") => {
                let (module, arity) = owner(option, &rule, &mut matches, &mut target, target_was_last)?;
                let arguments = match arity {
                    Some(arity) => rest.by_ref().take(arity).cloned().collect::<Vec<_>>(),
                    None => take_arguments(&mut rest),
                };
                if arity.is_some_and(|arity| arity != arguments.len()) {
                    return Err(missing(option));
                }
                module.options.push((negated, option.to_string(), arguments));
            }
            other => return Err(IptablesError::new(format!("unknown option {other:?}"))),
        }
        negated = false;
    }
    if negated {
        return Err(IptablesError::new("\"!\" without an option after it"));
    }
    for module in matches {
        rule.matches.push(parse_match(family, module)?);
    }
    rule.target = target.map(|module| parse_target(family, module, goes)).transpose()?;
    Ok(rule)
}

/// The module that an option belongs to, with the number of arguments if it is known.
fn owner<'m>(
    option: &str,
    rule: &IptablesRule,
    matches: &'m mut Vec<Module>,
    target: &'m mut Option<Module>,
    target_was_last: bool,
) -> Result<(&'m mut Module, Option<usize>), IptablesError> {
    if target_was_last && let Some(module) = target {
        let arity = target_arity(&module.name, option);
        let of_match = matches.iter().rposition(|module| match_arity(&module.name, option).is_some());
        return match of_match.filter(|_| module.is_known && arity.is_none()) {
            Some(at) => {
                let arity = match_arity(&matches[at].name, option);
                Ok((&mut matches[at], arity))
            }
            None => {
                // An option that is not known makes its target one that is not known.
                module.is_known &= arity.is_some();
                Ok((module, arity))
            }
        };
    }
    let last_is_known = matches.last().is_none_or(|module| module.is_known);
    let known = matches.iter().rposition(|module| match_arity(&module.name, option).is_some());
    if let Some(at) = known.filter(|_| last_is_known) {
        let arity = match_arity(&matches[at].name, option);
        return Ok((&mut matches[at], arity));
    }
    // `-p tcp --dport 80` without `-m tcp`.
    let implied = rule.protocol.as_ref().filter(|of| !of.negated).map(|of| protocol_name(of.value));
    if let Some(name) = implied.filter(|name| last_is_known && match_arity(name, option).is_some()) {
        let arity = match_arity(&name, option);
        matches.push(Module::new(name, match_arity));
        return Ok((matches.last_mut().expect("one was just added"), arity));
    }
    let unknown = || IptablesError::new(format!("unknown option {option:?}"));
    let last = matches.last_mut().ok_or_else(unknown)?;
    last.is_known = false;
    Ok((last, None))
}

/// The words up to the next option.
fn take_arguments(rest: &mut std::slice::Iter<'_, String>) -> Vec<String> {
    let count = rest.as_slice().iter().take_while(|word| !word.starts_with('-') && *word != "!").count();
    rest.by_ref().take(count).cloned().collect()
}

fn missing(option: &str) -> IptablesError {
    IptablesError::new(format!("option {option:?} lacks its argument"))
}

fn wrong(what: &str, text: &str) -> IptablesError {
    IptablesError::new(format!("{text:?} is no {what}"))
}

fn number<T: FromStr>(text: &str) -> Result<T, IptablesError> {
    text.parse().map_err(|_| wrong("number in range", text))
}

/// Decimal, or hexadecimal with `0x`.
fn mark_number(text: &str) -> Result<u32, IptablesError> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16).map_err(|_| wrong("mark", text)),
        None => text.parse().map_err(|_| wrong("mark", text)),
    }
}

fn masked(text: &str) -> Result<(u32, Option<u32>), IptablesError> {
    match text.split_once('/') {
        Some((value, mask)) => Ok((mark_number(value)?, Some(mark_number(mask)?))),
        None => Ok((mark_number(text)?, None)),
    }
}

/// `None` for a network that every address is in.
fn network(family: Family, negated: bool, text: &str) -> Result<Option<Negatable<IpNet>>, IptablesError> {
    let value = address_network(family, text)?;
    Ok((value.prefix_len() > 0 || negated).then_some(Negatable { negated, value }))
}

fn address_network(family: Family, text: &str) -> Result<IpNet, IptablesError> {
    let parsed = match text.split_once('/') {
        // `10.0.0.0/255.0.0.0` is allowed, too.
        Some((address, mask)) if mask.parse::<u8>().is_err() => {
            let address: Option<IpAddr> = address.parse().ok();
            let mask: Option<IpAddr> = mask.parse().ok();
            address.zip(mask).and_then(|(address, mask)| IpNet::with_netmask(address, mask).ok())
        }
        Some(_) => text.parse().ok(),
        None => text.parse::<IpAddr>().ok().map(IpNet::from),
    };
    let net = parsed.ok_or_else(|| wrong("address", text))?;
    if Family::of(net.addr()) != family {
        return Err(wrong(&format!("{family} address"), text));
    }
    Ok(net.trunc())
}

fn interface(negated: bool, value: String) -> Option<Negatable<String>> {
    (value != "+" || negated).then_some(Negatable { negated, value })
}

fn port(text: &str) -> Result<u16, IptablesError> {
    text.parse().map_err(|_| wrong("port", text))
}

fn port_range(text: &str, separator: char) -> Result<PortRange, IptablesError> {
    let Some((first, last)) = text.split_once(separator) else {
        let only = port(text)?;
        return Ok(PortRange { first: only, last: only });
    };
    let first = if first.is_empty() { 0 } else { port(first)? };
    let last = if last.is_empty() { u16::MAX } else { port(last)? };
    if first > last {
        return Err(wrong("port range", text));
    }
    Ok(PortRange { first, last })
}

/// Whether a parsed module is one that can be evaluated.
type Known<T> = Result<Option<T>, IptablesError>;

fn parse_match(family: Family, module: Module) -> Result<IptablesMatch, IptablesError> {
    let known = if module.is_known { known_match(family, &module)? } else { None };
    Ok(known.unwrap_or_else(|| {
        let (module, options) = module.into_words();
        IptablesMatch::Other { module, options }
    }))
}

fn known_match(family: Family, module: &Module) -> Known<IptablesMatch> {
    let Module { name, options, .. } = module;
    let only = || match options.as_slice() {
        [(negated, option, arguments)] => Ok((*negated, option.as_str(), arguments.as_slice())),
        _ => Err(IptablesError::new(format!("match {name:?} needs exactly one condition"))),
    };
    Ok(Some(match name.as_str() {
        "comment" => IptablesMatch::Comment(only()?.2[0].clone()),
        "tcp" | "udp" | "sctp" => return ports(name, options),
        "multiport" => {
            let (negated, option, arguments) = only()?;
            let of = match option {
                "--sports" | "--source-ports" => PortsOf::Source,
                "--dports" | "--destination-ports" => PortsOf::Destination,
                _ => PortsOf::Either,
            };
            let value =
                arguments[0].split(',').map(|range| port_range(range, ':')).collect::<Result<_, _>>()?;
            IptablesMatch::Multiport { of, ports: Negatable { negated, value } }
        }
        "conntrack" | "state" => {
            let (negated, _, arguments) = only()?;
            let states = Negatable { negated, value: conntrack_states(&arguments[0])? };
            IptablesMatch::Conntrack { states, is_state: name == "state" }
        }
        "addrtype" => return address_types(options),
        "statistic" => return statistic(options),
        "recent" => return recent(family, options),
        "mark" => {
            let (negated, _, arguments) = only()?;
            let (value, mask) = masked(&arguments[0])?;
            IptablesMatch::Mark(Negatable { negated, value: (value, mask.unwrap_or(u32::MAX)) })
        }
        "physdev" => IptablesMatch::FromBridgePort(Negatable { negated: only()?.0, value: () }),
        "set" => {
            let (negated, _, arguments) = only()?;
            let of = arguments[1].split(',').map(direction).collect::<Result<_, _>>()?;
            IptablesMatch::Set { name: Negatable { negated, value: arguments[0].clone() }, of }
        }
        "bpf" => IptablesMatch::Bpf(BpfProgram::parse(&only()?.2[0])?),
        "nfacct" => IptablesMatch::Nfacct(only()?.2[0].clone()),
        "ipvs" => return ipvs(family, options),
        _ => return Ok(None),
    }))
}

fn ports(name: &str, options: &[(bool, String, Vec<String>)]) -> Known<IptablesMatch> {
    let protocol = protocol_number(name).flatten().unwrap_or_default();
    let (mut source, mut destination, mut syn) = (None, None, None);
    for (negated, option, arguments) in options {
        let negated = *negated;
        match option.as_str() {
            "--sport" | "--source-port" => {
                source = Some(Negatable { negated, value: port_range(&arguments[0], ':')? });
            }
            "--dport" | "--destination-port" => {
                destination = Some(Negatable { negated, value: port_range(&arguments[0], ':')? });
            }
            "--syn" => syn = Some(Negatable { negated, value: () }),
            "--tcp-flags" if arguments[0] == "FIN,SYN,RST,ACK" && arguments[1] == "SYN" => {
                syn = Some(Negatable { negated, value: () });
            }
            _ => return Ok(None),
        }
    }
    Ok(Some(IptablesMatch::Ports { protocol, source, destination, syn }))
}

fn conntrack_states(text: &str) -> Result<ConntrackStates, IptablesError> {
    let mut states = ConntrackStates::default();
    for name in text.split(',') {
        match name.to_ascii_uppercase().as_str() {
            "INVALID" => states.invalid = true,
            "NEW" => states.new = true,
            "RELATED" => states.related = true,
            "ESTABLISHED" => states.established = true,
            "UNTRACKED" => states.untracked = true,
            "SNAT" => states.snat = true,
            "DNAT" => states.dnat = true,
            _ => return Err(wrong("connection state", name)),
        }
    }
    Ok(states)
}

fn address_types(options: &[(bool, String, Vec<String>)]) -> Known<IptablesMatch> {
    let (mut source, mut destination) = (None, None);
    for (negated, option, arguments) in options {
        let value = match arguments[0].as_str() {
            "LOCAL" => AddrtypeKind::Local,
            "UNICAST" => AddrtypeKind::Unicast,
            "MULTICAST" => AddrtypeKind::Multicast,
            _ => return Ok(None),
        };
        let side = if option == "--src-type" { &mut source } else { &mut destination };
        *side = Some(Negatable { negated: *negated, value });
    }
    Ok(Some(IptablesMatch::AddressTypes { source, destination }))
}

fn statistic(options: &[(bool, String, Vec<String>)]) -> Known<IptablesMatch> {
    let argument = |name: &str| options.iter().find(|(_, option, _)| option == name);
    if argument("--mode").is_none_or(|(_, _, arguments)| arguments[0] != "random") {
        return Ok(None);
    }
    let Some((negated, _, arguments)) = argument("--probability") else {
        return Err(IptablesError::new("match \"statistic\" needs --probability"));
    };
    let share: f64 = number(&arguments[0])?;
    if !(0.0..=1.0).contains(&share) {
        return Err(wrong("probability", &arguments[0]));
    }
    let value = (share * f64::from(FULL_PROBABILITY)).round() as u32;
    Ok(Some(IptablesMatch::Random { probability: Negatable { negated: *negated, value } }))
}

fn recent(family: Family, options: &[(bool, String, Vec<String>)]) -> Known<IptablesMatch> {
    let (mut seconds, mut reap, mut name) = (None, false, "DEFAULT".to_string());
    let mut of = PacketDirection::Source;
    let mut word = None;
    let mut mask = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::BROADCAST),
        Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)),
    };
    for (negated, option, arguments) in options {
        match option.as_str() {
            "--seconds" => seconds = Some(number(&arguments[0])?),
            "--reap" => reap = true,
            "--name" => name.clone_from(&arguments[0]),
            "--mask" => mask = arguments[0].parse().map_err(|_| wrong("mask", &arguments[0]))?,
            "--rsource" => of = PacketDirection::Source,
            "--rdest" => of = PacketDirection::Destination,
            action => word = Some((*negated, action)),
        }
    }
    let Some((negated, word)) = word else {
        return Err(IptablesError::new(
            "match \"recent\" needs one of --set, --rcheck, --update and --remove",
        ));
    };
    let value = match word {
        "--set" => RecentAction::Set,
        "--remove" => RecentAction::Remove,
        "--update" => RecentAction::Update { seconds, reap },
        _ => RecentAction::Check { seconds, reap },
    };
    Ok(Some(IptablesMatch::Recent { action: Negatable { negated, value }, name, mask, of }))
}

fn direction(text: &str) -> Result<PacketDirection, IptablesError> {
    match text {
        "src" => Ok(PacketDirection::Source),
        "dst" => Ok(PacketDirection::Destination),
        _ => Err(wrong("direction (src or dst)", text)),
    }
}

fn ipvs(family: Family, options: &[(bool, String, Vec<String>)]) -> Known<IptablesMatch> {
    let (mut address, mut protocol, mut port_number) = (None, None, None);
    for (negated, option, arguments) in options {
        let negated = *negated;
        let text = &arguments[0];
        match option.as_str() {
            "--vaddr" => address = Some(Negatable { negated, value: address_network(family, text)? }),
            "--vproto" => {
                let value = protocol_number(text).flatten().ok_or_else(|| wrong("protocol", text))?;
                protocol = Some(Negatable { negated, value });
            }
            _ => port_number = Some(Negatable { negated, value: port(text)? }),
        }
    }
    Ok(Some(IptablesMatch::Ipvs { address, protocol, port: port_number }))
}

fn parse_target(family: Family, module: Module, goes: bool) -> Result<IptablesTarget, IptablesError> {
    if goes {
        return Ok(IptablesTarget::Goto(module.name));
    }
    if !is_target(&module.name) && module.options.is_empty() {
        return Ok(IptablesTarget::Jump(module.name));
    }
    let known = if module.is_known { known_target(family, &module)? } else { None };
    Ok(known.unwrap_or_else(|| {
        let (name, options) = module.into_words();
        match PASSIVE_TARGETS.contains(&name.as_str()) {
            true => IptablesTarget::Passive { name, options },
            false => IptablesTarget::Other { name, options },
        }
    }))
}

fn known_target(family: Family, module: &Module) -> Known<IptablesTarget> {
    let Module { name, options, .. } = module;
    let flags = |except: &str| {
        let flags = options.iter().filter(|(_, option, _)| option != except);
        flags
            .flat_map(|(_, option, arguments)| [option.clone()].into_iter().chain(arguments.clone()))
            .collect()
    };
    let argument = |name: &str| {
        options.iter().find(|(_, option, _)| option == name).map(|(_, _, arguments)| arguments[0].as_str())
    };
    Ok(Some(match name.as_str() {
        "ACCEPT" => IptablesTarget::Accept,
        "DROP" => IptablesTarget::Drop,
        "RETURN" => IptablesTarget::Return,
        "REJECT" => {
            let default = match family {
                Family::V4 => "icmp-port-unreachable",
                Family::V6 => "icmp6-port-unreachable",
            };
            IptablesTarget::Reject { with: argument("--reject-with").unwrap_or(default).to_string() }
        }
        "MARK" => match options.as_slice() {
            [(_, option, arguments)] => IptablesTarget::Mark(mark_change(option, &arguments[0])?),
            _ => return Err(IptablesError::new("target \"MARK\" needs exactly one change")),
        },
        "DNAT" => {
            let to = argument("--to-destination")
                .ok_or_else(|| IptablesError::new("target \"DNAT\" needs --to-destination"))?;
            let Some((address, port)) = destination(to) else { return Ok(None) };
            IptablesTarget::Dnat { address, port, options: flags("--to-destination") }
        }
        "SNAT" => match argument("--to-source").map(str::parse) {
            Some(Ok(address)) => IptablesTarget::Snat { address, options: flags("--to-source") },
            _ => return Ok(None),
        },
        "MASQUERADE" => IptablesTarget::Masquerade { options: flags("") },
        _ => return Ok(None),
    }))
}

fn mark_change(option: &str, text: &str) -> Result<MarkChange, IptablesError> {
    let (value, mask) = masked(text)?;
    Ok(match option {
        "--set-xmark" => MarkChange { value, mask: mask.unwrap_or(u32::MAX) },
        "--set-mark" => MarkChange { value, mask: mask.unwrap_or(u32::MAX) | value },
        "--or-mark" => MarkChange { value, mask: value },
        "--and-mark" => MarkChange { value: 0, mask: !value },
        _ => MarkChange { value, mask: 0 },
    })
}

/// A single destination; ranges are none.
fn destination(text: &str) -> Option<(Option<IpAddr>, Option<u16>)> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some((Some(address.ip()), Some(address.port())));
    }
    if let Ok(address) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Some((Some(address), None));
    }
    text.strip_prefix(':')?.parse().ok().map(|port| (None, Some(port)))
}
