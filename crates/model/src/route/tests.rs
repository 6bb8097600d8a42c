//! Tests of what a proxy does with a table: hosts, paths, patterns, matching, splits.

use std::sync::Arc;

use proptest::prelude::*;

use super::path::{EscapedSlashes, NormalizedPath, PathNormalization, PathParameters};
use super::*;
use crate::name::Name;

fn prefix(value: &str) -> PathMatch {
    PathMatch::Prefix(Name::new(value))
}

fn request<'a>(path: &'a str, headers: &'a HeaderList) -> RequestView<'a> {
    let (path, query) = path::split(path);
    RequestView { method: "GET", host: "svc.test", path, query, headers }
}

fn matched(settings: PathNormalization, given: &str) -> String {
    match settings.normalize(given) {
        NormalizedPath::Matched(path) => path.into_owned(),
        NormalizedPath::Redirect(path) => format!("307 {path}"),
        NormalizedPath::Rejected(_) => "400".to_owned(),
    }
}

#[test]
fn paths_have_one_form_before_they_are_matched() {
    for (given, form) in [
        ("/", "/"),
        ("/a/b", "/a/b"),
        ("/a/./b", "/a/b"),
        ("/a/../b", "/b"),
        ("/a/..", "/"),
        ("/a/b/..", "/a/"),
        ("/../../x", "/x"),
        ("/a//b", "/a/b"),
        ("//a///b//", "/a/b/"),
        ("//", "400"),
        ("/a/..///", "400"),
        (r"/\", "400"),
        ("/x/..//admin", "/admin"),
        ("/%62", "/b"),
        ("/%2e%2E/x", "/x"),
        (r"/x\..\admin", "/admin"),
        (r"\admin", r"\admin"),
        ("/%2f", "307 /"),
        ("/%2fadmin", "307 /admin"),
        ("/x%2f..%2Fadmin", "307 /admin"),
        ("/x%5c..%5Cadmin", "307 /admin"),
        ("/admin%2fx", "307 /admin/x"),
        ("/%252fadmin", "/%252fadmin"),
        ("/admin%%32%66x", "400"),
        ("/x/%%32e%%32e/admin", "400"),
        ("/admin%00", "400"),
        ("/x/..;/admin", "/admin"),
        ("/x/.;a=b/admin", "/x/admin"),
        (r"/x\..;\admin/..;", "/"),
        ("/x/..%3B/admin", "400"),
        ("/x/%2e%2e;/admin", "400"),
        ("/x%2f..;%2fadmin", "307 /admin"),
        ("/x..;/a;v=1/..x", "/x..;/a;v=1/..x"),
        ("/%", "/%"),
        ("/%4", "/%4"),
        ("/%zz", "/%zz"),
        ("/é/%C3%A9", "/é/%C3%A9"),
        ("*", "*"),
        ("", ""),
    ] {
        assert_eq!(matched(PathNormalization::default(), given), form, "{given}");
    }
}

#[test]
fn escaped_slashes_merging_and_parameters_are_settings() {
    let with = |escaped_slashes| PathNormalization { escaped_slashes, ..PathNormalization::default() };
    for (settings, given, form) in [
        (with(EscapedSlashes::Keep), "/group%2fproject", "/group%2fproject"),
        (with(EscapedSlashes::Keep), "/a%2f..%2fb/../c", "/c"),
        (with(EscapedSlashes::Reject), "/admin%2fx", "400"),
        (with(EscapedSlashes::Unescape), "/x%2f..%2fadmin", "/admin"),
        (PathNormalization { merge_slashes: false, ..with(EscapedSlashes::Unescape) }, "//a//b", "//a//b"),
        (PathNormalization { merge_slashes: false, ..with(EscapedSlashes::Unescape) }, "//", "//"),
        (with(EscapedSlashes::Unescape), "/%2f", "400"),
        // Not to another host.
        (
            PathNormalization { merge_slashes: false, ..with(EscapedSlashes::Redirect) },
            "/%2fevil.example",
            "400",
        ),
        (
            PathNormalization { path_parameters: PathParameters::Reject, ..PathNormalization::default() },
            "/admin;x",
            "400",
        ),
    ] {
        assert_eq!(matched(settings, given), form, "{given}");
    }
}

proptest! {
    /// What is forwarded is what the next proxy would match: normalising twice changes nothing more.
    #[test]
    fn a_normal_path_is_normal(path in "/([ax;.%/\\\\]|%2[eEfF5]|%5[cC]|%3b|%%32|%66|\\.\\./){0,12}", keeps in any::<bool>()) {
        let escaped_slashes = if keeps { EscapedSlashes::Keep } else { EscapedSlashes::Unescape };
        let settings = PathNormalization { escaped_slashes, ..PathNormalization::default() };
        if let NormalizedPath::Matched(once) = settings.normalize(&path) {
            prop_assert!(!once.contains("//") && !once.contains('\\'), "{once}");
            prop_assert!(!once.split('/').any(|segment| matches!(segment, "." | "..")), "{once}");
            prop_assert!(keeps || !once.to_ascii_lowercase().contains("%2f"), "{once}");
        }
    }
}

fn origin(peer: &str) -> RequestOrigin<'static> {
    RequestOrigin { peer: peer.parse().expect("an address"), scheme: Scheme::Https, host: "shop.example" }
}

