//! Prometheus' text format 0.0.4, read strictly: what a scraper would tolerate fails here.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

/// Counters of Kubernetes without `_total`, and its gauge with it: the names are the ones that dashboards know.
const COUNTERS_WITHOUT_TOTAL: [&str; 2] =
    ["endpoint_slice_controller_changes", "endpoint_slice_controller_syncs"];
const GAUGES_WITH_TOTAL: [&str; 1] = ["kubeproxy_sync_proxy_rules_no_local_endpoints_total"];

pub type Labels = BTreeMap<String, String>;

/// One metric with all of its samples.
#[derive(Debug, Default)]
pub struct Family {
    pub kind: String,
    /// The sample's full name, its labels, its value.
    pub samples: Vec<(String, Labels, f64)>,
}

impl Family {
    /// The names of its labels; buckets' `le` is none.
    pub fn labels(&self) -> BTreeSet<&str> {
        let names = self.samples.iter().flat_map(|(_, labels, _)| labels.keys());
        names.map(String::as_str).filter(|name| *name != "le").collect()
    }

    /// The upper bounds of a histogram.
    pub fn bounds(&self) -> BTreeSet<String> {
        self.samples.iter().filter_map(|(_, labels, _)| labels.get("le").cloned()).collect()
    }

    /// The sum of the samples with these labels.
    pub fn value(&self, wanted: &[(&str, &str)]) -> Option<f64> {
        let has =
            |labels: &Labels| wanted.iter().all(|(k, v)| labels.get(*k).is_some_and(|value| value == v));
        let found: Vec<f64> =
            self.samples.iter().filter(|(_, labels, _)| has(labels)).map(|(_, _, value)| *value).collect();
        (!found.is_empty()).then(|| found.iter().sum())
    }
}

pub type Families = BTreeMap<String, Family>;

/// Reads a page.
pub fn parse(text: &str) -> Families {
    let mut families = Families::new();
    let mut current = String::new();
    assert!(text.ends_with('\n'), "the last line is not ended");
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (what, name, rest) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            match what {
                "HELP" => {
                    assert!(!rest.trim().is_empty(), "{name} has no help");
                    let before = families.insert(name.to_owned(), Family::default());
                    assert!(before.is_none(), "{name} has HELP twice");
                    name.clone_into(&mut current);
                }
                "TYPE" => {
                    assert_eq!(name, current, "TYPE follows the HELP of the same metric");
                    let family = families.get_mut(name).unwrap();
                    assert!(
                        family.kind.is_empty() && family.samples.is_empty(),
                        "{name} has TYPE twice or late"
                    );
                    rest.clone_into(&mut family.kind);
                }
                other => panic!("a comment that is neither HELP nor TYPE: {other}"),
            }
            continue;
        }
        let (name, labels, value) = sample(line);
        let family = families.get_mut(&current).unwrap_or_else(|| panic!("{line} has no family"));
        let is_own = match family.kind.as_str() {
            "histogram" => ["_bucket", "_sum", "_count"].iter().any(|end| name == format!("{current}{end}")),
            "" => panic!("{current} has no TYPE"),
            _ => name == current,
        };
        assert!(is_own, "{line} is below {current}");
        family.samples.push((name, labels, value));
    }
    families
}

fn sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("no sample: {line}"));
    let (name, rest) = line.split_at(end);
    check_name(name, line);
    let (labels, value) = match rest.strip_prefix('{') {
        Some(inner) => {
            let (labels, after) = labels(inner, line);
            (labels, after)
        }
        None => (Labels::new(), rest),
    };
    let value = value.strip_prefix(' ').unwrap_or_else(|| panic!("no space before the value: {line}"));
    (name.to_owned(), labels, value.parse().unwrap_or_else(|_| panic!("no number: {line}")))
}

fn check_name(name: &str, line: &str) {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
    assert!(
        !name.is_empty() && name.chars().all(good) && !name.starts_with(|c: char| c.is_ascii_digit()),
        "{line}"
    );
}

/// Reads up to the closing brace; the rest of the line follows.
fn labels<'l>(text: &'l str, line: &str) -> (Labels, &'l str) {
    let mut labels = Labels::new();
    let mut rest = text;
    loop {
        let (name, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("no label: {line}"));
        check_name(name, line);
        let (mut value, mut escaped, mut end) = (String::new(), false, None);
        for (at, c) in after.char_indices() {
            match (escaped, c) {
                (true, '\\' | '"' | 'n') => (value.push(c), escaped = false).1,
                (true, _) => panic!("a wrong escape: {line}"),
                (false, '\\') => escaped = true,
                (false, '"') => {
                    end = Some(at);
                    break;
                }
                (false, c) => value.push(c),
            }
        }
        assert!(labels.insert(name.to_owned(), value).is_none(), "a label twice: {line}");
        rest = &after[end.unwrap_or_else(|| panic!("an open label: {line}")) + 1..];
        match rest.strip_prefix('}') {
            Some(after) => return (labels, after),
            None => rest = rest.strip_prefix(',').unwrap_or_else(|| panic!("labels: {line}")),
        }
    }
}

/// Types, names and histograms are as Prometheus has them.
pub fn check(families: &Families) {
    for (name, family) in families {
        let is_total = name.ends_with("_total");
        match family.kind.as_str() {
            "counter" => {
                assert!(is_total || COUNTERS_WITHOUT_TOTAL.contains(&name.as_str()), "counter {name}")
            }
            "gauge" => assert!(!is_total || GAUGES_WITH_TOTAL.contains(&name.as_str()), "gauge {name}"),
            "histogram" => check_histogram(name, family),
            other => panic!("{name} is of type {other:?}"),
        }
        let mut seen = BTreeSet::new();
        for (sample, labels, value) in &family.samples {
            assert!(seen.insert((sample, labels)), "{sample} {labels:?} comes twice");
            assert!(family.kind == "gauge" || *value >= 0.0, "{sample} fell below zero");
        }
    }
}

fn check_histogram(name: &str, family: &Family) {
    let mut series: BTreeMap<Labels, Vec<(&str, f64, f64)>> = BTreeMap::new();
    for (sample, labels, value) in &family.samples {
        let mut own = labels.clone();
        let bound = own.remove("le").map_or(f64::NAN, |le| le.parse().unwrap());
        series.entry(own).or_default().push((&sample[name.len()..], bound, *value));
    }
    for (labels, samples) in series {
        let of = |end: &str| {
            samples.iter().filter(|(e, _, _)| *e == end).map(|(_, le, v)| (*le, *v)).collect::<Vec<_>>()
        };
        let (buckets, sums, counts) = (of("_bucket"), of("_sum"), of("_count"));
        assert_eq!((sums.len(), counts.len()), (1, 1), "{name} {labels:?}");
        assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0), "{name} {labels:?}: bounds rise");
        assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{name} {labels:?}: buckets add up");
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, counts[0].1)), "{name} {labels:?}: +Inf is all");
    }
}

/// What Prometheus' own tool says of a page, but for the names that are Kubernetes'.
pub fn check_with_promtool(text: &str) {
    let mut tool = Command::new(toolbox::path("promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    tool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let kubernetes = COUNTERS_WITHOUT_TOTAL.iter().chain(&GAUGES_WITH_TOTAL);
    let known = |line: &str| kubernetes.clone().any(|name| line.starts_with(&format!("{name} ")));
    let complaints: Vec<&str> = said.lines().filter(|line| !known(line)).collect();
    assert_eq!(complaints, Vec::<&str>::new(), "promtool");
    // 3 is for complaints, of which all were known; anything else means that it could not read the page.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{:?}", output.status);
}
