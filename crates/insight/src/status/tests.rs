//! The report on small clusters whose figures can be said in advance.

use fixtures::{node, object, pod, with};
use model::Snapshot;
use serde_json::{Value, json};

use super::*;
use crate::ledger::TrafficGaps;
use crate::what_if::DemandBasis;
use plan::PlanningConfig;
use plan::planner::Planner;
use plan::slices::TriggerTimes;

/// Two nodes in each of three zones, and a Service with endpoints by zone.
struct Cluster {
    snapshot: Snapshot,
    slices: Vec<Slice>,
}

impl Cluster {
    fn new(service: Value, pods_by_zone: [usize; 3]) -> Self {
        let mut snapshot = fixtures::snapshot([&service]);
        for (at, (zone, pods)) in ["za", "zb", "zc"].into_iter().zip(pods_by_zone).enumerate() {
            for number in 0..2 {
                snapshot.apply(object(&node(&format!("{zone}-{number}"), zone)));
            }
            for number in 0..pods {
                let (name, on) = (format!("{zone}-{number}"), format!("{zone}-{}", number % 2));
                let ip = format!("10.{at}.0.{}", number + 1);
                snapshot.apply(object(&pod("shop", &name, "cart", &on, &[&ip])));
            }
        }
        let service = snapshot.services().next().expect("there is one").0;
        let planner = Planner::new(&snapshot, PlanningConfig::without_flags());
        let trigger = TriggerTimes::default();
        let (plan, _) = planner.plan(&snapshot, service, &[], &trigger, |_| Default::default());
        let slice = |content| Slice { annotated: true, ..Slice::owned_by(service, "slice", content) };
        let slices = plan.creates.into_iter().map(slice).collect();
        Self { snapshot, slices }
    }

    fn service(&self) -> &Service {
        self.snapshot.services().next().expect("there is one").0
    }

    fn evaluation(&self, traffic: Option<&TrafficSums>) -> Option<ServiceEvaluation> {
        let evaluator =
            WhatIfEvaluator::new(self.snapshot.nodes(), DemandBasis::Cpu, &PlanningConfig::without_flags());
        let demand = traffic.and_then(|sums| demand_of(&sums.rows[0].zone_pairs));
        evaluate(&evaluator, self.service(), &self.slices, None, demand.as_ref())
    }

    fn report(&self, traffic: Option<&TrafficSums>, nodes: Vec<NodeReportState>) -> StatusReport {
        let evaluation = self.evaluation(traffic);
        let evaluations =
            evaluation.map(|evaluation| (self.service().key.clone(), evaluation)).into_iter().collect();
        report(StatusInput {
            services: vec![(self.service(), &self.slices)],
            evaluations: &evaluations,
            traffic,
            price: &|_, _| Some(0.02),
            currency: "USD",
            nodes,
            nodes_without_proxy: 0,
            convergence: ConvergenceFigures::default(),
            namespace: None,
            name: None,
        })
    }
}

fn cart(extra: Value) -> Value {
    let service = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "cart", "namespace": "shop", "uid": "u1"},
        "spec": {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ipFamilies": ["IPv4"],
            "selector": {"app": "cart"}, "ports": [{"port": 80, "protocol": "TCP"}]}});
    with(service, &extra)
}

fn pair(from: &str, to: &str, connections: u64, bytes: u64) -> ZonePairTraffic {
    ZonePairTraffic { from_zone: from.into(), to_zone: to.into(), connections, bytes }
}

fn sums(window_seconds: u64, zone_pairs: Vec<ZonePairTraffic>) -> TrafficSums {
    let owner = TrafficOwner::Service { namespace: "shop".into(), name: "cart".into() };
    let rows = vec![TrafficRow { owner, zone_pairs }];
    TrafficSums {
        since: "2026-11-17T06:00:00Z".into(),
        window_seconds,
        rows,
        reporters: 6,
        ..TrafficSums::default()
    }
}

