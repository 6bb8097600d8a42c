//! Pages of made-up reports: what they show, that names cannot add markup, and how large they are.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

use std::collections::BTreeMap;
use std::io::Write;

use crate::ledger::{TrafficMinute, ZonePairTraffic};
use crate::status::{
    CanaryShare, DetailReason, FixEffect, InZoneShares, NodeCounts, NodeState, NodeStatus, ServiceDetail,
    ServiceStatus, ServiceView, StatusCondition, StatusEvent, StatusReport, StatusSummary, WhatIfView,
    ZoneFlow, ZonePairStatus, ZoneRow,
};
use crate::what_if::{ComparedState, EndpointLoad, TrafficFigures, WhatIfComparison};
use plan::hints::Mechanism;

use crate::pages::*;

const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];
const FIX: &str = "kubectl annotate service cart -n shop --overwrite zoneward.dev/traffic-distribution=Spill";

fn service(number: usize) -> ServiceStatus {
    let cost = (number * 37 % 1_000) as f64;
    ServiceStatus {
        namespace: format!("team-{}", number % 50),
        name: format!("service-{number}"),
        mechanism: ["default", "PreferSameZone", "Spill"][number % 3].to_owned(),
        in_zone: InZoneShares {
            measured: Some((number % 101) as f64 / 100.0),
            planned: Some(0.9),
            best: Some(0.97),
        },
        worst_overload: Some((number % 7) as f64 / 10.0),
        bytes_per_day: Some(1e9 * cost),
        cross_zone_bytes_per_day: Some(4e8 * cost),
        cost_per_month: Some(cost),
        avoidable_per_month: Some(cost / 2.0),
        connections_per_second: Some(3.5),
        reason: Some("zone-c sends 33 % of the traffic and has 10 % of the endpoints".to_owned()),
        fix: Some(FIX.to_owned()),
        effect: Some(FixEffect {
            mechanism: "Spill".to_owned(),
            in_zone: 0.96,
            worst_overload: 0.05,
            cost_per_month: Some(-cost / 2.0),
        }),
        honored: number % 11 != 3,
        ..ServiceStatus::default()
    }
}

fn node(number: usize) -> NodeStatus {
    NodeStatus {
        name: format!("node-{number}"),
        zone: Some(ZONES[number % 3].to_owned()),
        state: if number == 0 { NodeState::Silent } else { NodeState::Current },
        revision: 17,
        services_behind: number % 2,
        report_age_seconds: number as u64,
        failed_services: if number == 1 { vec!["shop/cart".to_owned()] } else { Vec::new() },
        repairs: Some(0),
        lost_events: None,
        last_outage: None,
    }
}

fn report(services: usize) -> StatusReport {
    let pair = |from: &str, to: &str| ZonePairStatus {
        from: from.to_owned(),
        to: to.to_owned(),
        bytes_per_day: 4.2e10,
        cost_per_month: (from != to).then_some(25.2),
        measured: if from == to { 0.7 } else { 0.15 },
        planned: Some(if from == to { 0.96 } else { 0.02 }),
    };
    StatusReport {
        summary: StatusSummary {
            in_zone: Some(0.7),
            in_zone_planned: Some(0.96),
            cross_zone_bytes_per_day: Some(2.5e11),
            cost_per_month: Some(151.0),
            avoidable_per_month: Some(120.0),
            currency: "USD".to_owned(),
            worst_overload: Some(0.6),
            worst_overload_service: Some("team-6/service-6".to_owned()),
            nodes: NodeCounts { current: 5, behind: vec!["node-1".to_owned()], ..NodeCounts::default() },
            services,
            since: Some("2026-11-17T08:00:00Z".to_owned()),
            window_seconds: 3_600,
            zones: ZONES.iter().flat_map(|from| ZONES.iter().map(|to| pair(from, to))).collect(),
            ..StatusSummary::default()
        },
        services: (0..services).map(service).collect(),
        nodes: (0..6).map(node).collect(),
        limits: vec!["4 flows are older than the accounting".to_owned()],
        health_checks: Vec::new(),
        detail: None,
    }
}

