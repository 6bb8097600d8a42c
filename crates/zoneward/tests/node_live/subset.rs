//! Slices by zone: a node that receives those of its zone alone, and labels that come and go under load.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::place::Source::Masqueraded;
use super::place::{From, VIPS};
use super::traffic::meanwhile;
use super::world::{Proxy, World, endpoints, service, slice};
use super::zones::{ZONES, nodes_of_zones, pod, put_service};

const FOR_ZONE: &str = "zoneward.dev/for-zone";
const VIP: &str = "10.96.0.7:80";

/// A slice for nodes of one zone, or of all.
fn slice_for(name: &str, zone: Option<&str>, endpoints: &[(&str, &str)]) -> Value {
    let mut object = slice("web", endpoints);
    object["metadata"]["name"] = name.into();
    if let Some(zone) = zone {
        object["metadata"]["labels"][FOR_ZONE] = zone.into();
    }
    object
}

#[test]
fn node_receives_its_zone_and_falls_back_on_the_reserve() {
    toolbox::in_own_namespaces!();
    let world = World::new("own-zone");
    world.put_service_cidr("kubernetes", &["10.96.0.0/16"]);
    world.put(service("web", &["10.96.0.7"]));
    world.put(slice_for("reserve", None, &[("10.1.0.8", "za"), ("10.1.0.9", "zb")]));
    world.put(slice_for("of-za", Some("za"), &[("10.1.0.1", "za")]));
    world.put(slice_for("of-zb", Some("zb"), &[("10.1.0.2", "zb")]));
    // The node waits for its zone.
    let _node = world.node("n1", &["--proxy-mode=nftables", "--watch-own-zone"]);
    std::thread::sleep(Duration::from_secs(1));
    assert!(endpoints(VIP).is_empty(), "no slice is watched before the zone is known");
    world.put_node("n1", "za");
    let is_served = |wanted: &[&str]| {
        let wanted: Vec<String> = wanted.iter().map(|ip| format!("{ip}:8080")).collect();
        endpoints(VIP) == wanted
    };
    world.until("the own zone", || is_served(&["10.1.0.1", "10.1.0.8"]));
    let lease = || world.list("Lease").into_iter().find(|l| l["metadata"]["name"] == "zoneward-node-n1");
    let zone = |lease: Value| lease["metadata"]["annotations"]["zoneward.dev/watched-zone"].clone();
    world.until("a Lease with the zone", || lease().is_some_and(|lease| zone(lease) == "za"));
    // A label moves from one watch to the other and back.
    world.put(slice_for("of-za", None, &[("10.1.0.1", "za"), ("10.1.0.3", "za")]));
    world.until("without a label", || is_served(&["10.1.0.1", "10.1.0.3", "10.1.0.8"]));
    world.put(slice_for("of-za", Some("za"), &[("10.1.0.1", "za")]));
    world.until("with a label", || is_served(&["10.1.0.1", "10.1.0.8"]));
    std::thread::sleep(Duration::from_millis(1500));
    assert!(is_served(&["10.1.0.1", "10.1.0.8"]), "what left one watch is still in the other");
    // The zone has no endpoint: the reserve, at once; everything, when labels are dropped.
    world.put(slice_for("reserve", None, &[("10.1.0.9", "zb")]));
    world.put(slice_for("of-za", Some("za"), &[]));
    world.until("the reserve", || is_served(&["10.1.0.9"]));
    world.put(slice_for("of-zb", None, &[("10.1.0.2", "zb")]));
    world.until("all", || is_served(&["10.1.0.2", "10.1.0.9"]));
    // The watch follows the zone of the Node.
    world.put(slice_for("of-za", Some("za"), &[("10.1.0.1", "za")]));
    world.put(slice_for("of-zb", Some("zb"), &[("10.1.0.2", "zb")]));
    world.until("the own zone again", || is_served(&["10.1.0.1"]));
    world.put_node("n1", "zb");
    world.until("the other zone", || is_served(&["10.1.0.2", "10.1.0.9"]));
    // A slice that is deleted is gone.
    world.remove("EndpointSlice", "ns", "of-zb");
    world.until("deleted", || is_served(&["10.1.0.9"]));
}

