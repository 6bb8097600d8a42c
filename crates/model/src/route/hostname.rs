//! Host names of listeners and routes: exact, by suffix, or any.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use crate::name::Name;

/// A host name that requests are matched against.
///
/// [`Hostname::rank`] is the order of precedence; the order of values is one for maps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hostname {
    Exact(Name),
    /// A wildcard: `*.example.com` is stored as `example.com`. Matches any depth, but not the name itself.
    Below(Name),
    Any,
}

impl Hostname {
    /// Parses `example.com`, `*.example.com` or `*`, which must be valid.
    pub fn parse(text: &str) -> Self {
        match text.strip_prefix("*.") {
            Some(suffix) => Self::Below(Name::new(suffix)),
            None if text == "*" => Self::Any,
            None => Self::Exact(Name::new(text)),
        }
    }

    /// Whether every host of `other` is one of this.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Below(suffix), Self::Exact(name)) => is_below(name, suffix),
            (Self::Below(suffix), Self::Below(name)) => name == suffix || is_below(name, suffix),
            (Self::Exact(a), Self::Exact(b)) => a == b,
            _ => false,
        }
    }

    /// Every other host name that covers this one, the most specific first.
    pub fn wider(&self) -> impl Iterator<Item = Self> {
        let (name, any) = match self {
            Self::Exact(name) | Self::Below(name) => (name.as_str(), Some(Self::Any)),
            Self::Any => ("", None),
        };
        let dots = name.char_indices().filter(|(at, letter)| *letter == '.' && *at > 0);
        dots.map(move |(at, _)| Self::Below(Name::new(&name[at + 1..]))).chain(any)
    }

    /// Whether it matches more than one host.
    pub fn is_wide(&self) -> bool {
        !matches!(self, Self::Exact(_))
    }

    /// The hosts that both match: the more specific of the two, or none (semantics 1.6).
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        if self.covers(other) { Some(other.clone()) } else { other.covers(self).then(|| self.clone()) }
    }

    /// The order of precedence: exact, then longer suffixes, then any; equals by name.
    pub fn rank(&self) -> (u8, std::cmp::Reverse<usize>, &str) {
        match self {
            Self::Exact(name) => (0, std::cmp::Reverse(0), name),
            Self::Below(suffix) => (1, std::cmp::Reverse(suffix.len()), suffix),
            Self::Any => (2, std::cmp::Reverse(0), ""),
        }
    }
}

fn is_below(name: &str, suffix: &str) -> bool {
    name.strip_suffix(suffix).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => name.fmt(f),
            Self::Below(suffix) => write!(f, "*.{suffix}"),
            Self::Any => f.write_str("*"),
        }
    }
}

/// A value per host name; the most specific name that covers a host wins.
#[derive(Clone, Debug, PartialEq)]
pub struct HostMap<T> {
    exact: BTreeMap<Name, T>,
    below: BTreeMap<Name, T>,
    any: Option<T>,
}

impl<T> Default for HostMap<T> {
    fn default() -> Self {
        Self { exact: BTreeMap::new(), below: BTreeMap::new(), any: None }
    }
}

impl<T> HostMap<T> {
    pub fn insert(&mut self, host: &Hostname, value: T) {
        match host {
            Hostname::Exact(name) => drop(self.exact.insert(name.clone(), value)),
            Hostname::Below(suffix) => drop(self.below.insert(suffix.clone(), value)),
            Hostname::Any => self.any = Some(value),
        }
    }

    pub fn remove(&mut self, host: &Hostname) {
        match host {
            Hostname::Exact(name) => drop(self.exact.remove(name)),
            Hostname::Below(suffix) => drop(self.below.remove(suffix)),
            Hostname::Any => self.any = None,
        }
    }

    /// The value of exactly this host name.
    pub fn at(&self, host: &Hostname) -> Option<&T> {
        match host {
            Hostname::Exact(name) => self.exact.get(name),
            Hostname::Below(suffix) => self.below.get(suffix),
            Hostname::Any => self.any.as_ref(),
        }
    }

    /// The value for the host of a request, which may include a port.
    pub fn find(&self, host: &str) -> Option<&T> {
        let host = plain_host(host);
        if let Some(found) = self.exact.get(&*host) {
            return Some(found);
        }
        let mut rest: &str = &host;
        // Every step removes a label.
        while let Some((_, suffix)) = rest.split_once('.').filter(|_| !self.below.is_empty()) {
            if let Some(found) = self.below.get(suffix).filter(|_| host.len() > suffix.len() + 1) {
                return Some(found);
            }
            rest = suffix;
        }
        self.any.as_ref()
    }

    /// The most specific first.
    pub fn iter(&self) -> impl Iterator<Item = (Hostname, &T)> {
        let exact = self.exact.iter().map(|(name, value)| (Hostname::Exact(name.clone()), value));
        let mut below: Vec<_> = self.below.iter().collect();
        below.sort_by_key(|(suffix, _)| std::cmp::Reverse(suffix.len()));
        let below = below.into_iter().map(|(suffix, value)| (Hostname::Below(suffix.clone()), value));
        exact.chain(below).chain(self.any.iter().map(|value| (Hostname::Any, value)))
    }
}

/// A host in lower case, without port and trailing dot (semantics 1.6: ports are ignored).
pub fn plain_host(host: &str) -> Cow<'_, str> {
    let bare = match host.rsplit_once(':') {
        // `[::1]:80` has a port, `[::1]` has none.
        Some((name, port)) if !port.contains(']') && port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = bare.strip_suffix('.').unwrap_or(bare);
    if bare.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(bare.to_ascii_lowercase())
    } else {
        Cow::Borrowed(bare)
    }
}