fn view() -> ServiceView {
    let flow = |to: &str, planned| ZoneFlow { to: to.to_owned(), planned, measured: Some(0.5) };
    ServiceView {
        detail: ServiceDetail {
            namespace: "team-1".to_owned(),
            name: "service-1".to_owned(),
            zones: vec![ZoneRow {
                from: "zone-a".to_owned(),
                demand: 0.4,
                endpoints: 3,
                mode: "zone hints".to_owned(),
                flows: vec![flow("zone-a", 0.9), flow("", 0.1)],
                why: vec![DetailReason {
                    rule: "hints".to_owned(),
                    detail: "all endpoints have a hint".to_owned(),
                }],
            }],
            conditions: vec![StatusCondition {
                kind: "zoneward.dev/TrafficDistributionHonored".to_owned(),
                status: "False".to_owned(),
                reason: "NodesBehind".to_owned(),
                message: "1 node is behind".to_owned(),
            }],
            events: vec![StatusEvent {
                reason: "TopologyAwareHintsEnabled".to_owned(),
                ..StatusEvent::default()
            }],
            canary: vec![CanaryShare {
                route: "web".to_owned(),
                backend: "team-1/v2".to_owned(),
                planned: 0.1,
                measured: Some(0.12),
            }],
            spill_demand: None,
        },
        endpoints: (1..=50_u8).map(load).collect(),
        history: (0..60).map(minute).collect(),
        fix: None,
    }
}

fn load(number: u8) -> EndpointLoad {
    EndpointLoad {
        address: std::net::Ipv4Addr::new(10, 0, 0, number).into(),
        node: Some("node-1".into()),
        zone: Some("zone-a".into()),
        load: f64::from(number) / 1_000.0,
        fair: 0.02,
    }
}

fn minute(number: u64) -> TrafficMinute {
    let pair = |to: &str| ZonePairTraffic {
        from_zone: "zone-a".to_owned(),
        to_zone: to.to_owned(),
        connections: 3,
        bytes: 1_000_000 * number,
    };
    TrafficMinute { start_seconds: number * 60, zone_pairs: vec![pair("zone-a"), pair("zone-b")] }
}

fn what_if_view() -> WhatIfView {
    let state = |mechanism, in_zone: f64| ComparedState {
        mechanism,
        held_back: None,
        figures: TrafficFigures {
            in_zone,
            max_overload: 0.1,
            zones: BTreeMap::from([
                (("zone-a".into(), "zone-a".into()), in_zone),
                (("zone-a".into(), "zone-b".into()), 1.0 - in_zone),
            ]),
            ..TrafficFigures::default()
        },
        endpoints: Vec::new(),
        endpoints_by_zone: BTreeMap::from([("zone-a".into(), 3)]),
    };
    WhatIfView {
        comparison: WhatIfComparison {
            before: state(Mechanism::None, 0.33),
            after: state(Mechanism::Spill, 0.96),
        },
        is_measured: true,
        command: Some(FIX.to_owned()),
    }
}

fn routes() -> Vec<RouteRow> {
    vec![RouteRow {
        kind: "MeshHTTPRoute".to_owned(),
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        target: "Service web".to_owned(),
        backends: vec![RouteBackend { name: "web-v2".to_owned(), planned: 0.1, measured: Some(0.12) }],
        conditions: vec![StatusCondition {
            kind: "Accepted".to_owned(),
            status: "False".to_owned(),
            reason: "NoMatchingParent".to_owned(),
            message: "there is no such Service".to_owned(),
        }],
    }]
}

fn all_pages(report: &StatusReport) -> Vec<Page> {
    let form = WhatIfForm { service: "team-1/service-1".to_owned(), ..WhatIfForm::default() };
    let extras = ServiceExtras { allow_apply: true, notes: vec!["Events cannot be read".to_owned()] };
    vec![
        overview_page(report, &view().history),
        services_page(report, &ServicesQuery::default()),
        service_page(report, &view(), &extras),
        nodes_page(report, &NodesQuery::default()),
        routes_page(&routes(), "", &[]),
        what_if_page(report, &form, Some(&what_if_view())),
    ]
}

/// The document with ordinary spaces.
fn document(page: &Page) -> String {
    crate::pages::document(page).replace('\u{a0}', " ")
}

fn services_html(link: &str, report: &StatusReport) -> String {
    let Some(PageTarget::Services(query)) = PageTarget::parse_link(link) else { panic!("{link}") };
    document(&services_page(report, &query))
}

/// The names of the Services in the order of their rows.
fn names(html: &str) -> Vec<String> {
    let rows = html.split("data-head=\"Service\"><a href=\"").skip(1);
    rows.map(|row| row.split("\">").nth(1).unwrap().split('<').next().unwrap().to_owned()).collect()
}

