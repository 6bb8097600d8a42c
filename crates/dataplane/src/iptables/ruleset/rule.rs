//! One rule: what it matches and what it does. `Display` is the spelling of iptables-save.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::RuleCounters;
use super::bpf::BpfProgram;

/// A condition that `!` may invert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negatable<T> {
    pub negated: bool,
    pub value: T,
}

impl<T> Negatable<T> {
    /// Whether the condition holds, given whether its value does.
    pub(super) fn holds(&self, test: impl FnOnce(&T) -> bool) -> bool {
        test(&self.value) != self.negated
    }
}

/// `--probability` is stored as the kernel does: in 2^-31.
pub(super) const FULL_PROBABILITY: u32 = 1 << 31;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IptablesRule {
    pub counters: RuleCounters,
    pub source: Option<Negatable<IpNet>>,
    pub destination: Option<Negatable<IpNet>>,
    /// A trailing `+` matches any rest.
    pub in_interface: Option<Negatable<String>>,
    pub out_interface: Option<Negatable<String>>,
    /// The IP protocol number.
    pub protocol: Option<Negatable<u8>>,
    pub matches: Vec<IptablesMatch>,
    pub target: Option<IptablesTarget>,
}

impl IptablesRule {
    /// The text of its comments.
    pub fn comment(&self) -> Option<&str> {
        self.matches.iter().find_map(|found| match found {
            IptablesMatch::Comment(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// The user chain that it jumps or goes to.
    pub fn chain(&self) -> Option<&str> {
        match self.target.as_ref()? {
            IptablesTarget::Jump(chain) | IptablesTarget::Goto(chain) => Some(chain),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl PortRange {
    pub(super) fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

/// `-m conntrack --ctstate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConntrackStates {
    pub invalid: bool,
    pub new: bool,
    pub related: bool,
    pub established: bool,
    pub untracked: bool,
    pub snat: bool,
    pub dnat: bool,
}

/// `-m addrtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddrtypeKind {
    Local,
    Unicast,
    Multicast,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketDirection {
    Source,
    Destination,
}

/// Which ports of a packet `-m multiport` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortsOf {
    Source,
    Destination,
    Either,
}

/// `-m recent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecentAction {
    Set,
    Check { seconds: Option<u32>, reap: bool },
    Update { seconds: Option<u32>, reap: bool },
    Remove,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IptablesMatch {
    Comment(String),
    /// `-m tcp`, `-m udp`, `-m sctp`.
    Ports {
        protocol: u8,
        source: Option<Negatable<PortRange>>,
        destination: Option<Negatable<PortRange>>,
        /// `--syn`; the value says nothing.
        syn: Option<Negatable<()>>,
    },
    Multiport {
        of: PortsOf,
        ports: Negatable<Vec<PortRange>>,
    },
    /// `-m conntrack --ctstate`, or `-m state --state`.
    Conntrack {
        states: Negatable<ConntrackStates>,
        is_state: bool,
    },
    AddressTypes {
        source: Option<Negatable<AddrtypeKind>>,
        destination: Option<Negatable<AddrtypeKind>>,
    },
    /// In 2^-31.
    Random {
        probability: Negatable<u32>,
    },
    Recent {
        action: Negatable<RecentAction>,
        name: String,
        /// The bits of the address that count.
        mask: IpAddr,
        of: PacketDirection,
    },
    /// `(mark & mask) == value`.
    Mark(Negatable<(u32, u32)>),
    /// `--physdev-is-in`.
    FromBridgePort(Negatable<()>),
    Set {
        name: Negatable<String>,
        of: Vec<PacketDirection>,
    },
    Bpf(BpfProgram),
    Nfacct(String),
    /// `-m ipvs` with the virtual address that a packet was sent to.
    Ipvs {
        address: Option<Negatable<IpNet>>,
        protocol: Option<Negatable<u8>>,
        port: Option<Negatable<u16>>,
    },
    /// A match that this evaluator does not know.
    Other {
        module: String,
        options: Vec<String>,
    },
}

/// `MARK`: the new mark is `(mark & !mask) ^ value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkChange {
    pub value: u32,
    pub mask: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IptablesTarget {
    Accept,
    Drop,
    Return,
    Reject {
        with: String,
    },
    Mark(MarkChange),
    /// The port stays if it is absent. `options` are flags such as `--persistent`.
    Dnat {
        address: Option<IpAddr>,
        port: Option<u16>,
        options: Vec<String>,
    },
    Snat {
        address: IpAddr,
        options: Vec<String>,
    },
    Masquerade {
        options: Vec<String>,
    },
    Jump(String),
    Goto(String),
    /// A target that neither ends the chain nor changes what later rules match, such as `LOG`.
    Passive {
        name: String,
        options: Vec<String>,
    },
    /// A target that this evaluator does not know.
    Other {
        name: String,
        options: Vec<String>,
    },
}

impl fmt::Display for IptablesRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        option(f, "-s", &self.source)?;
        option(f, "-d", &self.destination)?;
        option(f, "-i", &self.in_interface)?;
        option(f, "-o", &self.out_interface)?;
        if let Some(protocol) = &self.protocol {
            write!(f, "{} -p {}", not(protocol.negated), protocol_name(protocol.value))?;
        }
        self.matches.iter().try_for_each(|found| found.fmt(f))?;
        self.target.iter().try_for_each(|target| target.fmt(f))
    }
}

fn not(negated: bool) -> &'static str {
    if negated { " !" } else { "" }
}

fn option<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    value: &Option<Negatable<T>>,
) -> fmt::Result {
    let Some(Negatable { negated, value }) = value else { return Ok(()) };
    write!(f, "{} {name} {value}", not(*negated))
}

const PROTOCOL_NAMES: [(u8, &str); 8] = [
    (1, "icmp"),
    (6, "tcp"),
    (17, "udp"),
    (47, "gre"),
    (50, "esp"),
    (58, "ipv6-icmp"),
    (132, "sctp"),
    (136, "udplite"),
];

pub(super) fn protocol_name(number: u8) -> String {
    let found = PROTOCOL_NAMES.iter().find(|(candidate, _)| *candidate == number);
    found.map_or_else(|| number.to_string(), |(_, name)| (*name).to_string())
}

/// `None` for all protocols.
pub(super) fn protocol_number(text: &str) -> Option<Option<u8>> {
    let lower = text.to_ascii_lowercase();
    if lower == "all" || lower == "0" {
        return Some(None);
    }
    let named = match lower.as_str() {
        "icmpv6" => Some(58),
        name => PROTOCOL_NAMES.iter().find(|(_, known)| *known == name).map(|(number, _)| *number),
    };
    named.or_else(|| lower.parse().ok()).map(Some)
}

/// As iptables prints strings: quoted if they hold more than letters, digits, `_` and `-`.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_string();
    }
    let mut out = String::from('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\' | '\'') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
    out
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}:{}", self.first, self.last),
        }
    }
}

