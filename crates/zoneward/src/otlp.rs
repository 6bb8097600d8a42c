//! Flags of OpenTelemetry spans. The standard environment variables stand in for flags that are not given.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use mesh::{ProxyIdentity, ProxyRole};
use proxy::SpanExporterOptions;

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Tracing")]
pub struct OtlpArgs {
    /// Export spans to this collector by OTLP over HTTP, to URL/v1/traces [default: $OTEL_EXPORTER_OTLP_ENDPOINT, or
    /// no spans]
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// Headers for the collector, percent-encoded; secrets are safer in the variable [default:
    /// $OTEL_EXPORTER_OTLP_HEADERS]
    #[arg(long, value_name = "NAME=VALUE,...")]
    pub otlp_headers: Option<String>,
    /// PEM file of the authorities of the collector's certificate [default: $OTEL_EXPORTER_OTLP_CERTIFICATE, or those
    /// of the system]
    #[arg(long, value_name = "FILE")]
    pub otlp_ca_file: Option<PathBuf>,
    /// Share of new traces to record, from 0 to 1; requests with a traceparent keep its decision
    #[arg(long, value_name = "RATIO", default_value_t = 1.0, value_parser = ratio)]
    pub otlp_sampling_ratio: f64,
}

fn ratio(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err("expected a number from 0 to 1".to_owned()),
    }
}

impl OtlpArgs {
    /// Where spans go; `None` without an endpoint. `variable` reads the environment.
    pub fn options(
        &self,
        identity: &ProxyIdentity,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<SpanExporterOptions>> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        // With the place that an error names.
        let given = |flag: &Option<String>, name: &'static str, other: &'static str| match flag {
            Some(value) => Some((value.clone(), name)),
            None => variable(other).map(|value| (value, other)),
        };
        let endpoint = given(&self.otlp_endpoint, "--otlp-endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT");
        let Some((endpoint, place)) = endpoint.filter(|(endpoint, _)| !endpoint.is_empty()) else {
            return Ok(None);
        };
        if let Some(protocol) = variable("OTEL_EXPORTER_OTLP_PROTOCOL").filter(|name| name != "http/protobuf")
        {
            bail!(
                "OTEL_EXPORTER_OTLP_PROTOCOL={protocol}: only http/protobuf is supported; its port is usually 4318"
            );
        }
        let mut options = SpanExporterOptions::new(traces_url(&endpoint).context(place)?);
        if let Some((text, place)) = given(&self.otlp_headers, "--otlp-headers", "OTEL_EXPORTER_OTLP_HEADERS")
        {
            options.headers = headers(&text).context(place)?;
        }
        let file = self.otlp_ca_file.as_ref().map(|file| file.display().to_string());
        if let Some((file, place)) = given(&file, "--otlp-ca-file", "OTEL_EXPORTER_OTLP_CERTIFICATE") {
            let pem = std::fs::read(&file).with_context(|| format!("{place} {file}: not readable"))?;
            options.authorities = Some(pem);
        }
        let mut resource = defaults(identity);
        if let Some(text) = variable("OTEL_RESOURCE_ATTRIBUTES") {
            resource.extend(pairs(&text).context("OTEL_RESOURCE_ATTRIBUTES")?);
        }
        resource.extend(variable("OTEL_SERVICE_NAME").map(|name| ("service.name".to_owned(), name)));
        options.resource = resource.into_iter().collect();
        options.sampling_ratio = self.otlp_sampling_ratio;
        Ok(Some(options))
    }
}

/// The Service of a sidecar, or the gateway.
fn defaults(identity: &ProxyIdentity) -> BTreeMap<String, String> {
    let (namespace, name) = match &identity.role {
        ProxyRole::Sidecar(service, _) => (&service.namespace, &service.name),
        ProxyRole::Gateway(gateway, _) => (&gateway.namespace, &gateway.name),
    };
    let known = [("service.name", name), ("service.namespace", namespace), ("k8s.node.name", &identity.node)];
    let known = known.into_iter().filter(|(_, value)| !value.is_empty());
    known.map(|(name, value)| (name.to_owned(), value.to_string())).collect()
}

fn traces_url(endpoint: &str) -> Result<Uri> {
    let expected = "expected http://HOST[:PORT] or https://HOST[:PORT], such as http://collector:4318";
    let url: Uri = format!("{}/v1/traces", endpoint.trim_end_matches('/')).parse().context(expected)?;
    let authority = url.authority().context(expected)?;
    ensure!(matches!(url.scheme_str(), Some("http" | "https")), expected);
    ensure!(!authority.as_str().contains('@'), "a user and password belong in the headers");
    ensure!(url.query().is_none(), "a query is not supported");
    Ok(url)
}

/// Errors have no value: it may be a secret.
fn headers(text: &str) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs(text)? {
        let key: HeaderName = name.parse().with_context(|| format!("{name:?} is not a header"))?;
        let value = HeaderValue::try_from(value).ok();
        let mut value = value.with_context(|| format!("the value of {name} is not valid in a header"))?;
        value.set_sensitive(true);
        headers.insert(key, value);
    }
    Ok(headers)
}

