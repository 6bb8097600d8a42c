//! The parts of a request that routing reads, and the first condition of a match that a request does not meet.

use crate::name::Name;
use crate::route::rule::{HeaderMatch, MatchConditions, QueryMatch, ValueTest};

/// A borrowed view of a request.
#[derive(Clone, Copy)]
pub struct RequestView<'a> {
    pub method: &'a str,
    /// May include a port.
    pub host: &'a str,
    /// Normalised by `PathNormalization::normalize`, without the query.
    pub path: &'a str,
    pub query: Option<&'a str>,
    pub headers: &'a dyn HeaderLines,
}

/// Access to the headers of a request.
pub trait HeaderLines {
    /// Whether a line of the header passes. `name` is in lower case; names are compared case-insensitively.
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

/// A condition that a request does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmetCondition<'m> {
    Method(&'m Name),
    Header(&'m HeaderMatch),
    Query(&'m QueryMatch),
}

impl MatchConditions {
    /// The first condition that the request does not meet; `None` if it meets all.
    pub fn first_miss(&self, request: &RequestView<'_>) -> Option<UnmetCondition<'_>> {
        if let Some(method) = self.method.as_ref().filter(|method| method.as_str() != request.method) {
            return Some(UnmetCondition::Method(method));
        }
        if let Some(header) = self.headers.iter().find(|header| !header.holds(request)) {
            return Some(UnmetCondition::Header(header));
        }
        self.query.iter().find(|query| !query.holds(request.query)).map(UnmetCondition::Query)
    }
}

impl HeaderMatch {
    /// Lines of one name are tested one by one, never joined (semantics 1.6).
    fn holds(&self, request: &RequestView<'_>) -> bool {
        let passes = |test: &mut dyn FnMut(&[u8]) -> bool| match self.name.as_str() {
            // The host counts as a header in HTTP/2 as well.
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
    /// Tests the first value of the name, as sent (semantics 1.6).
    fn holds(&self, query: Option<&str>) -> bool {
        let pairs = query.unwrap_or_default().split('&');
        let mut pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let first = pairs.find(|(name, _)| *name == self.name.as_str());
        first.is_some_and(|(_, value)| self.test.passes(value.as_bytes()))
    }
}