impl fmt::Display for ConntrackStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states = [
            (self.invalid, "INVALID"),
            (self.new, "NEW"),
            (self.related, "RELATED"),
            (self.established, "ESTABLISHED"),
            (self.untracked, "UNTRACKED"),
            (self.snat, "SNAT"),
            (self.dnat, "DNAT"),
        ];
        let names: Vec<&str> = states.iter().filter(|(is_set, _)| *is_set).map(|(_, name)| *name).collect();
        f.write_str(&names.join(","))
    }
}

impl fmt::Display for AddrtypeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "LOCAL",
            Self::Unicast => "UNICAST",
            Self::Multicast => "MULTICAST",
        })
    }
}

impl PacketDirection {
    fn as_str(self) -> &'static str {
        match self {
            Self::Source => "src",
            Self::Destination => "dst",
        }
    }
}

impl fmt::Display for IptablesMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Comment(text) => write!(f, " -m comment --comment {}", quoted(text)),
            Self::Ports { protocol, source, destination, syn } => {
                write!(f, " -m {}", protocol_name(*protocol))?;
                option(f, "--sport", source)?;
                option(f, "--dport", destination)?;
                syn.as_ref()
                    .map_or(Ok(()), |syn| write!(f, "{} --tcp-flags FIN,SYN,RST,ACK SYN", not(syn.negated)))
            }
            Self::Multiport { of, ports } => {
                let name = match of {
                    PortsOf::Source => "--sports",
                    PortsOf::Destination => "--dports",
                    PortsOf::Either => "--ports",
                };
                let list: Vec<String> = ports.value.iter().map(PortRange::to_string).collect();
                write!(f, " -m multiport{} {name} {}", not(ports.negated), list.join(","))
            }
            Self::Conntrack { states: Negatable { negated, value }, is_state } => {
                let module = if *is_state { ("state", "--state") } else { ("conntrack", "--ctstate") };
                write!(f, " -m {}{} {} {value}", module.0, not(*negated), module.1)
            }
            Self::AddressTypes { source, destination } => {
                f.write_str(" -m addrtype")?;
                option(f, "--src-type", source)?;
                option(f, "--dst-type", destination)
            }
            Self::Random { probability: Negatable { negated, value } } => {
                let share = f64::from(*value) / f64::from(FULL_PROBABILITY);
                write!(f, " -m statistic --mode random{} --probability {share:.11}", not(*negated))
            }
            Self::Recent { action, name, mask, of } => recent(f, action, name, *mask, *of),
            Self::Mark(Negatable { negated, value: (value, mask) }) => {
                write!(f, " -m mark{} --mark {value:#x}", not(*negated))?;
                if *mask == u32::MAX { Ok(()) } else { write!(f, "/{mask:#x}") }
            }
            Self::FromBridgePort(Negatable { negated, .. }) => {
                write!(f, " -m physdev{} --physdev-is-in", not(*negated))
            }
            Self::Set { name, of } => {
                let of: Vec<&str> = of.iter().map(|direction| direction.as_str()).collect();
                write!(f, " -m set{} --match-set {} {}", not(name.negated), name.value, of.join(","))
            }
            Self::Bpf(program) => write!(f, " -m bpf --bytecode \"{program}\""),
            Self::Nfacct(name) => write!(f, " -m nfacct --nfacct-name {name}"),
            Self::Ipvs { address, protocol, port } => {
                f.write_str(" -m ipvs")?;
                if let Some(protocol) = protocol {
                    write!(f, "{} --vproto {}", not(protocol.negated), protocol.value)?;
                }
                option(f, "--vaddr", address)?;
                option(f, "--vport", port)
            }
            Self::Other { module, options } => {
                write!(f, " -m {module}")?;
                words(f, options)
            }
        }
    }
}