#[test]
fn the_overview_has_the_figures_the_matrix_with_numbers_and_the_limits() {
    let html = document(&overview_page(&report(20), &[]));
    for part in [
        "70 %",
        "96 % planned",
        "250 GB/day",
        "151 USD",
        "120 USD avoidable",
        "+60 %",
        "1 behind: node-1",
        "<td class=\"s7 own off\">70 %\nplan 96 %\n42 GB</td>",
        "<td class=\"s2 off\">15 %\nplan 2 %\n42 GB\n25 USD</td>",
        "4 flows are older than the accounting.",
        "15 more Services with a fix",
    ] {
        assert!(html.contains(part), "{part} in {html}");
    }
}

#[test]
fn an_empty_cluster_has_pages_that_say_so() {
    let empty = StatusReport::default();
    let html = document(&overview_page(&empty, &[]));
    for part in ["not measured yet", "No traffic is measured yet", "There are no Services"] {
        assert!(html.contains(part), "{part} in {html}");
    }
    assert!(
        document(&nodes_page(&empty, &NodesQuery::default())).contains("No node runs a Zoneward node proxy")
    );
    assert!(services_html("/services?q=x", &empty).contains("There are no Services"));
    assert!(document(&routes_page(&[], "", &[])).contains("There are no routes"));
    let missing = service_page(&empty, &ServiceView::default(), &ServiceExtras::default());
    assert!(document(&missing).contains("There are no ready endpoints"));
}

#[test]
fn services_are_sorted_searched_and_paged() {
    let report = report(120);
    let first = names(&services_html("/services", &report));
    assert_eq!((first.len(), first[0].as_str()), (50, "team-0/service-0"));
    let last = names(&services_html("/services?page=3", &report));
    assert_eq!(last.len(), 20);
    assert_eq!(names(&services_html("/services?page=99", &report)), last);
    let by_cost = names(&services_html("/services?sort=cost", &report));
    let cost = |key: &String| report.services.iter().find(|s| s.key() == *key).unwrap().cost_per_month;
    assert!(by_cost.windows(2).all(|two| cost(&two[0]) >= cost(&two[1])), "{by_cost:?}");
    let turned = names(&services_html("/services?sort=cost&reverse=1", &report));
    assert_eq!(cost(&turned[0]), Some(0.0));
    assert!(names(&services_html("/services?sort=name", &report)).is_sorted());
    assert_eq!(names(&services_html("/services?q=SERVICE-117", &report)), ["team-17/service-117"]);
    assert_eq!(names(&services_html("/services?q=team-3%2F", &report)).len(), 3);
    assert!(services_html("/services?q=nothing", &report).contains("None of 120 Services matches"));
    let sorted = services_html("/services?sort=cost&q=team", &report);
    assert!(
        sorted.contains("aria-sort=\"descending\"><a href=\"/services?q=team&amp;sort=cost&amp;reverse=1\"")
    );
}

#[test]
fn services_without_a_figure_are_last_in_both_directions() {
    let mut report = report(3);
    report.services[1].cost_per_month = None;
    for link in ["/services?sort=cost", "/services?sort=cost&reverse=1"] {
        assert_eq!(names(&services_html(link, &report)).last().unwrap(), "team-1/service-1", "{link}");
    }
}

#[test]
fn nodes_that_need_attention_are_first() {
    let html = document(&nodes_page(&report(1), &NodesQuery::default()));
    assert!(html.find("node-0").unwrap() < html.find("node-2").unwrap());
    for part in ["silent", "shop/cart", "under 30 s ago"] {
        assert!(html.contains(part), "{part}");
    }
    let Some(PageTarget::Nodes(query)) = PageTarget::parse_link("/nodes?q=zone-b&sort=name") else {
        panic!()
    };
    let html = document(&nodes_page(&report(1), &query));
    assert!(html.contains("node-1") && html.contains("node-4") && !html.contains("node-2"));
}

#[test]
fn a_service_has_flows_loads_reasons_and_a_fix() {
    let extras = ServiceExtras { allow_apply: false, notes: Vec::new() };
    let html = document(&service_page(&report(3), &view(), &extras));
    for part in [
        FIX,
        "data-copy=\"kubectl annotate",
        "1 % to 96 % in zone, -18 USD/month, overload -5 %",
        "<td class=\"s5 own off\">50 %\nplan 90 %</td>",
        "(no zone)",
        "10.0.0.50",
        "10 endpoints with less load not shown",
        "all endpoints have a hint",
        "<strong class=\"warn\">False</strong>",
        "team-1/v2",
        "data-series=\"{&quot;x&quot;:[1794902400",
    ] {
        assert!(html.contains(part), "{part} in {html}");
    }
    assert!(!html.contains("type=\"password\""));
    let extras = ServiceExtras { allow_apply: true, notes: Vec::new() };
    let html = document(&service_page(&report(3), &view(), &extras));
    assert!(html.contains("<form method=\"post\" action=\"/services/team-1/service-1/apply\""));
}

