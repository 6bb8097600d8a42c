//! Questions and records, without their encoding.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::DnsName;

/// A question of class IN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsQuestion {
    pub name: DnsName,
    pub kind: DnsQueryType,
}

/// The type of a question, as far as answers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DnsQueryType {
    A,
    Aaaa,
    Cname,
    Ns,
    Ptr,
    Soa,
    Srv,
    Txt,
    /// AXFR and IXFR.
    Transfer,
    Other,
}

impl DnsQueryType {
    /// By the number in a message.
    pub fn from_number(number: u16) -> Self {
        match number {
            1 => Self::A,
            2 => Self::Ns,
            5 => Self::Cname,
            6 => Self::Soa,
            12 => Self::Ptr,
            16 => Self::Txt,
            28 => Self::Aaaa,
            33 => Self::Srv,
            251 | 252 => Self::Transfer,
            _ => Self::Other,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::Aaaa => "AAAA",
            Self::Cname => "CNAME",
            Self::Ns => "NS",
            Self::Ptr => "PTR",
            Self::Soa => "SOA",
            Self::Srv => "SRV",
            Self::Txt => "TXT",
            Self::Transfer => "AXFR",
            Self::Other => "other",
        }
    }
}

/// By name, in any case.
impl std::str::FromStr for DnsQueryType {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.to_ascii_uppercase().as_str() {
            "A" => Self::A,
            "AAAA" => Self::Aaaa,
            "CNAME" => Self::Cname,
            "NS" => Self::Ns,
            "PTR" => Self::Ptr,
            "SOA" => Self::Soa,
            "SRV" => Self::Srv,
            "TXT" => Self::Txt,
            "AXFR" | "IXFR" => Self::Transfer,
            "ANY" | "CAA" | "HTTPS" | "MX" | "NAPTR" | "SVCB" => Self::Other,
            _ => return Err("expected a record type such as A, AAAA, SRV or PTR"),
        })
    }
}

/// A resource record of class IN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsRecord {
    pub name: DnsName,
    pub ttl: u32,
    pub data: DnsRecordData,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsRecordData {
    A(Ipv4Addr),
    Aaaa(Ipv6Addr),
    Cname(DnsName),
    Ns(DnsName),
    Ptr(DnsName),
    Soa { mname: DnsName, rname: DnsName, serial: u32, refresh: u32, retry: u32, expire: u32, minimum: u32 },
    Srv { priority: u16, weight: u16, port: u16, target: DnsName },
    Txt(String),
}

impl DnsRecordData {
    pub(super) fn address(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::A(v4),
            IpAddr::V6(v6) => Self::Aaaa(v6),
        }
    }

    /// Whether it is an A or AAAA record.
    pub fn is_address(&self) -> bool {
        matches!(self, Self::A(_) | Self::Aaaa(_))
    }

    pub fn kind(&self) -> DnsQueryType {
        match self {
            Self::A(_) => DnsQueryType::A,
            Self::Aaaa(_) => DnsQueryType::Aaaa,
            Self::Cname(_) => DnsQueryType::Cname,
            Self::Ns(_) => DnsQueryType::Ns,
            Self::Ptr(_) => DnsQueryType::Ptr,
            Self::Soa { .. } => DnsQueryType::Soa,
            Self::Srv { .. } => DnsQueryType::Srv,
            Self::Txt(_) => DnsQueryType::Txt,
        }
    }
}

/// As in a zone file.
impl fmt::Display for DnsRecordData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::A(address) => address.fmt(f),
            Self::Aaaa(address) => address.fmt(f),
            Self::Cname(name) | Self::Ns(name) | Self::Ptr(name) => name.fmt(f),
            Self::Soa { mname, rname, serial, refresh, retry, expire, minimum } => {
                write!(f, "{mname} {rname} {serial} {refresh} {retry} {expire} {minimum}")
            }
            Self::Srv { priority, weight, port, target } => write!(f, "{priority} {weight} {port} {target}"),
            Self::Txt(text) => write!(f, "{text:?}"),
        }
    }
}

impl fmt::Display for DnsRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} IN {} {}", self.name, self.ttl, self.data.kind().as_str(), self.data)
    }
}
