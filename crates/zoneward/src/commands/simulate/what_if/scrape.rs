//! Traffic from metrics of the nodes: `zoneward_service_bytes_total` in the Prometheus text format.
//!
//! A file may contain scrapes of many nodes: samples of the same Service and zones are summed.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use model::{Name, ServiceKey};

/// Samples are summed over labels other than `namespace`, `service`, `from_zone` and `to_zone`.
const SERIES: &str = "zoneward_service_bytes_total";
const DAYS_PER_MONTH: f64 = 30.0;

#[derive(Debug, Default)]
pub(super) struct Scrape {
    services: BTreeMap<ServiceKey, ServiceTraffic>,
}

/// Traffic of one Service in GB per month, by source and destination zone.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceTraffic {
    zones: BTreeMap<(Name, Name), f64>,
}

impl Scrape {
    /// Reads a file whose counters cover `days` days.
    pub(super) fn read(path: &Path, days: f64) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let scrape = Self::parse(&text, days).with_context(|| format!("reading {}", path.display()))?;
        if scrape.services.is_empty() {
            bail!(
                "{}: no sample of {SERIES}: scrape the nodes' metrics, or set --traffic in gigabytes",
                path.display()
            );
        }
        Ok(scrape)
    }

    fn parse(text: &str, days: f64) -> Result<Self> {
        let mut scrape = Self::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            let Some(rest) = line.strip_prefix(SERIES).filter(|rest| rest.starts_with(['{', ' '])) else {
                continue;
            };
            let sample = sample(rest).with_context(|| format!("line {}", number + 1))?;
            let seen = scrape.services.entry(sample.service).or_default();
            let gb = sample.bytes / 1e9 * DAYS_PER_MONTH / days;
            *seen.zones.entry(sample.zones).or_default() += gb;
        }
        Ok(scrape)
    }

    pub(super) fn service(&self, key: &ServiceKey) -> Option<&ServiceTraffic> {
        self.services.get(key)
    }

    /// Traffic of all Services by source zone.
    pub(super) fn by_zone(&self) -> BTreeMap<Name, f64> {
        let mut all = ServiceTraffic::default();
        for ((from, to), gb) in self.services.values().flat_map(|seen| &seen.zones) {
            *all.zones.entry((from.clone(), to.clone())).or_default() += gb;
        }
        all.by_zone()
    }
}

impl ServiceTraffic {
    pub(super) fn total(&self) -> f64 {
        self.zones.values().sum()
    }

    pub(super) fn by_zone(&self) -> BTreeMap<Name, f64> {
        let mut by_zone = BTreeMap::new();
        for ((from, _), gb) in &self.zones {
            *by_zone.entry(from.clone()).or_default() += gb;
        }
        by_zone
    }

    /// Share of in-zone traffic.
    pub(super) fn in_zone(&self) -> Option<f64> {
        let stayed: f64 = self.zones.iter().filter(|((from, to), _)| from == to).map(|(_, gb)| gb).sum();
        let total = self.total();
        (total > 0.0).then(|| stayed / total)
    }
}

struct Sample {
    service: ServiceKey,
    zones: (Name, Name),
    bytes: f64,
}

/// Labels in braces, the value, and an optional timestamp.
fn sample(rest: &str) -> Result<Sample> {
    let (labels, rest) = labels(rest)?;
    let label = |name: &str| {
        let value = labels.iter().find(|(key, _)| key == name).map(|(_, value)| Name::new(value));
        value.with_context(|| format!("{SERIES} has no label {name}"))
    };
    let value = rest.split_whitespace().next().unwrap_or_default();
    let bytes = value.parse::<f64>().ok().filter(|bytes| bytes.is_finite() && *bytes >= 0.0);
    Ok(Sample {
        service: ServiceKey::new(&label("namespace")?, &label("service")?),
        zones: (label("from_zone")?, label("to_zone")?),
        bytes: bytes.with_context(|| format!("`{value}` is not a number of bytes"))?,
    })
}

/// `{a="b",c="d"} rest`; a backslash escapes a quote, itself, and `n` for a new line.
fn labels(text: &str) -> Result<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    let Some(mut rest) = text.strip_prefix('{') else { return Ok((labels, text)) };
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Ok((labels, after));
        }
        let (name, after) = rest.split_once("=\"").context("labels are written as name=\"value\"")?;
        let mut value = String::new();
        let mut letters = after.char_indices();
        let end = loop {
            match letters.next().context("unterminated label value")? {
                (at, '"') => break at + 1,
                (_, '\\') => match letters.next().context("unterminated label value")?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, letter) => value.push(letter),
            }
        };
        labels.push((name.trim().to_owned(), value));
        rest = &after[end..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# TYPE zoneward_service_bytes counter
zoneward_service_bytes_total{namespace="shop",service="cart",from_zone="a",to_zone="a",direction="in"} 3e9
zoneward_service_bytes_total{namespace="shop",service="cart",from_zone="a",to_zone="a",direction="out"} 1e9 1700000000
zoneward_service_bytes_total{namespace="shop",service="cart",from_zone="b",to_zone="a",} 4e9
zoneward_service_bytes_total_created{namespace="shop"} 1
other_total 7
"#;

    #[test]
    fn samples_are_added_up_by_service_and_zones_and_stretched_to_a_month() {
        let scrape = Scrape::parse(TEXT, 15.0).expect("it is right");
        let key = ServiceKey::new(&Name::new("shop"), &Name::new("cart"));
        let seen = scrape.service(&key).expect("it is there");
        assert_eq!((seen.total(), seen.in_zone()), (16.0, Some(0.5)));
        assert_eq!(scrape.by_zone(), BTreeMap::from([(Name::new("a"), 8.0), (Name::new("b"), 8.0)]));
    }

    #[test]
    fn what_cannot_be_read_is_told_with_its_line() {
        for (line, why) in [
            ("zoneward_service_bytes_total 5", "no label namespace"),
            (r#"zoneward_service_bytes_total{namespace="a"#, "unterminated"),
            (r#"zoneward_service_bytes_total{namespace}"#, "name="),
            (
                r#"zoneward_service_bytes_total{namespace="a",service="b",from_zone="c",to_zone="d"} much"#,
                "not a number",
            ),
        ] {
            let error = Scrape::parse(&format!("\n{line}\n"), 30.0).expect_err("it is wrong");
            let said = format!("{error:#}");
            assert!(said.starts_with("line 2") && said.contains(why), "{said}");
        }
    }
}
