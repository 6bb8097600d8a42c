//! Both orders of an upgrade, from every recorded version; and the way back: what this version writes has all that a
//! recorded version reads.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::namespace::run;
use super::objects::{addresses, create, dump, missing};
use super::world::{Fixture, Machine, THIS, TestFolder, endpoints, fixtures, fixtures_folder};

/// Starts the node proxy over the rules of the older one. At no time a Service has other endpoints.
fn upgrade_node(machine: &Machine, about: &str, expected: &[(String, Vec<String>)]) -> super::world::Process {
    let newest = machine.slice_versions().iter().map(|(_, version)| *version).max().unwrap();
    let before = machine.renewed("zoneward-node-n1");
    let node = machine.node();
    machine.until(&format!("{about}: the new node proxy says what it has programmed"), || {
        assert_eq!(endpoints(&addresses()), expected, "{about}: while the node proxy starts");
        machine.renewed("zoneward-node-n1") > before && machine.programmed() >= newest
    });
    assert_eq!(endpoints(&addresses()), expected, "{about}: of the new node proxy");
    node
}

/// The rules of the older node proxy, as the kernel holds them when it has ended; where they send connections.
fn load_rules(fixture: &Fixture) -> Vec<(String, Vec<String>)> {
    run("nft", &["flush", "ruleset"]);
    fixture.load_rules();
    let expected = endpoints(&addresses());
    // web-06 requires the zone, the others have endpoints everywhere.
    assert!(expected.iter().all(|(_, endpoints)| !endpoints.is_empty()), "{expected:?}");
    assert_eq!(expected[1].1.len(), 3, "{}: PreferSameZone: {expected:?}", fixture.name);
    expected
}

/// Starts the controllers on the slices of the older one. They are right, so none is written.
fn upgrade_controller(machine: &Machine, about: &str) -> super::world::Process {
    let api = machine.up(&["--no-controllers"]);
    let (slices, lease) = (machine.slice_versions(), machine.renewed("zoneward-controller"));
    assert_eq!(slices.len(), 14, "{about}: {slices:?}");
    drop(api);
    let up = machine.up(&[]);
    machine.until("the new controller leads", || machine.renewed("zoneward-controller") > lease);
    machine.until_quiet();
    assert_eq!(machine.slice_versions(), slices, "{about}: slices were written again");
    up
}

#[test]
fn nodes_first_then_the_controller() {
    toolbox::in_own_namespaces!();
    for fixture in fixtures() {
        let about = format!("from {}", fixture.name);
        let folder = TestFolder::new("nodes");
        let machine = Machine::new(THIS, &folder.0.join("data"));
        fixture.unpack(&machine.data);
        let expected = load_rules(&fixture);
        // No controller writes: the slices are the older one's.
        let api = machine.up(&["--no-controllers"]);
        let node = upgrade_node(&machine, &about, &expected);
        drop(api);
        let _up = upgrade_controller(&machine, &about);
        assert_eq!(endpoints(&addresses()), expected, "{about}");
        drop(node);
    }
}

#[test]
fn controller_first_then_the_nodes() {
    toolbox::in_own_namespaces!();
    for fixture in fixtures() {
        let about = format!("from {}", fixture.name);
        let folder = TestFolder::new("controller");
        let machine = Machine::new(THIS, &folder.0.join("data"));
        fixture.unpack(&machine.data);
        let expected = load_rules(&fixture);
        let _up = upgrade_controller(&machine, &about);
        let _node = upgrade_node(&machine, &about, &expected);
    }
}

#[test]
fn older_version_reads_what_this_one_writes() {
    toolbox::in_own_namespaces!();
    let folder = TestFolder::new("back");
    let program = std::env::var("FIXTURE_PROGRAM").unwrap_or_else(|_| THIS.to_owned());
    let name = std::env::var("FIXTURE_NAME").unwrap_or_else(|_| env!("CARGO_PKG_VERSION").to_owned());
    let made = Fixture { name: name.clone(), folder: folder.0.join("made") };
    make(&program, &folder.0.join("data"), &made);
    if std::env::var_os("UPDATE_FIXTURES").is_some() {
        let to = fixtures_folder().join(&name);
        fs::create_dir_all(&to).unwrap();
        for file in ["objects.json", "ruleset.netlink", "ruleset.nft", "store.tar.gz"] {
            fs::copy(made.folder.join(file), to.join(file)).unwrap();
        }
    }
    for fixture in fixtures() {
        let mut found = Vec::new();
        missing(&fixture.objects(), &made.objects(), "", &mut found);
        assert!(found.is_empty(), "{} would miss:\n{}", fixture.name, found.join("\n"));
    }
}

/// Lets a program write everything that a fixture holds.
fn make(program: &str, data: &Path, made: &Fixture) {
    let to = &made.folder;
    let machine = Machine::new(program, data);
    fs::create_dir_all(to).unwrap();
    let up = machine.up(&["--service-cluster-ip-range", "10.96.0.0/16"]);
    create(&machine);
    let node = machine.node();
    machine.until_quiet();
    let newest = machine.slice_versions().iter().map(|(_, version)| *version).max().unwrap();
    machine.until("the node proxy says what it has programmed", || machine.programmed() >= newest);
    machine.until_quiet();
    let objects: Value = dump(&machine);
    fs::write(to.join("objects.json"), serde_json::to_string_pretty(&objects).unwrap() + "\n").unwrap();
    node.kill();
    made.save_rules(&run("nft", &["list", "ruleset"]));
    up.kill();
    // The journal has writes that the tables do not. No keys: those are in another folder.
    let tar = Command::new("tar")
        .args(["--owner=0", "--group=0", "--numeric-owner", "-czf"])
        .arg(to.join("store.tar.gz"))
        .arg("-C")
        .arg(data)
        .arg("store")
        .status()
        .unwrap();
    assert!(tar.success());
}