fn recent(
    f: &mut fmt::Formatter<'_>,
    action: &Negatable<RecentAction>,
    name: &str,
    mask: IpAddr,
    of: PacketDirection,
) -> fmt::Result {
    let (word, seconds, reap) = match action.value {
        RecentAction::Set => ("--set", None, false),
        RecentAction::Remove => ("--remove", None, false),
        RecentAction::Check { seconds, reap } => ("--rcheck", seconds, reap),
        RecentAction::Update { seconds, reap } => ("--update", seconds, reap),
    };
    write!(f, " -m recent{} {word}", not(action.negated))?;
    if let Some(seconds) = seconds {
        write!(f, " --seconds {seconds}")?;
    }
    if reap {
        f.write_str(" --reap")?;
    }
    let side = if of == PacketDirection::Source { "--rsource" } else { "--rdest" };
    write!(f, " --name {name} --mask {mask} {side}")
}

fn words(f: &mut fmt::Formatter<'_>, words: &[String]) -> fmt::Result {
    words.iter().try_for_each(|word| {
        let is_option = word.starts_with('-') || word == "!";
        if is_option { write!(f, " {word}") } else { write!(f, " {}", quoted_word(word)) }
    })
}

/// A word of an unknown option: quoted only if it has to be.
fn quoted_word(word: &str) -> String {
    let needs = word.is_empty() || word.chars().any(|c| c.is_whitespace() || matches!(c, '"' | '\\' | '\''));
    if needs { quoted(word) } else { word.to_string() }
}

impl fmt::Display for IptablesTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str(" -j ACCEPT"),
            Self::Drop => f.write_str(" -j DROP"),
            Self::Return => f.write_str(" -j RETURN"),
            Self::Reject { with } => write!(f, " -j REJECT --reject-with {with}"),
            Self::Mark(MarkChange { value, mask }) => write!(f, " -j MARK --set-xmark {value:#x}/{mask:#x}"),
            Self::Dnat { address, port, options } => {
                f.write_str(" -j DNAT --to-destination ")?;
                match (address, port) {
                    (Some(address), Some(port)) => write!(f, "{}", SocketAddr::new(*address, *port)),
                    (Some(address), None) => write!(f, "{address}"),
                    (None, port) => write!(f, ":{}", port.unwrap_or_default()),
                }?;
                words(f, options)
            }
            Self::Snat { address, options } => {
                write!(f, " -j SNAT --to-source {address}")?;
                words(f, options)
            }
            Self::Masquerade { options } => {
                f.write_str(" -j MASQUERADE")?;
                words(f, options)
            }
            Self::Jump(chain) => write!(f, " -j {chain}"),
            Self::Goto(chain) => write!(f, " -g {chain}"),
            Self::Passive { name, options } | Self::Other { name, options } => {
                write!(f, " -j {name}")?;
                words(f, options)
            }
        }
    }
}
