//! Cross-origin requests: which origins, methods and headers a route allows, and the headers of responses.

use crate::name::Name;
use crate::route::redirect::Scheme;

/// `cors`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorsFilter {
    pub origins: Box<[CorsOrigin]>,
    pub allows_credentials: bool,
    /// `*` allows all.
    pub methods: Box<[Name]>,
    /// `*` allows all.
    pub headers: Box<[Name]>,
    pub exposed_headers: Box<[Name]>,
    /// Seconds.
    pub max_age: u32,
}

/// An entry of `allowOrigins`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorsOrigin {
    Any,
    /// `scheme://host[:port]`; the host may begin with `*`, which matches any number of labels.
    Pattern {
        /// As written.
        text: Name,
        scheme: Scheme,
        /// In lower case.
        host: Name,
        /// That of the scheme if absent; any port for the host `*`.
        port: u16,
    },
}

/// The cross-origin headers of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct CorsRequest<'r> {
    pub method: &'r str,
    pub origin: Option<&'r str>,
    /// `Access-Control-Request-Method`.
    pub request_method: Option<&'r str>,
    /// `Access-Control-Request-Headers`.
    pub request_headers: Option<&'r str>,
}

impl CorsRequest<'_> {
    /// Whether the proxy responds to it.
    pub fn is_preflight(&self) -> bool {
        self.method == "OPTIONS" && self.origin.is_some() && self.request_method.is_some()
    }
}

impl CorsOrigin {
    pub fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Any);
        }
        let (scheme, host, port) = split_origin(text)?;
        let port = port.unwrap_or(scheme.default_port());
        Some(Self::Pattern {
            text: Name::new(text),
            scheme,
            host: Name::new(&host.to_ascii_lowercase()),
            port,
        })
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::Any => "*",
            Self::Pattern { text, .. } => text,
        }
    }

    fn allows(&self, origin: &str) -> bool {
        let Self::Pattern { scheme, host, port, .. } = self else { return true };
        let Some((own_scheme, own_host, own_port)) = split_origin(origin) else { return false };
        let own_host = own_host.to_ascii_lowercase();
        let is_host = match host.strip_prefix('*') {
            Some(suffix) => own_host.len() > suffix.len() && own_host.ends_with(suffix),
            None => own_host == host.as_str(),
        };
        let is_port = host == "*" || own_port.unwrap_or(own_scheme.default_port()) == *port;
        own_scheme == *scheme && is_host && is_port
    }
}

/// `http://host:80` in its parts.
fn split_origin(text: &str) -> Option<(Scheme, &str, Option<u16>)> {
    let (scheme, authority) = text.split_once("://")?;
    let scheme = match scheme {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        _ => return None,
    };
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => Some((scheme, host, Some(port.parse().ok()?))),
        _ => Some((scheme, authority, None)),
    }
}

impl CorsFilter {
    /// The headers of a response; none if the origin is not allowed.
    pub fn response_headers(&self, request: &CorsRequest<'_>) -> Vec<(Name, Name)> {
        let Some(origin) = request.origin.filter(|origin| self.origins.iter().any(|o| o.allows(origin)))
        else {
            return Vec::new();
        };
        let mut headers = vec![("access-control-allow-origin".into(), Name::new(origin))];
        let mut put = |name: &str, value: Option<String>| {
            headers.extend(value.map(|value| (Name::new(name), Name::new(&value))));
        };
        put("access-control-allow-credentials", self.allows_credentials.then(|| "true".to_owned()));
        if request.is_preflight() {
            put("access-control-allow-methods", self.listed(&self.methods, request.request_method));
            put("access-control-allow-headers", self.listed(&self.headers, request.request_headers));
            put("access-control-max-age", Some(self.max_age.to_string()));
        } else {
            let exposed =
                self.exposed_headers.iter().filter(|name| !self.allows_credentials || **name != "*");
            let exposed: Vec<&str> = exposed.map(|name| name.as_str()).collect();
            put("access-control-expose-headers", (!exposed.is_empty()).then(|| exposed.join(", ")));
        }
        put("vary", Some("Origin".to_owned()));
        headers
    }

    /// The value of an allow header: the list, or what the request asks for if all are allowed. Browsers do not
    /// understand `*` with credentials.
    fn listed(&self, allowed: &[Name], asked: Option<&str>) -> Option<String> {
        if allowed.is_empty() {
            return None;
        }
        if allowed.iter().any(|name| name == "*") {
            return asked.map(str::to_owned);
        }
        Some(allowed.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_compared_with_default_ports_and_greedy_wildcards() {
        for (allowed, origin, wanted) in [
            ("*", "https://any.example:9", true),
            ("https://www.foo.com", "https://www.foo.com", true),
            ("https://www.foo.com", "https://www.foo.com:443", true),
            ("https://www.foo.com", "http://www.foo.com", false),
            ("https://www.foo.com:8443", "https://www.foo.com", false),
            ("https://*.bar.com", "https://a.b.bar.com", true),
            ("https://*.bar.com", "https://bar.com", false),
            ("http://*", "http://x:81", true),
            ("http://*.bar.com:81", "http://a.bar.com", false),
        ] {
            let parsed = CorsOrigin::parse(allowed).expect("an origin");
            assert_eq!(parsed.allows(origin), wanted, "{allowed} {origin}");
        }
    }

    #[test]
    fn with_credentials_the_request_is_echoed_and_never_a_star() {
        let star: Box<[Name]> = ["*".into()].into();
        let filter = CorsFilter {
            origins: [CorsOrigin::Any].into(),
            allows_credentials: true,
            methods: star.clone(),
            headers: star.clone(),
            exposed_headers: star,
            max_age: 5,
        };
        let preflight = CorsRequest {
            method: "OPTIONS",
            origin: Some("https://a.example"),
            request_method: Some("PUT"),
            request_headers: Some("x-a, x-b"),
        };
        let all = filter.response_headers(&preflight);
        let value = |name: &str| all.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
        assert_eq!(value("access-control-allow-origin"), Some("https://a.example"));
        assert_eq!(value("access-control-allow-methods"), Some("PUT"));
        assert_eq!(value("access-control-allow-headers"), Some("x-a, x-b"));
        assert_eq!(value("access-control-allow-credentials"), Some("true"));
        assert_eq!(value("access-control-max-age"), Some("5"));
        let simple = filter.response_headers(&CorsRequest { method: "GET", ..preflight });
        assert!(simple.iter().all(|(_, value)| value != "*"), "{simple:?}");
    }
}
