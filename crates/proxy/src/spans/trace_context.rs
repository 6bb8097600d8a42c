//! W3C Trace Context: `traceparent` and `tracestate`.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::random::SharedRandom;

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(crate) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The flag of a trace that is recorded.
const SAMPLED: u8 = 1;
/// The flag of a trace id whose last seven bytes are random (level 2); ours are, but level 1 has to send 0.
const RANDOM: u8 = 2;

/// A position in a trace: the span that a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    /// Never 0.
    pub(crate) trace_id: u128,
    /// Never 0.
    pub(crate) span_id: u64,
    flags: u8,
}

impl TraceContext {
    /// The context of a request. `None` if it has none, or a malformed or ambiguous one.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut lines = headers.get_all(TRACEPARENT).iter();
        match (lines.next(), lines.next()) {
            (Some(line), None) => Self::parse(line.as_bytes()),
            _ => None,
        }
    }

    /// W3C Trace Context, 3.2: fields of version 00; later versions may append more.
    fn parse(text: &[u8]) -> Option<Self> {
        let field = |from: usize, to: usize| hexadecimal(text.get(from..to)?);
        let version = field(0, 2)?;
        let is_complete = match text.get(55) {
            None => true,
            Some(next) => version > 0 && *next == b'-',
        };
        let has_dashes = [2, 35, 52].iter().all(|at| text.get(*at) == Some(&b'-'));
        let trace_id = field(3, 35)?;
        let span_id = u64::try_from(field(36, 52)?).ok()?;
        let flags = u8::try_from(field(53, 55)?).ok()? & (SAMPLED | RANDOM);
        let is_valid = version != 0xff && is_complete && has_dashes && trace_id != 0 && span_id != 0;
        is_valid.then_some(Self { trace_id, span_id, flags })
    }

    /// A new trace, sampled by ratio.
    pub(crate) fn root(random: &SharedRandom, ratio: SamplingRatio) -> Self {
        let trace_id = (u128::from(random.next()) << 64 | u128::from(random.next())).max(1);
        let flags = if ratio.samples(trace_id) { SAMPLED } else { 0 };
        Self { trace_id, span_id: random.next().max(1), flags }
    }

    /// A new span of the same trace.
    pub(crate) fn child(self, random: &SharedRandom) -> Self {
        Self { span_id: random.next().max(1), ..self }
    }

    pub(crate) fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    pub(crate) fn flags(self) -> u8 {
        self.flags
    }

    pub(crate) fn header(self) -> HeaderValue {
        HeaderValue::try_from(self.to_string()).expect("hexadecimal digits and dashes are a valid header")
    }
}

/// As `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

/// Lower-case digits only.
fn hexadecimal(text: &[u8]) -> Option<u128> {
    text.iter().try_fold(0, |sum: u128, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        Some(sum << 4 | u128::from(digit))
    })
}

/// The share of new traces that are recorded. By the trace id, so that all proxies with one ratio agree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SamplingRatio {
    /// Of 2^63.
    bound: u64,
}

impl SamplingRatio {
    pub(crate) fn new(ratio: f64) -> Self {
        Self { bound: (ratio.clamp(0.0, 1.0) * (1_u64 << 63) as f64) as u64 }
    }

    /// As TraceIdRatioBased of the OpenTelemetry SDKs.
    fn samples(self, trace_id: u128) -> bool {
        (trace_id as u64) >> 1 < self.bound
    }
}

/// W3C Trace Context, 3.3: members of a list, and bytes that have to be propagated.
const MAX_MEMBERS: usize = 32;
const MAX_BYTES: usize = 512;
/// Longer members are removed first.
const LONG_MEMBER: usize = 128;

/// The `tracestate` of a request as one header, cut to whole members. `None` if there is none, or a malformed one.
pub(crate) fn trace_state(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut members = Vec::new();
    for line in headers.get_all(TRACESTATE) {
        for member in line.to_str().ok()?.split(',').map(|member| member.trim_matches([' ', '\t'])) {
            if member.is_empty() {
                continue;
            }
            if members.len() == MAX_MEMBERS || !is_member(member) {
                return None;
            }
            members.push(member);
        }
    }
    let length = |members: &[&str]| members.iter().map(|member| member.len() + 1).sum::<usize>() - 1;
    while !members.is_empty() && length(&members) > MAX_BYTES {
        let last_long = members.iter().rposition(|member| member.len() > LONG_MEMBER);
        members.remove(last_long.unwrap_or(members.len() - 1));
    }
    if members.is_empty() { None } else { HeaderValue::try_from(members.join(",")).ok() }
}

fn is_member(member: &str) -> bool {
    let Some((key, value)) = member.split_once('=') else { return false };
    let is_key_byte = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'*' | b'/' | b'@')
    };
    let starts = key.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let is_value_byte = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'=';
    starts
        && key.len() <= 256
        && key.bytes().all(is_key_byte)
        && (1..=256).contains(&value.len())
        && value.bytes().all(is_value_byte)
}

#[cfg(test)]
mod tests;