fn forwarded(peer: &str, received: &[(&str, &str)]) -> ForwardedHeaders {
    let trusted = ["10.0.0.0/8", "fd00::/8"].map(|network| network.parse().expect("a network"));
    let received =
        HeaderList(received.iter().map(|(name, value)| (Name::new(name), Name::new(value))).collect());
    ForwardedHeaders::of(&origin(peer), &TrustedProxies::new(trusted), &received)
}

#[test]
fn forwarded_headers_of_untrusted_clients_are_replaced() {
    let lies = [
        ("X-Forwarded-For", "1.1.1.1"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-host", "evil"),
        ("forwarded", "for=1.1.1.1"),
        ("x-real-ip", "1.1.1.1"),
    ];
    let found = forwarded("192.0.2.7:4000", &lies);
    assert_eq!((found.client.to_string().as_str(), found.is_trusted), ("192.0.2.7", false));
    let wanted = [
        ("x-forwarded-for", "192.0.2.7"),
        ("x-forwarded-proto", "https"),
        ("x-real-ip", "192.0.2.7"),
        ("forwarded", r#"for="192.0.2.7:4000";host="shop.example";proto=https"#),
        ("x-forwarded-host", "shop.example"),
    ];
    let set: Vec<(&str, &str)> = found.set.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(set, wanted);
    for name in ["x-forwarded-port", "x-forwarded-prefix", "x-original-url", "forwarded"] {
        assert!(is_forwarded_header(name), "{name}");
    }
}

#[test]
fn trusted_proxies_are_appended_to() {
    let found = forwarded(
        "[::ffff:10.0.0.1]:4000",
        &[
            ("x-forwarded-for", "6.6.6.6, 192.0.2.7"),
            ("x-forwarded-for", "10.0.0.9:80"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "www.example"),
            ("forwarded", "for=192.0.2.7"),
        ],
    );
    assert_eq!((found.client.to_string().as_str(), found.is_trusted), ("192.0.2.7", true));
    let of = |name: &str| found.set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_str());
    assert_eq!(of("x-forwarded-for"), Some("6.6.6.6, 192.0.2.7,10.0.0.9:80,10.0.0.1"));
    assert_eq!((of("x-forwarded-proto"), of("x-forwarded-host")), (Some("http"), Some("www.example")));
    assert_eq!(of("x-real-ip"), Some("192.0.2.7"));
    let element = r#"for=192.0.2.7,for="10.0.0.1:4000";host="shop.example";proto=https"#;
    assert_eq!(of("forwarded"), Some(element));
    // Without an address that is not trusted, the first; nothing before what is no address.
    let client = |chain: &str| forwarded("10.0.0.1:1", &[("x-forwarded-for", chain)]).client.to_string();
    assert_eq!(client("10.0.0.7, 10.0.0.8"), "10.0.0.7");
    assert_eq!(client("6.6.6.6, unknown, 10.0.0.8"), "10.0.0.8");
    assert_eq!(client("fd00::5, 2001:db8::1, [fd00::7]:80"), "2001:db8::1");
}

#[test]
fn headers_that_connection_names_are_hop_by_hop() {
    let named = |value: &str| {
        hop_by_hop::named_by_connection(value.as_bytes()).map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    assert_eq!(
        named("close, Authorization ,, host, Content-Length, X-A"),
        [b"Authorization".to_vec(), b"X-A".to_vec()]
    );
    assert!(hop_by_hop::is_hop_by_hop("upgrade") && !hop_by_hop::is_hop_by_hop("authorization"));
}

#[test]
fn a_replaced_prefix_never_doubles_a_slash() {
    for (given, prefix, replacement, wanted) in [
        ("/p", "/p", "/n", "/n"),
        ("/p/x", "/p", "/n", "/n/x"),
        ("/p/", "/p", "/n", "/n/"),
        ("/p", "/p", "/", "/"),
        ("/p/x", "/p", "/", "/x"),
        ("/p/x", "/p", "/n/", "/n/x"),
        ("/x", "/", "/root", "/root/x"),
        ("/", "/", "/root", "/root"),
        ("/", "/", "/root/", "/root"),
        ("/", "/", "/", "/"),
    ] {
        assert_eq!(
            path::replace_prefix(given, prefix, replacement),
            wanted,
            "{given} {prefix} {replacement}"
        );
    }
}

#[test]
fn the_narrowest_host_name_has_a_host() {
    let mut map = HostMap::default();
    for host in ["a.x.io", "*.x.io", "*.b.x.io", "*"] {
        map.insert(&Hostname::parse(host), host);
    }
    for (host, wanted) in [
        ("a.x.io", "a.x.io"),
        ("A.X.io:8080", "a.x.io"),
        ("a.x.io.", "a.x.io"),
        ("c.x.io", "*.x.io"),
        ("d.c.x.io", "*.x.io"),
        ("c.b.x.io", "*.b.x.io"),
        ("b.x.io", "*.x.io"),
        ("x.io", "*"),
        (".x.io", "*"),
        ("[::1]:80", "*"),
        ("", "*"),
    ] {
        assert_eq!(map.find(host), Some(&wanted), "{host}");
    }
    assert_eq!(
        map.iter().map(|(host, _)| host.to_string()).collect::<Vec<_>>(),
        ["a.x.io", "*.b.x.io", "*.x.io", "*"]
    );
}

#[test]
fn the_intersection_of_host_names_is_the_narrower_one() {
    let both = |a: &str, b: &str| Hostname::parse(a).intersection(&Hostname::parse(b)).map(|h| h.to_string());
    assert_eq!(both("*.wildcard.io", "foo.wildcard.io").as_deref(), Some("foo.wildcard.io"));
    assert_eq!(both("*.wildcard.io", "wildcard.io"), None);
    assert_eq!(both("very.specific.com", "*.specific.com").as_deref(), Some("very.specific.com"));
    assert_eq!(both("*.a.io", "*.b.a.io").as_deref(), Some("*.b.a.io"));
    assert_eq!(both("*", "a.io").as_deref(), Some("a.io"));
    assert_eq!(both("*.a.io", "*.ba.io"), None);
}

#[test]
fn wider_host_names_are_those_that_cover_and_the_narrowest_comes_first() {
    let all = ["a.b.example.com", "b.example.com", "*.b.example.com", "*.example.com", "*.com", "*.org", "*"];
    let all = all.map(Hostname::parse);
    for host in &all {
        let mut wanted: Vec<&Hostname> = all.iter().filter(|o| o.covers(host) && *o != host).collect();
        wanted.sort_by_key(|wider| wider.rank());
        let wider: Vec<Hostname> = host.wider().filter(|wider| all.contains(wider)).collect();
        assert!(wider.iter().eq(wanted), "{host}: {wider:?}");
    }
}

#[test]
fn a_group_in_the_place_of_another_shares_compiled_patterns_and_finds_the_same() {
    let pattern = |text: &str| PathMatch::Regex(Pattern::new(text).unwrap());
    let paths: Vec<PathMatch> = (0..300).map(|i| pattern(&format!("/{i}/[a-z]+"))).collect();
    let entry = |(rule, path): (usize, &PathMatch)| MatchEntry {
        rule,
        alternative: 0,
        path: path.clone(),
        conditions: MatchConditions::default(),
    };
    let entries = |paths: &[PathMatch]| -> Vec<MatchEntry> { paths.iter().enumerate().map(entry).collect() };
    let mut changed = paths.clone();
    changed[299] = pattern("/other");
    // Other rules than before, so that it cannot be taken over whole.
    let rule = HttpRule::catch_all(RuleAction::new(Responder::Forward(WeightedBackends::default())));
    let before = RouteGroup::new(vec![Arc::new(rule)], entries(&paths));
    let after = RouteGroup::after(&before, Vec::new(), |_| entries(&changed));
    let headers = HeaderList::default();
    for (path, found) in [("/299/x", None), ("/other", Some(299)), ("/7/x", Some(7)), ("/130/x", Some(130))] {
        assert_eq!(after.find(&request(path, &headers)).map(|entry| entry.rule), found, "{path}");
    }
}

#[test]
fn patterns_match_the_whole_text_and_are_bounded() {
    let pattern = Pattern::new("/v[0-9]+|x").unwrap();
    assert!(pattern.matches(b"/v12") && pattern.matches(b"x"));
    assert!(!pattern.matches(b"/v12/") && !pattern.matches(b"ax"));
    for bad in ["(", "a)|(b", "(?x)a #", r"\w{100}{100}{100}", &"a".repeat(5000), "[z-a]"] {
        let reason = Pattern::new(bad).unwrap_err();
        assert!(!reason.is_empty() && !reason.contains('\n'), "{reason}");
    }
}

#[test]
fn the_first_entry_in_order_wins_whichever_map_it_is_found_by() {
    let paths = [
        PathMatch::Regex(Pattern::new("/a/.*").unwrap()),
        PathMatch::Exact(Name::new("/a/b")),
        prefix("/a"),
        prefix("/a/b/c"),
        prefix("/"),
    ];
    let entry = |(rule, path): (usize, &PathMatch)| MatchEntry {
        rule,
        alternative: 0,
        path: path.clone(),
        conditions: MatchConditions::default(),
    };
    let entries: Vec<MatchEntry> = paths.iter().enumerate().map(entry).collect();
    // Every rotation of the order, and every path: the maps agree with asking one by one.
    for turn in 0..entries.len() {
        let mut turned = entries.clone();
        turned.rotate_left(turn);
        let group = RouteGroup::new(Vec::new(), turned.clone());
        let none = HeaderList::default();
        for path in ["/", "/a", "/a/", "/a/b", "/a/b/c", "/a/b/c/d", "/ab", "/x/y/z", ""] {
            let wanted = turned.iter().find(|e| e.path.matches(path)).map(|e| e.rule);
            assert_eq!(group.find(&request(path, &none)).map(|e| e.rule), wanted, "{turn} {path:?}");
        }
    }
}

#[test]
fn many_patterns_are_matched_in_sets() {
    let entry = |rule: usize| MatchEntry {
        rule,
        alternative: 0,
        path: PathMatch::Regex(Pattern::new(&format!("/item-{rule}/[a-z]+")).unwrap()),
        conditions: MatchConditions::default(),
    };
    let group = RouteGroup::new(Vec::new(), (0..500).map(entry).collect());
    let none = HeaderList::default();
    assert_eq!(group.find(&request("/item-499/abc", &none)).map(|e| e.rule), Some(499));
    assert!(group.find(&request("/item-499/ABC", &none)).is_none());
}

#[test]
fn header_lines_are_tried_one_by_one_and_absent_needs_all_of_them_gone() {
    let headers = HeaderList(vec![("V".into(), "1".into()), ("v".into(), "2".into())]);
    let on = |test| MatchConditions {
        headers: [HeaderMatch { name: "v".into(), test }].into(),
        ..MatchConditions::default()
    };
    let holds = |test| on(test).first_miss(&request("/", &headers)).is_none();
    assert!(holds(ValueTest::Exact("1".into())) && holds(ValueTest::Exact("2".into())));
    assert!(!holds(ValueTest::Exact("1,2".into())));
    assert!(holds(ValueTest::Present) && !holds(ValueTest::Absent));
    assert!(holds(ValueTest::Prefix("".into())));
}

#[test]
fn the_first_value_of_a_query_parameter_counts_as_it_was_sent() {
    let none = HeaderList::default();
    let holds = |name: &str, value: &str, path: &str| {
        let query = [QueryMatch { name: name.into(), test: ValueTest::Exact(value.into()) }].into();
        MatchConditions { query, ..MatchConditions::default() }.first_miss(&request(path, &none)).is_none()
    };
    assert!(holds("a", "1", "/?a=1&a=2") && !holds("a", "2", "/?a=1&a=2"));
    assert!(!holds("a", "x y", "/?a=x%20y") && holds("a", "x%20y", "/?a=x%20y"));
    assert!(!holds("A", "1", "/?a=1") && holds("a", "", "/?b&a") && !holds("a", "", "/"));
}

#[test]
fn a_split_gives_each_leg_its_share_and_sums_equal_ones() {
    let backend = |name: &str| {
        let service = crate::ServiceKey::new(&"ns".into(), &name.into());
        BackendTarget::Backend(BackendId {
            service,
            port: 80,
            protocol: crate::Protocol::Tcp,
            tags: crate::Labels::EMPTY,
        })
    };
    let split = WeightedBackends::new([
        (backend("a"), 60),
        (BackendTarget::Error(500), 20),
        (backend("b"), 0),
        (backend("a"), 20),
    ]);
    assert_eq!(split.entries().len(), 2, "no entry without weight, one for each target");
    let errors = (0..100).filter(|i| split.pick(*i) == Some(&BackendTarget::Error(500))).count();
    assert_eq!(errors, 20);
    assert_eq!(split.failure(), None);
    assert_eq!(WeightedBackends::new([(BackendTarget::Error(500), 1)]).failure(), Some(500));
    let nothing = WeightedBackends::new([(backend("a"), 0)]);
    assert_eq!((nothing.pick(7), nothing.failure()), (None, Some(500)));
    let large = WeightedBackends::new([(backend("a"), u32::MAX), (backend("b"), u32::MAX)]);
    assert_eq!(large.pick(u64::from(u32::MAX)), Some(&backend("b")));
}

#[test]
fn an_outbound_is_found_by_every_address_until_it_is_replaced() {
    let service = crate::ServiceKey::new(&"ns".into(), &"web".into());
    let outbound = |address: &str| {
        Arc::new(Outbound {
            service: service.clone(),
            port: 80,
            protocol: AppProtocol::Tcp,
            addresses: [address.parse().unwrap()].into(),
            routing: Routing::Tcp(Arc::default()),
        })
    };
    let mut table = RouteTable::default();
    table.put_outbound(outbound("10.0.0.1"));
    assert!(table.outbound_at("10.0.0.1:80".parse().unwrap()).is_some());
    table.put_outbound(outbound("10.0.0.2"));
    assert!(table.outbound_at("10.0.0.1:80".parse().unwrap()).is_none());
    assert!(table.outbound_at("10.0.0.2:80".parse().unwrap()).is_some());
    table.remove_outbound(&service, 80);
    assert!(table.outbound_at("10.0.0.2:80".parse().unwrap()).is_none() && table.outbounds().count() == 0);
}

#[test]
fn a_port_says_what_is_spoken_on_it() {
    for (app, name, wanted) in [
        (None, "", AppProtocol::Tcp),
        (None, "http", AppProtocol::Http),
        (None, "http-web", AppProtocol::Http),
        (None, "https", AppProtocol::Tcp),
        (None, "http2", AppProtocol::Http2),
        (None, "grpc-api", AppProtocol::Grpc),
        (Some("http"), "tcp", AppProtocol::Http),
        (Some("kubernetes.io/h2c"), "", AppProtocol::Http2),
        (Some("https"), "http", AppProtocol::Tcp),
        (Some("example.com/own"), "http", AppProtocol::Tcp),
    ] {
        assert_eq!(AppProtocol::of(app, name), wanted, "{app:?} {name}");
    }
}
