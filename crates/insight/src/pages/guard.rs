//! Which requests a page of a loopback listener answers. A browser on the same machine runs pages of other origins: they
//! must neither read the dashboard by a name that they point at 127.0.0.1 (DNS rebinding), nor post to it.

use std::net::IpAddr;

/// The headers of a request that say where it comes from.
#[derive(Clone, Copy, Debug, Default)]
pub struct BrowserOrigin<'a> {
    /// Whether it is a GET or HEAD.
    pub reads: bool,
    /// Whether the listener is on loopback, where no token is required.
    pub on_loopback: bool,
    pub host: Option<&'a str>,
    pub origin: Option<&'a str>,
    /// Sec-Fetch-Site, -Mode and -Dest.
    pub site: Option<&'a str>,
    pub mode: Option<&'a str>,
    pub dest: Option<&'a str>,
}

impl BrowserOrigin<'_> {
    /// Why the request is refused.
    pub fn refusal(&self) -> Option<&'static str> {
        let Some(host) = self.host else { return Some("missing Host") };
        if self.on_loopback && !is_loopback(host) {
            return Some("this listener is on loopback: open it as localhost or 127.0.0.1");
        }
        if let Some(origin) = self.origin {
            let authority = origin.split_once("://").map(|(_, authority)| authority);
            if !authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host)) {
                return Some("requests of other origins are refused");
            }
        } else if !self.reads {
            return Some("missing Origin: send the form of this page with a browser");
        }
        let is_foreign = matches!(self.site, Some(site) if site != "same-origin" && site != "none");
        // A link to a page leads to it, in a window of its own.
        let is_link = self.reads && self.mode == Some("navigate") && self.dest == Some("document");
        (is_foreign && !is_link).then_some("requests of other sites are refused")
    }
}

/// Whether a Host names this machine and nothing that a resolver decides.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((name, port)) if port.is_empty() || is_port(port) => name,
            _ => return false,
        },
        None => match host.split_once(':') {
            Some((name, port)) if is_port(&format!(":{port}")) => name,
            Some(_) => return false,
            None => host,
        },
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(host: &str) -> BrowserOrigin<'_> {
        BrowserOrigin { reads: true, on_loopback: true, host: Some(host), ..BrowserOrigin::default() }
    }

    #[test]
    fn names_that_a_resolver_decides_are_refused_on_loopback() {
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:10273", "127.9.9.9", "[::1]:10273", "[::1]"] {
            assert_eq!(get(host).refusal(), None, "{host}");
        }
        let others = [
            "rebound.example",
            "localhost.rebound.example:10273",
            "10.0.0.7",
            "127.0.0.1.example",
            "[::2]",
            "0.0.0.0",
            "localhost:x",
            "[::1",
            "[::1]x",
            "",
            "127.0.0.1:1:2",
            "zoneward",
        ];
        for host in others {
            assert!(get(host).refusal().is_some(), "{host}");
        }
        assert!(BrowserOrigin { host: None, ..get("") }.refusal().is_some());
        // Off loopback a token decides.
        assert_eq!(BrowserOrigin { on_loopback: false, ..get("zoneward.example") }.refusal(), None);
    }

    #[test]
    fn other_sites_may_link_and_nothing_else() {
        let host = "127.0.0.1:10273";
        let link = BrowserOrigin {
            site: Some("cross-site"),
            mode: Some("navigate"),
            dest: Some("document"),
            ..get(host)
        };
        assert_eq!(link.refusal(), None);
        for (site, mode, dest) in [
            ("cross-site", "no-cors", "image"),
            ("cross-site", "cors", "empty"),
            ("same-site", "no-cors", "script"),
            ("cross-site", "navigate", "iframe"),
            ("cross-site", "navigate", "object"),
        ] {
            let request = BrowserOrigin { site: Some(site), mode: Some(mode), dest: Some(dest), ..get(host) };
            assert!(request.refusal().is_some(), "{site} {mode} {dest}");
        }
        for origin in
            ["http://evil.example", "null", "http://127.0.0.1:9999", "http://127.0.0.1:10273.evil.example"]
        {
            assert!(BrowserOrigin { origin: Some(origin), ..get(host) }.refusal().is_some(), "{origin}");
        }
        assert_eq!(BrowserOrigin { origin: Some("http://127.0.0.1:10273"), ..get(host) }.refusal(), None);
    }

    #[test]
    fn a_post_needs_the_origin_of_this_page() {
        let host = "localhost:10273";
        let post = BrowserOrigin { reads: false, ..get(host) };
        assert!(post.refusal().is_some());
        let own = BrowserOrigin { origin: Some("http://localhost:10273"), ..post };
        assert_eq!(BrowserOrigin { site: Some("same-origin"), ..own }.refusal(), None);
        let navigated = BrowserOrigin {
            origin: Some("http://evil.example"),
            site: Some("cross-site"),
            mode: Some("navigate"),
            dest: Some("document"),
            ..post
        };
        assert!(navigated.refusal().is_some());
        let no_origin = BrowserOrigin { origin: None, ..navigated };
        assert!(no_origin.refusal().is_some());
    }
}