/// Traffic as without a mechanism: each zone sends a third to each zone. 9 GB in an hour.
fn even() -> TrafficSums {
    let zones = ["za", "zb", "zc"];
    let pairs = zones.iter().flat_map(|from| zones.map(|to| pair(from, to, 1_000, 1_000_000_000)));
    sums(3_600, pairs.collect())
}

#[test]
fn a_service_without_a_setting_has_a_fix_with_its_predicted_effect() {
    let traffic = even();
    let report = Cluster::new(cart(json!({})), [3, 3, 3]).report(Some(&traffic), Vec::new());
    let service = &report.services[0];
    assert_eq!(
        service.in_zone,
        InZoneShares { measured: Some(0.3333), planned: Some(0.3333), best: Some(1.0) }
    );
    assert_eq!(service.mechanism, "default");
    // 6 GB an hour cross, at 0.02 USD: 24 * 30 hours.
    let cost = 6.0 * 24.0 * DAYS_PER_MONTH * 0.02;
    assert_eq!(service.cost_per_month, Some(cents(cost)));
    assert!((service.avoidable_per_month.expect("measured") - cost).abs() < 0.02, "{service:?}");
    assert_eq!(
        service.fix.as_deref(),
        Some(
            r#"kubectl patch service cart -n shop --type merge -p '{"spec":{"trafficDistribution":"PreferSameZone"}}'"#
        )
    );
    let effect = service.effect.as_ref().expect("a fix has an effect");
    assert_eq!((effect.in_zone, effect.worst_overload), (1.0, 0.0));
    assert!(effect.cost_per_month.is_some_and(|change| (change + cost).abs() < 0.02), "{effect:?}");
    assert_eq!(
        service.reason.as_deref(),
        Some("no traffic distribution is set: nodes use all endpoints alike")
    );
    assert_eq!(report.summary.in_zone, Some(0.3333));
    assert_eq!(report.summary.cross_zone_bytes_per_day, Some(144e9));
    // As even as without a mechanism: nothing is saved.
    assert_eq!((report.summary.saved_bytes_per_day, report.summary.saved_per_month), (Some(0.0), Some(0.0)));
    let pair = &report.summary.zones[1];
    assert_eq!((pair.from.as_str(), pair.to.as_str(), pair.measured), ("za", "zb", 0.3333));
    assert_eq!(pair.planned, Some(0.3333));
}

#[test]
fn what_stays_in_zone_is_compared_with_an_even_spread() {
    // 9 GB an hour of za, of which an even spread over 2, 1 and 1 endpoints would send half elsewhere.
    let traffic = sums(3_600, vec![pair("za", "za", 8, 8_000_000_000), pair("za", "zb", 1, 1_000_000_000)]);
    let cluster = Cluster::new(cart(json!({})), [2, 1, 1]);
    let summary = cluster.report(Some(&traffic), Vec::new()).summary;
    assert_eq!(summary.saved_bytes_per_day, Some(3.5e9 * 24.0));
    assert_eq!(summary.saved_per_month, Some(cents(3.5 * 24.0 * DAYS_PER_MONTH * 0.02)));
    // Less than nothing is saved where more crosses.
    let traffic = sums(3_600, vec![pair("za", "zb", 1, 2_000_000_000), pair("", "zb", 1, 1_000_000_000)]);
    assert_eq!(cluster.report(Some(&traffic), Vec::new()).summary.saved_bytes_per_day, Some(-24e9));
}

#[test]
fn without_endpoints_or_bytes_nothing_is_compared() {
    let summary = Cluster::new(cart(json!({})), [0, 0, 0]).report(Some(&even()), Vec::new()).summary;
    assert_eq!((summary.saved_bytes_per_day, summary.saved_per_month), (None, None));
    let traffic = sums(3_600, vec![pair("za", "za", 8, 0)]);
    let summary = Cluster::new(cart(json!({})), [1, 1, 1]).report(Some(&traffic), Vec::new()).summary;
    assert_eq!(summary.saved_bytes_per_day, None);
}