/// Parses `NAME=VALUE,...` with percent-encoded values, as the OpenTelemetry variables have it.
fn pairs(text: &str) -> Result<Vec<(String, String)>> {
    let pair = |(at, pair): (usize, &str)| {
        let (name, value) =
            pair.split_once('=').filter(|(name, _)| !name.trim().is_empty()).with_context(|| {
                format!("entry {}: expected NAME=VALUE; write a comma in a value as %2C", at + 1)
            })?;
        Ok((name.trim().to_owned(), percent_decoded(value.trim())))
    };
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    entries.enumerate().map(pair).collect()
}

/// A `%` without two digits stays.
fn percent_decoded(text: &str) -> String {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((byte, after)) = rest.split_first() {
        let digits =
            after.get(..2).filter(|_| *byte == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(decoded) => {
                out.push(decoded);
                rest = &after[2..];
            }
            None => {
                out.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> ProxyIdentity {
        let role = ProxyRole::sidecar("frontend", &"shop".into()).expect("a Service");
        ProxyIdentity { role, node: "node-1".into(), zone: None }
    }

    fn options(args: &OtlpArgs, variables: &[(&str, &str)]) -> Result<Option<SpanExporterOptions>> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        args.options(&identity(), |name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    fn endpoint(url: &str) -> OtlpArgs {
        OtlpArgs { otlp_endpoint: Some(url.to_owned()), ..OtlpArgs::default() }
    }

    #[test]
    fn without_an_endpoint_there_are_no_spans() {
        let variables = [("OTEL_SERVICE_NAME", "a"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "")];
        assert!(options(&OtlpArgs::default(), &variables).expect("valid").is_none());
        // An empty flag overrides the variable.
        let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")];
        assert!(options(&endpoint(""), &variables).expect("valid").is_none());
        assert!(options(&OtlpArgs::default(), &variables).expect("valid").is_some());
    }

    #[test]
    fn flags_come_before_variables() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://other:4318"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20a%2Cb, x-tenant = shop"),
            (
                "OTEL_RESOURCE_ATTRIBUTES",
                "deployment.environment.name=test,service.name=lost,k8s.node.name=n2",
            ),
            ("OTEL_SERVICE_NAME", "web"),
        ];
        let found = options(&endpoint("https://collector/base/"), &variables).expect("valid").expect("on");
        assert_eq!(found.url, "https://collector/base/v1/traces");
        assert_eq!(found.headers["authorization"], "Bearer a,b");
        assert_eq!(found.headers["x-tenant"], "shop");
        let expected = [
            ("deployment.environment.name", "test"),
            ("k8s.node.name", "n2"),
            ("service.name", "web"),
            ("service.namespace", "shop"),
        ];
        assert_eq!(found.resource, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert!(!format!("{:?}", found.headers).contains("Bearer"));
    }

    #[test]
    fn mistakes_are_named_and_secrets_are_not() {
        let error = |args: &OtlpArgs, variables: &[(&str, &str)]| {
            format!("{:#}", options(args, variables).err().expect("a mistake"))
        };
        for url in ["collector:4318", "/v1", "ftp://collector", "http://", "http://a b"] {
            let text = error(&endpoint(url), &[]);
            assert!(text.contains("--otlp-endpoint") && text.contains("http://HOST[:PORT]"), "{url}: {text}");
        }
        assert!(error(&endpoint("http://user:secret@collector"), &[]).contains("headers"));
        let on = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector");
        for headers in ["secret", "=secret", "a b=secret", "a=secret%0d%0ax: y"] {
            let text = error(&OtlpArgs::default(), &[on, ("OTEL_EXPORTER_OTLP_HEADERS", headers)]);
            assert!(text.contains("OTEL_EXPORTER_OTLP_HEADERS") && !text.contains("secret"), "{text}");
        }
        let text = error(&OtlpArgs::default(), &[on, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]);
        assert!(text.contains("http/protobuf"), "{text}");
        let text = error(&OtlpArgs::default(), &[on, ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/missing.pem")]);
        assert!(text.contains("OTEL_EXPORTER_OTLP_CERTIFICATE /missing.pem"), "{text}");
    }

    #[test]
    fn ratios_are_from_0_to_1() {
        assert_eq!((ratio("0"), ratio("0.25"), ratio("1")), (Ok(0.0), Ok(0.25), Ok(1.0)));
        for wrong in ["", "-0.1", "1.1", "NaN", "inf", "10%"] {
            assert!(ratio(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn percent_signs_without_digits_stay() {
        assert_eq!(percent_decoded("a%20b%2"), "a b%2");
        assert_eq!(percent_decoded("%zz%+1%c3%a9%ff"), "%zz%+1\u{e9}\u{fffd}");
    }
}
