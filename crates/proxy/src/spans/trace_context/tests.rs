//! The examples of the specification, malformed headers, bounds, and the ratio of sampling.

use model::random::Random;
use proptest::prelude::*;

use super::*;

const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).expect("a header"));
    }
    headers
}

fn context(text: &str) -> Option<TraceContext> {
    TraceContext::of(&headers(&[("traceparent", text)]))
}

fn random() -> SharedRandom {
    SharedRandom::new(Random::seeded(7))
}

#[test]
fn a_traceparent_is_read_and_written() {
    let read = context(VALID).expect("the example of the specification");
    assert_eq!(read.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
    assert_eq!((read.span_id, read.is_sampled()), (0x00f0_67aa_0ba9_02b7, true));
    assert_eq!(read.header(), VALID);
    assert!(!context(&VALID.replace("-01", "-00")).expect("valid").is_sampled());
    // Unknown flags are not passed on; the random flag of level 2 is.
    assert_eq!(context(&VALID.replace("-01", "-ff")).expect("valid").header(), VALID.replace("-01", "-03"));
}

#[test]
fn later_versions_may_append_fields() {
    for later in
        ["cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", &format!("01{}-what", &VALID[2..])]
    {
        assert_eq!(context(later).expect("a later version").header(), VALID, "{later}");
    }
    assert_eq!(context(&format!("01{}.what", &VALID[2..])), None);
}

#[test]
fn a_malformed_traceparent_is_no_context() {
    for malformed in [
        "",
        "00",
        "00-",
        "-",
        &VALID[..54],
        &format!("{VALID}-"),
        &format!("{VALID}-more"),
        &format!("ff{}", &VALID[2..]),
        &VALID.to_uppercase(),
        &VALID.replace('-', "_"),
        &VALID.replace("4bf9", "4bg9"),
        &VALID.replace("4bf9", "+bf9"),
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-é1",
    ] {
        assert_eq!(context(malformed), None, "{malformed}");
    }
    let twice = headers(&[("traceparent", VALID), ("traceparent", VALID)]);
    assert_eq!(TraceContext::of(&twice), None, "ambiguous");
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        if let Some(context) = TraceContext::parse(&bytes) {
            prop_assert_eq!(TraceContext::parse(context.to_string().as_bytes()), Some(context));
        }
    }

    #[test]
    fn any_tracestate_is_within_the_bounds(lines in proptest::collection::vec("[ -~\t]{0,300}", 0..8)) {
        let lines: Vec<_> = lines.iter().map(|line| ("tracestate", line.as_str())).collect();
        let state = trace_state(&headers(&lines));
        prop_assert!(state.is_none_or(|state| (1..=MAX_BYTES).contains(&state.len())));
    }
}

#[test]
fn ids_differ_and_are_never_zero() {
    let random = random();
    let root = TraceContext::root(&random, SamplingRatio::new(1.0));
    let child = root.child(&random);
    assert_eq!((child.trace_id, child.is_sampled()), (root.trace_id, true));
    assert_ne!(child.span_id, root.span_id);
    let other = TraceContext::root(&random, SamplingRatio::new(1.0));
    assert!(other.trace_id != root.trace_id && other.trace_id != 0 && other.span_id != 0);
    assert_eq!(TraceContext::of(&headers(&[("traceparent", &other.to_string())])), Some(other));
}

#[test]
fn the_ratio_of_new_traces_is_sampled() {
    let random = random();
    let sampled = |ratio: f64| {
        let ratio = SamplingRatio::new(ratio);
        (0..10_000).filter(|_| TraceContext::root(&random, ratio).is_sampled()).count()
    };
    assert_eq!((sampled(0.0), sampled(1.0)), (0, 10_000));
    let tenth = sampled(0.1);
    assert!((900..1_100).contains(&tenth), "{tenth} of 10,000");
}

#[test]
fn a_tracestate_is_joined_and_validated() {
    let state = |lines: &[&str]| {
        let lines: Vec<_> = lines.iter().map(|line| ("tracestate", *line)).collect();
        trace_state(&headers(&lines)).map(|state| state.to_str().expect("text").to_owned())
    };
    assert_eq!(
        state(&["rojo=00f067aa0ba902b7 ,\tcongo=t61rcWkgMzE"]).as_deref(),
        Some("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")
    );
    assert_eq!(state(&["a=1,,", "1t@b=2"]).as_deref(), Some("a=1,1t@b=2"));
    for malformed in
        ["", ",", "a", "a=", "A=1", "=1", "a b=1", "a=1=2", "a=é", &format!("{}=1", "k".repeat(257))]
    {
        assert_eq!(state(&[malformed]), None, "{malformed}");
    }
    let members = |count: usize| (0..count).map(|i| format!("k{i}=v")).collect::<Vec<_>>().join(",");
    assert!(state(&[&members(32)]).is_some());
    assert_eq!(state(&[&members(33)]), None);
}

#[test]
fn a_long_tracestate_loses_long_members_first_and_then_the_last() {
    let short: Vec<String> = (0..10).map(|i| format!("k{i}={}", "v".repeat(60))).collect();
    let long = format!("long={}", "v".repeat(200));
    let all = format!("{},{long},{}", short[..5].join(","), short[5..].join(","));
    let kept = trace_state(&headers(&[("tracestate", &all)])).expect("some of it");
    assert!(kept.len() <= MAX_BYTES && !kept.to_str().expect("text").contains("long"), "{kept:?}");
    assert!(short.join(",").starts_with(kept.to_str().expect("text")), "{kept:?}");
}