#[test]
fn the_documented_json_names_are_there() {
    let report = Cluster::new(cart(json!({})), [1, 1, 1]).report(Some(&even()), Vec::new());
    let value = serde_json::to_value(&report).expect("it serialises");
    for name in
        ["inZone", "crossZoneBytesPerDay", "costPerMonth", "savedBytesPerDay", "savedPerMonth", "currency"]
    {
        assert!(!value["summary"][name].is_null(), "{name}: {value}");
    }
    assert_eq!(
        value["summary"]["nodes"],
        json!({"current": 0, "behind": [], "silent": [], "withoutProxy": 0})
    );
    let service = &value["services"][0];
    for name in ["namespace", "name", "mechanism", "worstOverload", "costPerMonth", "reason", "fix"] {
        assert!(!service[name].is_null(), "{name}: {service}");
    }
    for name in ["measured", "planned", "best"] {
        assert!(service["inZone"][name].is_f64(), "{name}: {service}");
    }
    assert_eq!(serde_json::from_value::<StatusReport>(value).expect("it parses"), report);
}

#[test]
fn without_reports_there_are_plans_and_no_measurements() {
    let report = Cluster::new(cart(json!({"spec": {"trafficDistribution": "PreferSameZone"}})), [2, 2, 2])
        .report(None, Vec::new());
    let service = &report.services[0];
    assert_eq!(service.in_zone, InZoneShares { measured: None, planned: Some(1.0), best: Some(1.0) });
    assert_eq!(
        (service.cost_per_month, service.fix.as_deref(), service.reason.as_deref()),
        (None, None, None)
    );
    assert_eq!(report.summary.in_zone, None);
    assert_eq!(report.limits, ["no traffic is counted: no node has reported yet"]);
}

#[test]
fn misplaced_endpoints_are_the_reason_where_no_setting_helps() {
    let service = cart(json!({"metadata": {"annotations": {"zoneward.dev/traffic-distribution": "Spill"}}}));
    let report = Cluster::new(service, [8, 1, 0]).report(None, Vec::new());
    let reason = report.services[0].reason.as_deref().expect("traffic leaves its zone");
    assert_eq!(reason, "endpoints are elsewhere: zc sends 33 % and has 0 % of the endpoints");
    assert_eq!(report.services[0].mechanism, "Spill");
    assert_eq!(report.services[0].fix, None);
}

#[test]
fn a_false_condition_means_not_honored_and_is_the_reason() {
    let service = cart(json!({"spec": {"trafficDistribution": "PreferSameZone"}, "status": {"conditions": [
        {"type": HONORED, "status": "False", "reason": "NodesBehind", "message": "Nodes are behind: za-0.",
         "lastTransitionTime": "2026-11-17T06:00:00Z"}]}}));
    let report = Cluster::new(service, [1, 1, 1]).report(None, Vec::new());
    assert!(!report.services[0].honored);
    assert_eq!(report.summary.not_honored, ["shop/cart"]);
    assert_eq!(report.services[0].reason.as_deref(), Some("NodesBehind: Nodes are behind: za-0."));
}

#[test]
fn an_explicit_off_is_honored() {
    let conditions: Labels = [
        (PROGRAMMED, "False NoMechanism Traffic is spread evenly over all endpoints."),
        (HONORED, "False NotProgrammed The EndpointSlices do not express it."),
    ]
    .into_iter()
    .collect();
    assert!(is_honored(&conditions));
    let refused: Labels =
        [(PROGRAMMED, "False WriteRefused The API server refused EndpointSlices.")].into_iter().collect();
    assert!(!is_honored(&refused));
}

