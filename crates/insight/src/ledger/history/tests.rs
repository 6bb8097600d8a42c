//! Lost, late and repeated reports, restarts, new leaders, and the bounds.

use super::*;

fn at(seconds: u64) -> MonotonicTime {
    MonotonicTime(Duration::from_secs(1_000_000 + seconds))
}

fn ledger() -> TrafficLedger {
    TrafficLedger::new("2026-11-17T08:00:00Z", at(0))
}

fn service(name: &str) -> TrafficOwner {
    TrafficOwner::Service { namespace: "shop".to_owned(), name: name.to_owned() }
}

fn row(owner: TrafficOwner, pairs: &[(&str, &str, u64, u64)]) -> TrafficRow {
    let pair = |(from, to, connections, bytes): &(&str, &str, u64, u64)| ZonePairTraffic {
        from_zone: (*from).to_owned(),
        to_zone: (*to).to_owned(),
        connections: *connections,
        bytes: *bytes,
    };
    TrafficRow { owner, zone_pairs: pairs.iter().map(pair).collect() }
}

/// A report of cart's bytes from a to b, of a reporter that counts since `counted` seconds.
fn report(reporter: &str, start: &str, sequence: u64, counted: u64, bytes: u64) -> TrafficReport {
    TrafficReport {
        reporter: reporter.to_owned(),
        start: start.to_owned(),
        sequence,
        counted_seconds: counted,
        rows: vec![row(service("cart"), &[("a", "b", bytes / 10, bytes)])],
        ..TrafficReport::default()
    }
}

fn bytes(ledger: &TrafficLedger, now: u64) -> u64 {
    let sums = ledger.sums(Duration::from_secs(24 * 3600), at(now));
    sums.rows.iter().flat_map(|row| &row.zone_pairs).map(|pair| pair.bytes).sum()
}

#[test]
fn a_lost_repeated_or_late_report_changes_nothing() {
    let mut ledger = ledger();
    ledger.record(&report("node/n1", "s1", 1, 10, 100), at(20)).unwrap();
    assert_eq!(bytes(&ledger, 20), 100, "it is younger than the ledger");
    // Number 2 is lost.
    ledger.record(&report("node/n1", "s1", 3, 70, 700), at(80)).unwrap();
    ledger.record(&report("node/n1", "s1", 3, 70, 700), at(81)).unwrap();
    ledger.record(&report("node/n1", "s1", 2, 40, 400), at(82)).unwrap();
    assert_eq!(bytes(&ledger, 90), 700);
    let sums = ledger.sums(Duration::from_secs(60), at(90));
    assert_eq!((sums.window_seconds, sums.rows.len()), (30, 1));
    assert_eq!(sums.rows[0], row(service("cart"), &[("a", "b", 60, 600)]));
}

#[test]
fn a_restart_is_counted_from_zero_and_a_late_report_of_the_earlier_start_is_not() {
    let mut ledger = ledger();
    ledger.record(&report("node/n1", "s1", 9, 50, 1_000), at(60)).unwrap();
    ledger.record(&report("node/n1", "s2", 1, 10, 30), at(100)).unwrap();
    assert_eq!(bytes(&ledger, 100), 1_030);
    ledger.record(&report("node/n1", "s1", 10, 80, 1_500), at(101)).unwrap();
    assert_eq!(bytes(&ledger, 101), 1_030);
    ledger.record(&report("node/n1", "s2", 2, 40, 50), at(130)).unwrap();
    assert_eq!(bytes(&ledger, 130), 1_050);
}

#[test]
fn a_new_leader_counts_from_the_first_report_of_an_older_node() {
    let mut ledger = ledger();
    ledger.record(&report("node/old", "s1", 400, 86_400, 5_000), at(5)).unwrap();
    assert_eq!(bytes(&ledger, 5), 0);
    ledger.record(&report("node/old", "s1", 401, 86_430, 5_070), at(35)).unwrap();
    assert_eq!(bytes(&ledger, 35), 70);
    let sums = ledger.sums(Duration::from_secs(3600), at(200));
    assert_eq!((sums.since.as_str(), sums.window_seconds), ("2026-11-17T08:00:00Z", 200));
    assert_eq!(sums.silent, ["node/old"]);
}

#[test]
fn a_service_that_was_created_again_counts_from_zero() {
    let mut ledger = ledger();
    ledger.record(&report("node/n1", "s1", 1, 1, 500), at(10)).unwrap();
    ledger.record(&report("node/n1", "s1", 2, 31, 20), at(40)).unwrap();
    let gone = TrafficReport { rows: Vec::new(), ..report("node/n1", "s1", 3, 61, 0) };
    ledger.record(&gone, at(70)).unwrap();
    ledger.record(&report("node/n1", "s1", 4, 91, 60), at(100)).unwrap();
    assert_eq!(bytes(&ledger, 100), 580);
}