#[test]
fn what_if_shows_before_and_after() {
    let form = WhatIfForm { service: "team-1/service-1".to_owned(), ..WhatIfForm::default() };
    let html = document(&what_if_page(&report(3), &form, Some(&what_if_view())));
    for part in [
        "Balanced",
        "Spill",
        "33 %",
        "96 %",
        "+63.0 points",
        "On the measured demand",
        "67.0",
        FIX,
        "2.21 USD",
    ] {
        assert!(html.contains(part), "{part} in {html}");
    }
    assert!(
        document(&what_if_page(&report(3), &form, None)).contains("There is no Service team-1/service-1")
    );
    assert!(document(&what_if_page(&report(3), &WhatIfForm::default(), None)).contains("Choose a Service"));
}

#[test]
fn routes_show_planned_and_measured_shares_and_what_is_wrong() {
    let html = document(&routes_page(&routes(), "V2", &["routes cannot be read".to_owned()]));
    for part in [
        "shop/web",
        "web-v2",
        "<strong>10 %</strong>, <span class=\"share\">12 %",
        "Accepted False",
        "there is no such Service",
    ] {
        assert!(html.contains(part), "{part} in {html}");
    }
    assert!(document(&routes_page(&routes(), "none", &[])).contains("No route matches"));
}

#[test]
fn routes_of_every_kind_have_rows() {
    let connections = |_: &str, name: &str| match name {
        "web-v1" => Some(9.0),
        "web-v2" => Some(1.0),
        _ => None,
    };
    let rule = serde_json::json!({"matches": [{"path": {"prefix": "/"}}], "default": {"backendRefs": [
        {"weight": 80, "name": "web-v1"}, {"weight": 20, "name": "web-v2"}]}});
    let subset = serde_json::json!({"default": {"backendRefs": [
        {"weight": 90, "name": "web-v1", "tags": {"version": "v1"}}, {"weight": 10, "name": "web-v1"}]}});
    let route = serde_json::json!({"metadata": {"namespace": "shop", "name": "web"},
        "spec": {"to": [{"targetRef": {"name": "web"}, "rules": [rule, subset]}]},
        "status": {"conditions": [{"type": "Accepted", "status": "True"}]}});
    let rows = RouteRow::of_object("MeshHTTPRoute", &route, &connections);
    let shares: Vec<(&str, f64, Option<f64>)> =
        rows.iter().flat_map(|row| &row.backends).map(|b| (b.name.as_str(), b.planned, b.measured)).collect();
    let expected = [
        ("shop/web-v1", 0.8, Some(0.9)),
        ("shop/web-v2", 0.2, Some(0.1)),
        ("shop/web-v1 (version=v1)", 0.9, None),
        ("shop/web-v1", 0.1, None),
    ];
    assert_eq!(shares, expected);
    assert_eq!(
        (rows[0].target.as_str(), rows[0].conditions.len(), rows[1].conditions.len()),
        ("Service web /", 1, 0)
    );
    let gateway = serde_json::json!({"metadata": {"name": "edge"},
        "spec": {"listeners": [{"protocol": "HTTPS", "port": 8443, "hostname": "a.example"}]}});
    assert_eq!(RouteRow::of_object("MeshGateway", &gateway, &connections)[0].target, "HTTPS a.example:8443");
    assert_eq!(RouteRow::of_object("MeshTCPRoute", &serde_json::json!({"spec": 7}), &connections).len(), 1);
}

/// What the Content-Security-Policy would refuse, and what would send a request elsewhere.
#[test]
fn pages_have_no_inline_script_style_or_foreign_address() {
    let report = report(60);
    let pages = all_pages(&report);
    let pages = pages.iter().map(document).chain([error_document("Not found", "no such page", "/")]);
    for html in pages.chain([status_file(&report)]) {
        let is_file = html.contains("<style>");
        for part in ["style=", "onclick", "onload", "http://", "https://", "javascript:", "@import", "url("] {
            assert!(!html.contains(part), "{part}");
        }
        assert!(is_file || !html.contains("<style"), "inline style");
        for script in html.split("<script").skip(1) {
            assert!(
                script.starts_with(" defer src=\"/assets/") && script.contains("\"></script>"),
                "{script}"
            );
        }
        assert!(!is_file || !html.contains("<script"));
    }
}