#[test]
fn headless_services_and_those_without_endpoints_say_so() {
    let headless = cart(json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"]}}));
    let report = Cluster::new(headless, [1, 1, 1]).report(None, Vec::new());
    let reason = report.services[0].reason.as_deref().unwrap_or_default();
    assert!(reason.starts_with("not proxied: it is headless"), "{reason}");
    let report = Cluster::new(cart(json!({})), [0, 0, 0]).report(None, Vec::new());
    assert_eq!(report.services[0].reason.as_deref(), Some("no ready endpoint"));
    assert_eq!(report.services[0].in_zone, InZoneShares::default());
}

#[test]
fn nodes_are_current_behind_or_silent() {
    let node = |name: &str, change: &dyn Fn(&mut NodeReportState)| {
        let mut node = NodeReportState { name: name.into(), ready: true, ..NodeReportState::default() };
        change(&mut node);
        node
    };
    let nodes = vec![
        node("current", &|_| {}),
        node("in-grace", &|n| (n.services_behind, n.behind_seconds) = (3, 29)),
        node("late", &|n| (n.services_behind, n.behind_seconds) = (3, 30)),
        node("failing", &|n| n.failed = vec!["shop/cart".into()]),
        node("silent", &|n| n.report_age_seconds = 91),
        node("down", &|n| (n.ready, n.report_age_seconds) = (false, 900)),
    ];
    let report = Cluster::new(cart(json!({})), [1, 1, 1]).report(None, nodes);
    let counts = &report.summary.nodes;
    assert_eq!(counts.current, 2);
    assert_eq!(counts.behind, ["failing", "late"]);
    assert_eq!(counts.silent, ["silent"]);
    let names: Vec<&str> = report.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["silent", "failing", "late", "current", "in-grace", "down"]);
}

#[test]
fn absurd_counts_give_finite_figures() {
    let cluster = Cluster::new(cart(json!({})), [1, 0, 2]);
    let all = u64::MAX;
    let cases = [
        sums(0, vec![pair("za", "zb", all, all)]),
        sums(1, vec![pair("za", "zb", all, all), pair("zb", "za", all, all), pair("zz", "za", 1, 1)]),
        sums(u64::MAX, vec![pair("", "", all, all), pair("za", "", 1, 0)]),
        sums(60, Vec::new()),
        TrafficSums {
            gaps: TrafficGaps { lost_events: all, dropped_counts: all, unaccounted_flows: all },
            silent: vec!["za-0".into()],
            ..sums(60, vec![pair("za", "za", 0, 0)])
        },
    ];
    for traffic in cases {
        let report = cluster.report(Some(&traffic), Vec::new());
        let text = serde_json::to_string(&report).expect("it serialises");
        let back: StatusReport = serde_json::from_str(&text).expect("no figure is infinite or not a number");
        let shares = back.services[0].in_zone;
        for share in [shares.measured, shares.planned, shares.best].into_iter().flatten() {
            assert!((0.0..=1.0).contains(&share), "{text}");
        }
    }
}

#[test]
fn the_detail_has_a_row_per_zone_with_reasons() {
    let cluster = Cluster::new(cart(json!({"spec": {"trafficDistribution": "PreferSameZone"}})), [2, 2, 2]);
    let traffic = even();
    let evaluation = cluster.evaluation(Some(&traffic));
    let detail = detail(
        cluster.service(),
        &cluster.slices,
        cluster.snapshot.nodes(),
        evaluation.as_ref(),
        Some(&traffic.rows[0].zone_pairs),
        plan::FeatureGates::ALL,
    );
    assert_eq!(detail.zones.len(), 3);
    let row = &detail.zones[1];
    assert_eq!(
        (row.from.as_str(), row.endpoints, row.mode.as_str(), row.demand),
        ("zb", 2, "same-zone", 0.3333)
    );
    let own = row.flows.iter().find(|flow| flow.to == "zb").expect("the plan keeps it");
    assert_eq!((own.planned, own.measured), (1.0, Some(0.3333)));
    assert!(row.why.iter().any(|why| why.rule == "zone hints"), "{row:?}");
}