#[test]
fn a_day_is_kept_and_totals_never_shrink() {
    let mut ledger = ledger();
    for hour in 0..48 {
        let now = hour * 3600 + 30;
        ledger.record(&report("node/n1", "s1", hour + 1, now, (hour + 1) * 10), at(now)).unwrap();
    }
    let now = 47 * 3600 + 40;
    assert_eq!(bytes(&ledger, now), 24 * 10);
    assert_eq!(ledger.sums(Duration::from_secs(3600), at(now)).rows[0].zone_pairs[0].bytes, 10);
    let totals: Vec<(bool, ZonePairTraffic)> = ledger.totals().collect();
    assert_eq!((totals.len(), totals[0].1.bytes), (1, 480));
    assert_eq!(ledger.history(Some(&service("cart"))).len(), 24);
    assert!(ledger.history(Some(&service("other"))).is_empty());
}

#[test]
fn services_beyond_the_bound_share_a_row_and_a_busy_one_gets_its_own_within_an_hour() {
    let mut ledger = ledger();
    let send = |ledger: &mut TrafficLedger, sequence: u64, now: u64, busy: u64| {
        for node in 0..2_u64 {
            let rows = (0..300_u64).map(|i| {
                let bytes = if i == 299 { busy } else { 1_000 - i } * sequence;
                row(service(&format!("s{i:03}")), &[("a", "a", sequence, bytes)])
            });
            let report = TrafficReport {
                reporter: format!("node/n{node}"),
                start: "s".to_owned(),
                sequence,
                counted_seconds: now,
                rows: rows.collect(),
                ..TrafficReport::default()
            };
            ledger.record(&report, at(now)).unwrap();
        }
    };
    send(&mut ledger, 1, 10, 1_000_000);
    let rows = |ledger: &TrafficLedger, now| ledger.sums(Duration::from_secs(24 * 3600), at(now)).rows;
    assert_eq!(rows(&ledger, 10).len(), MAX_SERVICES + 1);
    assert!(rows(&ledger, 10).iter().all(|row| row.owner != service("s299")));
    let all = bytes(&ledger, 10);
    send(&mut ledger, 2, 3_700, 1_000_000);
    assert!(rows(&ledger, 3_700).iter().any(|row| row.owner == service("s299")));
    assert_eq!(bytes(&ledger, 3_700), 2 * all, "every byte is in some row");
    assert!(rows(&ledger, 3_700).len() <= MAX_SERVICES + 1);
    // The minutes of all rows together are those of the whole ledger, also after rows changed hands.
    let sum = |minutes: Vec<TrafficMinute>| -> u64 {
        minutes.iter().flat_map(|minute| &minute.zone_pairs).map(|pair| pair.bytes).sum()
    };
    let of_rows: u64 = rows(&ledger, 3_700).iter().map(|row| sum(ledger.history(Some(&row.owner)))).sum();
    assert_eq!((of_rows, sum(ledger.history(None))), (2 * all, 2 * all));
}

#[test]
fn no_reporter_and_no_name_makes_the_ledger_grow_without_bound() {
    let mut ledger = ledger();
    let many = row(service("cart"), &vec![("a", "b", 1, 1); MAX_REPORT_PAIRS + 1]);
    let large = TrafficReport { rows: vec![many], ..report("node/n1", "s", 1, 1, 1) };
    assert_eq!(ledger.record(&large, at(10)), Err(ReportRefused::TooManyPairs));
    let long = report(&"n".repeat(1_000), "s", 1, 1, 1);
    assert_eq!(ledger.record(&long, at(10)), Err(ReportRefused::MalformedName));
    for i in 0..MAX_REPORTERS {
        ledger.record(&report(&format!("node/{i}"), "s", 1, 1, 10), at(10)).unwrap();
    }
    assert_eq!(ledger.record(&report("node/x", "s", 1, 1, 1), at(10)), Err(ReportRefused::TooManyReporters));
    // Names of Services and zones that never repeat, from one node.
    for round in 0..30_u64 {
        let pairs: Vec<String> = (0..MAX_REPORT_PAIRS).map(|i| format!("{round}-{i}")).collect();
        let rows = pairs.iter().map(|name| row(service(name), &[(name.as_str(), "b", 1, 1)])).collect();
        let names = TrafficReport { rows, ..report("node/1", "s", round + 2, 1, 0) };
        ledger.record(&names, at(20)).unwrap();
    }
    assert!(ledger.ids.len() <= MAX_OWNERS && ledger.owners.len() <= MAX_OWNERS);
    assert!(ledger.zones.len() <= MAX_ZONES);
    let minute = ledger.minutes.back().unwrap();
    // Beyond the bound, a row has unknown zones.
    assert!(minute.cells.len() <= MAX_CELLS_OF_ALL + 2 && minute.pairs.len() <= MAX_PAIRS + 1);
    assert_eq!(bytes(&ledger, 30), 10 * MAX_REPORTERS as u64 + 30 * MAX_REPORT_PAIRS as u64);
    // A day later there is room again.
    ledger.record(&report("node/1", "s2", 1, 1, 1), at(25 * 3600)).unwrap();
    ledger.record(&report("node/x", "s", 1, 1, 1), at(25 * 3600)).unwrap();
}

