//! Verdicts on Services, and objects that cannot be used.

use std::collections::BTreeMap;

use model::{Interner, Object, Timestamp, parse};
use serde_json::{Value, json};

use super::*;
use crate::hints::Mechanism;
use crate::spill::ZoneCapacity;

fn service(spec: &Value) -> Service {
    let value = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "cart"},
        "spec": spec});
    match parse::object(&value, &mut Interner::default()).0 {
        Some(Object::Service(service)) => *service,
        other => panic!("{other:?}"),
    }
}

fn load<'a>(service: &'a Service, endpoints: [usize; 3], rate: f64, proved: Option<f64>) -> ServiceLoad<'a> {
    let zones = ["za", "zb", "zc"].map(Name::new);
    let capacity = zones.iter().cloned().zip(endpoints.map(ZoneCapacity::from)).collect::<BTreeMap<_, _>>();
    let rates = zones.iter().cloned().map(|zone| (zone, rate / 3.0)).collect();
    let mechanism = Mechanism::Spill;
    ServiceLoad { service, mechanism, capacity_by_zone: capacity, rate_by_target: rates, proved }
}

#[test]
fn others_take_what_they_have_carried_before() {
    let service = service(&json!({}));
    let verdict = |endpoints, rate, proved, percent| {
        check(&load(&service, endpoints, rate, proved), &"za".into(), percent).map(|checked| checked.verdict)
    };
    assert_eq!(verdict([0, 4, 4], 90.0, Some(1.0), 100), None, "nothing is there");
    assert_eq!(verdict([4, 4, 4], 90.0, Some(12.0), 100), Some(DrainVerdict::Moves), "11.25 each");
    let refused = "each endpoint elsewhere would get 11.2 connections/s, and has carried 10.0";
    assert_eq!(verdict([4, 4, 4], 90.0, Some(10.0), 100), Some(DrainVerdict::Refused(refused.to_owned())));
    assert_eq!(
        verdict([4, 4, 4], 90.0, Some(10.0), 10),
        Some(DrainVerdict::Moves),
        "7.9 each in a rehearsal"
    );
    assert_eq!(verdict([4, 4, 4], 90.0, None, 100), Some(DrainVerdict::Unproved));
    assert_eq!(verdict([4, 4, 4], 0.0, Some(1.0), 100), Some(DrainVerdict::Unproved));
    let alone = "no endpoint is ready in another zone";
    assert_eq!(verdict([4, 0, 0], 0.0, None, 100), Some(DrainVerdict::Refused(alone.to_owned())));
}

#[test]
fn traffic_that_must_stay_is_not_refused() {
    let local = service(&json!({"internalTrafficPolicy": "Local"}));
    let checked = check(&load(&local, [4, 0, 0], 9.0, None), &"za".into(), 100).expect("it has endpoints");
    assert_eq!(checked.verdict, DrainVerdict::Stays("internalTrafficPolicy is Local".to_owned()));
    assert!(!is_refused(&[checked]));
    let plain = service(&json!({}));
    let mut required = load(&plain, [4, 4, 4], 9.0, None);
    required.mechanism = Mechanism::RequireZone;
    let checked = check(&required, &"za".into(), 100).expect("it has endpoints");
    assert!(matches!(checked.verdict, DrainVerdict::Stays(_)), "{checked:?}");
}

#[test]
fn objects_name_the_field_that_is_wrong() {
    let object = |spec: Value| json!({"metadata": {"name": "zone-a", "creationTimestamp": "2026-11-17T10:00:00Z"}, "spec": spec});
    let drain = ZoneDrain::parse(&object(json!({"zone": "zone-a", "expiresAt": "2026-11-17T11:00:00Z"})));
    let drain = drain.expect("it is complete");
    assert_eq!(drain.window.to_string(), "100%@1794909600+300..1794913200");
    assert_eq!((drain.dry_run, drain.force, drain.accepted), (false, false, None));
    assert!(!drain.is_over(Timestamp::from_seconds(1_794_913_199)));
    assert!(drain.is_over(Timestamp::from_seconds(1_794_913_200)));
    let end = "2026-11-17T11:00:00Z";
    for (spec, field) in [
        (json!({"expiresAt": end}), "spec.zone"),
        (json!({"zone": "a,b", "expiresAt": end}), "spec.zone"),
        (json!({"zone": "a"}), "spec.expiresAt"),
        (json!({"zone": "a", "expiresAt": "tomorrow"}), "spec.expiresAt"),
        (json!({"zone": "a", "expiresAt": end, "over": "soon"}), "spec.over"),
        (json!({"zone": "a", "expiresAt": end, "over": "25h"}), "spec.over"),
        (json!({"zone": "a", "expiresAt": end, "percent": 0}), "spec.percent"),
    ] {
        assert_eq!(ZoneDrain::parse(&object(spec.clone())).expect_err("it is wrong").field, field, "{spec}");
    }
}

#[test]
fn of_two_drains_of_a_zone_the_longer_one_counts() {
    let window = |until| DrainWindow { percent: 100, start: 0, over_seconds: 0, until };
    let drains = vec![("zb".into(), window(5)), ("za".into(), window(10)), ("za".into(), window(20))];
    let annotation = ZoneDrains::new(drains).annotation(&service(&json!({"clusterIPs": ["10.0.0.1"]})));
    assert_eq!(annotation.as_deref(), Some("za=100%@0+0..20,zb=100%@0+0..5"));
    assert_eq!(ZoneDrains::default().annotation(&service(&json!({}))), None);
}