#[test]
fn the_canary_is_planned_by_weight_and_measured_by_connections() {
    let counted = |_: &str, name: &str| Some(if name == "v1" { 88.0 } else { 12.0 });
    let backend = |name: &str, weight| ("shop".to_owned(), name.to_owned(), weight);
    let backends = [backend("v1", 90), backend("v2", 10)];
    let shares = CanaryShare::of_rule("split", &backends, counted);
    let figures: Vec<(f64, Option<f64>)> = shares.iter().map(|s| (s.planned, s.measured)).collect();
    assert_eq!(figures, [(0.9, Some(0.88)), (0.1, Some(0.12))]);
    assert_eq!(CanaryShare::of_rule("split", &backends, |_, _| None)[0].measured, None);
}

mod agreement {
    use super::*;

    fn planned() -> TrafficFigures {
        let zones = [(("za", "za"), 0.45), (("za", "zb"), 0.05), (("zb", "zb"), 0.5)];
        let zones = zones.into_iter().map(|((a, b), share)| ((Name::new(a), Name::new(b)), share)).collect();
        TrafficFigures { zones, ..TrafficFigures::default() }
    }

    #[test]
    fn a_split_agrees_within_its_sampling_error() {
        let check = |own, other| {
            super::agreement(&planned(), &[pair("za", "za", own, 0), pair("za", "zb", other, 0)])
        };
        assert_eq!(check(900, 100), Agreement::AsPlanned);
        assert_eq!(check(870, 130), Agreement::AsPlanned);
        assert!(matches!(check(800, 200), Agreement::Deviates { .. }));
        assert_eq!(check(40, 9), Agreement::TooFew);
        // A zone that the plan does not reach.
        let elsewhere = super::agreement(&planned(), &[pair("zb", "zc", 60, 0)]);
        assert_eq!(
            elsewhere,
            Agreement::Deviates { from: "zb".into(), to: "zb".into(), planned: 1.0, measured: 0.0 }
        );
    }

    #[test]
    fn three_windows_in_a_row_turn_the_condition_and_two_do_not() {
        let off = Agreement::Deviates { from: "a".into(), to: "b".into(), planned: 1.0, measured: 0.0 };
        let mut memory = Observation::default();
        let mut turns = Vec::new();
        let windows = [
            &Agreement::AsPlanned,
            &Agreement::AsPlanned,
            &off,
            &Agreement::AsPlanned,
            &Agreement::TooFew,
            &Agreement::AsPlanned,
            &Agreement::AsPlanned,
            &off,
            &off,
            &Agreement::AsPlanned,
            &off,
            &off,
            &off,
        ];
        for (at, window) in windows.iter().enumerate() {
            let (next, turned) = memory.after(window);
            memory = next;
            turns.extend(turned.then_some((at, memory.as_planned)));
        }
        assert_eq!(turns, [(6, Some(true)), (12, Some(false))]);
        let condition = observed_condition(&memory).expect("it is known");
        assert_eq!(
            (condition.kind, condition.status.as_str()),
            ("zoneward.dev/TrafficDistributionObserved", "False")
        );
        assert_eq!(observed_condition(&Observation::default()), None);
    }
}

/// The signals of several Services with the traffic of each.
fn signals_of(services: Vec<ServiceStatus>, rows: Vec<TrafficRow>) -> StatusSignals {
    let not_honored = services.iter().filter(|s| !s.honored).map(ServiceStatus::key).collect();
    let summary = StatusSummary { not_honored, ..StatusSummary::default() };
    let report = StatusReport { summary, services, ..StatusReport::default() };
    let traffic = TrafficSums { window_seconds: 86_400, rows, ..TrafficSums::default() };
    signals(&report, &BTreeMap::new(), Some(&traffic), &|_, _| Some(0.02))
}