#[test]
fn gaps_are_summed_over_reporters_and_restarts() {
    let mut ledger = ledger();
    let gaps = TrafficGaps { lost_events: 2, dropped_counts: 3, unaccounted_flows: 5 };
    for (reporter, start) in [("node/n1", "s1"), ("node/n2", "s1"), ("node/n1", "s2")] {
        ledger.record(&TrafficReport { gaps, ..report(reporter, start, 1, 1, 0) }, at(10)).unwrap();
    }
    let sums = ledger.sums(Duration::from_secs(60), at(10));
    assert_eq!(sums.gaps, TrafficGaps { lost_events: 6, dropped_counts: 9, unaccounted_flows: 10 });
}

#[test]
fn the_json_has_the_documented_form() {
    let mut ledger = ledger();
    ledger.record(&report("node/n1", "s", 1, 1, 100), at(10)).unwrap();
    let sums = serde_json::to_value(ledger.sums(Duration::from_secs(60), at(10))).unwrap();
    let expected = serde_json::json!({
        "since": "2026-11-17T08:00:00Z", "windowSeconds": 10,
        "rows": [{"kind": "Service", "namespace": "shop", "name": "cart",
            "zonePairs": [{"fromZone": "a", "toZone": "b", "connections": 10, "bytes": 100}]}],
        "gaps": {"lostEvents": 0, "droppedCounts": 0, "unaccountedFlows": 0},
        "reporters": 1, "silent": []});
    assert_eq!(sums, expected);
}

#[test]
fn more_pairs_of_zones_than_the_bound_count_as_unknown_and_every_byte_is_there() {
    let mut ledger = ledger();
    let zones: Vec<String> = (0..60).map(|zone| format!("z{zone}")).collect();
    let (mut sequence, mut sent) = (0, 0);
    for from in &zones {
        sequence += 1;
        let pairs: Vec<_> = zones.iter().map(|to| (from.as_str(), to.as_str(), 1, 10)).collect();
        let owners = [service("cart"), TrafficOwner::NotThroughService];
        let rows: Vec<TrafficRow> = owners.map(|owner| row(owner, &pairs)).into();
        sent += 10 * rows.len() as u64 * zones.len() as u64;
        ledger
            .record(&TrafficReport { rows, ..report(&format!("node/{from}"), "s", sequence, 1, 0) }, at(10))
            .unwrap();
    }
    assert_eq!(bytes(&ledger, 10), sent);
    let minute = ledger.minutes.back().unwrap();
    assert!(minute.cells.len() <= MAX_CELLS_OF_ALL + 3 && minute.pairs.len() <= MAX_PAIRS + 1);
    let history = ledger.history(None);
    assert_eq!(history[0].zone_pairs.iter().map(|pair| pair.bytes).sum::<u64>(), sent);
    assert!(history[0].zone_pairs.iter().any(|pair| pair.from_zone.is_empty()));
}

#[test]
fn demand_is_the_rate_between_the_last_two_reports_of_each_reporter() {
    let mut ledger = ledger();
    ledger.record(&report("node/n1", "s1", 1, 10, 1_000), at(20)).unwrap();
    assert_eq!(ledger.demand(at(21), |_| None), LedgerDemand::default(), "one report has no rate");
    ledger.record(&report("node/n1", "s1", 2, 40, 4_000), at(50)).unwrap();
    ledger.record(&report("node/n2", "s1", 1, 10, 1_000), at(50)).unwrap();
    ledger.record(&report("node/n2", "s1", 2, 20, 1_200), at(60)).unwrap();
    let demand = ledger.demand(at(61), |_| None);
    assert_eq!(demand.reporting, ["node/n1", "node/n2"].map(str::to_owned).into());
    let zone = ZoneDemandRow {
        from_zone: "a".to_owned(),
        rate_by_target: vec![("b".to_owned(), 12.0)],
        highest_rate: 10.0,
        busiest: BusiestNode { name: "n1".to_owned(), rate: 10.0, next_rate: 2.0, others: 1 },
    };
    assert_eq!(demand.services, [ServiceDemandRow { owner: service("cart"), zones: vec![zone] }]);
    // A node counts for its own zone alone.
    let elsewhere = ledger.demand(at(61), |node| (node == "n1").then_some("c"));
    assert_eq!(elsewhere.reporting, demand.reporting);
    assert_eq!(elsewhere.services[0].zones[0].rate_by_target, [("b".to_owned(), 2.0)]);
    // Without a report for 90 seconds a reporter does not count, and a restart begins anew.
    assert_eq!(ledger.demand(at(141), |_| None).reporting, ["node/n2".to_owned()].into());
    ledger.record(&report("node/n2", "s2", 1, 5, 10), at(142)).unwrap();
    assert_eq!(ledger.demand(at(143), |_| None), LedgerDemand::default());
}