#[test]
fn labels_come_and_go_under_load_and_no_connection_is_lost() {
    toolbox::in_own_namespaces!();
    let mut place = nodes_of_zones("subset");
    let controller = |place: &super::place::Place, flags: &[&str]| -> Proxy {
        let words =
            [&["controller", "--bind-address", "127.0.0.1:0", "--leader-elect=false"], flags].concat();
        place.world.part(&words)
    };
    (11..=28).for_each(|index| place.site.add_pod(index));
    let zone_of = |index: u8| ZONES[usize::from(index % 3)];
    place.world.put_all((11..=28).map(|index| pod(index, zone_of(index))).collect());
    put_service(&place, Some("PreferSameZone"), None);
    let zones = |place: &super::place::Place| -> BTreeSet<String> {
        let slices = place.world.list("EndpointSlice");
        let labels = slices.iter().map(|slice| slice["metadata"]["labels"][FOR_ZONE].as_str());
        labels.map(|zone| zone.unwrap_or_default().to_owned()).collect()
    };
    let narrow: BTreeSet<String> = ["", "za", "zb", "zc"].map(str::to_owned).into();
    let wide: BTreeSet<String> = [String::new()].into();
    let of_za: Vec<u8> = (11..=28).filter(|index| zone_of(*index) == "za").collect();
    let mut running = controller(&place, &["--subset-slices", "--subset-from", "12"]);
    place.world.until("labels", || zones(&place) == narrow);
    let flags = ["--proxy-mode=nftables", "--cluster-cidr=10.1.0.0/16,fd00:1::/64", "--watch-own-zone"];
    let _node = place.world.node("node-za", &flags);
    let are_served = |pods: &[u8]| {
        let mut v4: Vec<String> = pods.iter().map(|i| format!("10.1.0.{i}:8080")).collect();
        v4.sort();
        let mut found = endpoints(VIP);
        found.sort();
        found == v4
    };
    place.world.until("the own zone", || are_served(&of_za));
    let (made, failed) = meanwhile(&place, || {
        for round in 0..3 {
            // A new controller remembers no switch.
            drop(std::mem::replace(&mut running, controller(&place, &[])));
            place.world.until("no labels", || zones(&place) == wide);
            std::thread::sleep(Duration::from_millis(300));
            drop(std::mem::replace(
                &mut running,
                controller(&place, &["--subset-slices", "--subset-from", "12"]),
            ));
            place.world.until("labels", || zones(&place) == narrow);
            // Another zone loses its endpoints, and has them again.
            let zone = ["zb", "zc", "zb"][round];
            let lost: Vec<u8> = (11..=28).filter(|index| zone_of(*index) == zone).collect();
            for ready in ["False", "True"] {
                let pods = lost.iter().map(|index| {
                    let mut pod = pod(*index, zone);
                    pod["status"]["conditions"][0]["status"] = ready.into();
                    pod
                });
                place.world.put_all(pods.collect());
                let is_ready = json!(ready == "True");
                place.world.until("conditions", || {
                    let slices = place.world.list("EndpointSlice");
                    let all = slices
                        .iter()
                        .flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default());
                    let mut of_zone = all.filter(|endpoint| endpoint["zone"] == zone);
                    of_zone.all(|endpoint| endpoint["conditions"]["ready"] == is_ready)
                });
            }
            assert_eq!(zones(&place), wide, "labels are dropped with the zone, and stay so for a while");
        }
    });
    assert!(made > 100, "{made}");
    assert_eq!(failed, 0, "of {made}");
    VIPS.iter().for_each(|vip| place.goes(From::Outside, (vip, 80), &of_za, Masqueraded));
}