#[test]
fn names_cannot_add_markup() {
    let evil = "<img src=x onerror=alert(1)>\"'&";
    let mut report = report(2);
    report.services[0].name = evil.to_owned();
    report.services[0].reason = Some(evil.to_owned());
    report.services[0].fix = Some(evil.to_owned());
    report.services[0].mechanism = evil.to_owned();
    report.summary.not_honored = vec![evil.to_owned()];
    report.summary.worst_overload_service = Some(evil.to_owned());
    report.summary.zones[0].from = evil.to_owned();
    report.summary.currency = evil.to_owned();
    report.nodes[0].name = evil.to_owned();
    report.nodes[0].zone = Some(evil.to_owned());
    report.nodes[1].failed_services = vec![evil.to_owned()];
    report.limits = vec![evil.to_owned()];
    let mut view = view();
    view.detail.name = evil.to_owned();
    view.detail.zones[0].from = evil.to_owned();
    view.detail.zones[0].why[0].detail = evil.to_owned();
    view.detail.conditions[0].message = evil.to_owned();
    view.detail.events[0].message = evil.to_owned();
    view.detail.canary[0].route = evil.to_owned();
    let mut routes = routes();
    routes[0].name = evil.to_owned();
    routes[0].backends[0].name = evil.to_owned();
    routes[0].conditions[0].message = evil.to_owned();
    let form =
        WhatIfForm { service: format!("a/{evil}"), failed_zone: evil.to_owned(), ..WhatIfForm::default() };
    let extras = ServiceExtras { allow_apply: true, notes: vec![evil.to_owned()] };
    let pages = [
        overview_page(&report, &[]),
        services_page(&report, &ServicesQuery { search: evil.to_lowercase(), ..ServicesQuery::default() }),
        services_page(&report, &ServicesQuery::default()),
        service_page(&report, &view, &extras),
        nodes_page(&report, &NodesQuery { search: evil.to_owned(), ..NodesQuery::default() }),
        nodes_page(&report, &NodesQuery::default()),
        routes_page(&routes, evil, &[evil.to_owned()]),
        what_if_page(&report, &form, Some(&what_if_view())),
        what_if_page(&report, &form, None),
    ];
    let pages = pages.iter().map(document);
    for html in pages.chain([status_file(&report), error_document(evil, evil, evil)]) {
        assert!(!html.contains("<img"), "{html}");
        assert!(!html.contains("alert(1)>\"'&"), "an attribute is left: {html}");
    }
}

#[test]
fn fragments_that_did_not_change_have_the_same_version() {
    let (one, two) = (services_page(&report(60), &ServicesQuery::default()), report(60));
    assert_eq!(one, services_page(&two, &ServicesQuery::default()));
    let mut changed = report(60);
    changed.services[0].cost_per_month = Some(7.0);
    let other = services_page(&changed, &ServicesQuery::default());
    let versions = |page: &Page| page.fragments.iter().map(PageFragment::version).collect::<Vec<_>>();
    assert_eq!(versions(&one)[0], versions(&other)[0]);
    assert_ne!(versions(&one)[1], versions(&other)[1]);
    let event = other.fragments[1].event();
    assert!(event.starts_with("event: fragment\ndata: {\"id\":\"services\",") && event.ends_with("}\n\n"));
    assert_eq!(event.lines().count(), 3);
}

#[test]
fn pages_are_small() {
    let gzipped = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap().len()
    };
    let assets = [&assets::APP_JS, &assets::STYLE_CSS, &assets::UPLOT_JS, &assets::UPLOT_CSS];
    let with_assets: usize = assets.iter().map(|asset| gzipped(asset.content())).sum();
    for page in all_pages(&report(10_000)) {
        let size = gzipped(document(&page).as_bytes()) + with_assets;
        assert!(size < 60_000, "{} is {size} bytes", page.title);
    }
}

#[test]
fn the_file_of_the_report_has_every_service_and_its_fix() {
    let html = status_file(&report(120));
    assert_eq!(html.matches("data-head=\"Service\"").count(), 120);
    assert!(html.contains("from \\ to") && html.contains("kubectl annotate service cart"));
    assert!(!html.contains("href=\"/"), "a file has no pages to link to");
}
