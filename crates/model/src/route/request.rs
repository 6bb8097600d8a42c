//! What routing looks at in a request, and which condition of a match it misses.

use crate::name::Name;
use crate::route::rule::{Conditions, HeaderMatch, QueryMatch, ValueTest};

/// A request, as far as routing looks at it. Nothing is copied.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The method.
    pub method: &'a str,
    /// The host as it came, with or without a port.
    pub host: &'a str,
    /// The path, normalised by [`super::path::normalize`], without the query.
    pub path: &'a str,
    /// What stands behind the question mark.
    pub query: Option<&'a str>,
    /// The headers.
    pub headers: &'a dyn HeaderLines,
}

/// Headers of whatever kind.
pub trait HeaderLines {
    /// Whether a line of the header passes. The name is in lower case; whoever has mixed case compares so.
    fn any(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool;
}

/// Headers as a list, in the order of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderList(pub Vec<(Name, Name)>);

impl HeaderLines for HeaderList {
    fn any(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.0.iter().any(|(n, value)| n.eq_ignore_ascii_case(name) && test(value.as_bytes()))
    }
}

/// The condition that a request does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss<'m> {
    /// The method.
    Method(&'m Name),
    /// A header.
    Header(&'m HeaderMatch),
    /// A query parameter.
    Query(&'m QueryMatch),
}

impl Conditions {
    /// The first condition that the request does not meet; `None` if it meets all.
    pub fn first_miss(&self, request: &Request<'_>) -> Option<Miss<'_>> {
        if let Some(method) = self.method.as_ref().filter(|method| method.as_str() != request.method) {
            return Some(Miss::Method(method));
        }
        if let Some(header) = self.headers.iter().find(|header| !header.holds(request)) {
            return Some(Miss::Header(header));
        }
        self.query.iter().find(|query| !query.holds(request.query)).map(Miss::Query)
    }
}

impl HeaderMatch {
    /// Lines of one name are tried one by one, never joined (semantics 1.6).
    fn holds(&self, request: &Request<'_>) -> bool {
        let passes = |test: &mut dyn FnMut(&[u8]) -> bool| match self.name.as_str() {
            // The host is no header in HTTP/2; here it always is one.
            "host" | ":authority" => test(request.host.as_bytes()),
            name => request.headers.any(name, test),
        };
        match &self.test {
            ValueTest::Absent => !passes(&mut |_| true),
            test => passes(&mut |value| test.passes(value)),
        }
    }
}

impl QueryMatch {
    /// The first value of the name counts, as it was sent (semantics 1.6).
    fn holds(&self, query: Option<&str>) -> bool {
        let pairs = query.unwrap_or_default().split('&');
        let mut pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let first = pairs.find(|(name, _)| *name == self.name.as_str());
        first.is_some_and(|(_, value)| self.test.passes(value.as_bytes()))
    }
}