#[test]
fn signals_are_bounded_and_all_other_services_are_one_row() {
    let name = |number: usize| format!("s{number:03}");
    let service = |number: usize| ServiceStatus {
        namespace: "shop".into(),
        name: name(number),
        bytes_per_day: Some(number as f64),
        // One with little traffic is not honoured.
        honored: number != 3,
        ..ServiceStatus::default()
    };
    let row = |number: usize| TrafficRow {
        owner: TrafficOwner::Service { namespace: "shop".into(), name: name(number) },
        zone_pairs: vec![pair("za", "zb", 1, 1_000_000_000)],
    };
    let direct = TrafficRow {
        owner: TrafficOwner::NotThroughService,
        zone_pairs: vec![pair("za", "zb", 1, 9_000_000_000)],
    };
    let beyond = TrafficRow {
        owner: TrafficOwner::OtherServices,
        zone_pairs: vec![pair("za", "za", 1, 7_000_000_000)],
    };
    let rows = (0..206).map(row).chain([direct, beyond]).collect();
    let signals = signals_of((0..206).map(service).collect(), rows);
    assert_eq!((signals.services.len(), signals.not_honored), (201, 1));
    assert_eq!((signals.services[0].name.as_str(), signals.services[0].honored), ("s003", false));
    assert_eq!(signals.services[1].name, "s205");
    let others = signals.services.last().expect("it is there");
    assert_eq!(
        (others.namespace.as_str(), others.name.as_str(), others.honored),
        ("", "OtherServices", true)
    );
    // Six Services with a GB each across, and seven GB in zone.
    assert_eq!(others.in_zone.measured, Some(rounded(7.0 / 13.0)));
    assert_eq!(others.cost_per_month, Some(3.6));
}

#[test]
fn a_service_without_traffic_has_signals_only_if_it_is_not_honored() {
    let service =
        |name: &str, honored| ServiceStatus { name: name.into(), honored, ..ServiceStatus::default() };
    let signals = signals_of(vec![service("fine", true), service("broken", false)], Vec::new());
    assert_eq!(signals.services.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["broken"]);
}

#[test]
fn the_overload_of_a_zone_is_that_of_its_endpoints_for_the_measured_demand() {
    let cluster = Cluster::new(cart(json!({"spec": {"trafficDistribution": "PreferSameZone"}})), [1, 1, 2]);
    let traffic =
        sums(60, vec![pair("za", "za", 60, 600), pair("zb", "zb", 20, 200), pair("zc", "zc", 20, 200)]);
    let evaluation = cluster.evaluation(Some(&traffic)).expect("nodes proxy it");
    let report = cluster.report(Some(&traffic), Vec::new());
    let evaluations = BTreeMap::from([(cluster.service().key.clone(), evaluation)]);
    let signals = signals(&report, &evaluations, Some(&traffic), &|_, _| None);
    let overload: Vec<(&str, f64)> =
        signals.overload_by_zone.iter().map(|(z, load)| (z.as_str(), *load)).collect();
    // za has a quarter of the endpoints and 60 % of the traffic.
    assert_eq!(overload, [("za", 1.4), ("zb", -0.2), ("zc", -0.6)]);
    assert_eq!(signals.services[0].in_zone.planned, Some(1.0));
}

#[test]
fn a_fix_has_to_gain_three_points() {
    // Of ten endpoints in za and one elsewhere, almost all demand is in za already.
    let cluster = Cluster::new(cart(json!({})), [50, 1, 0]);
    let little = sums(60, vec![pair("za", "za", 980, 9_800), pair("za", "zb", 20, 200)]);
    let evaluation = cluster.evaluation(Some(&little)).expect("nodes proxy it");
    assert!(evaluation.planned.in_zone > 0.97 && evaluation.best > evaluation.planned.in_zone + 0.01);
    assert!(evaluation.change.is_none(), "{:?}", evaluation.change);
    let cluster = Cluster::new(cart(json!({})), [25, 1, 0]);
    let evaluation = cluster.evaluation(Some(&little)).expect("nodes proxy it");
    assert!(evaluation.change.is_some(), "{:?}", evaluation.planned.in_zone);
}

#[test]
fn a_service_whose_traffic_all_leaves_its_zone_has_a_share_of_zero_without_a_sign() {
    let share = in_zone(&[pair("za", "zb", 1, 1)]).expect("it has traffic");
    assert!(share.is_sign_positive() && share == 0.0, "{share:?}");
}
