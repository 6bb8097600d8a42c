//! The store of every recorded version: migrated after a backup, at any moment of a crash; a newer one is refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::objects::{dump, missing};
use super::world::{Fixture, Machine, Process, THIS, TestFolder, fixtures};

fn json(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn unpacked(fixture: &Fixture, folder: &Path) -> Machine {
    let machine = Machine::new(THIS, folder);
    let _ = fs::remove_dir_all(folder);
    fixture.unpack(folder);
    machine
}

/// Objects of the store that nothing has changed since.
fn assert_complete(machine: &Machine, fixture: &Fixture) {
    let mut found = Vec::new();
    missing(&fixture.objects(), &dump(machine), "", &mut found);
    // Events expire after an hour.
    found.retain(|line| !line.starts_with(".events"));
    assert!(found.is_empty(), "{}: {}", fixture.name, found.join("\n"));
}

fn format(machine: &Machine) -> u64 {
    json(&machine.store(&["check", "-o", "json"]))["format"].as_u64().unwrap()
}

fn backups(machine: &Machine) -> Vec<PathBuf> {
    let entries = fs::read_dir(machine.data.join("store")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|end| end == "backup")).collect()
}

#[test]
fn older_store_is_migrated_after_a_backup() {
    toolbox::in_own_namespaces!();
    let newest = store::engine::FORMAT;
    for fixture in fixtures() {
        let folder = TestFolder::new("migrate");
        let machine = unpacked(&fixture, &folder.0.join("data"));
        let old = format(&machine);
        let plan = json(&machine.store(&["migrate", "--dry-run", "-o", "json"]));
        assert_eq!((&plan["from"], &plan["to"]), (&old.into(), &newest.into()), "{plan}");
        assert_eq!((format(&machine), backups(&machine).len()), (old, 0), "a dry run changes nothing");
        let done = json(&machine.store(&["migrate", "-o", "json"]));
        assert_eq!(format(&machine), newest);
        assert_eq!(backups(&machine).len(), usize::from(old != newest));
        if old != newest {
            let backup = done["backup"].as_str().unwrap();
            let check =
                Command::new(THIS).args(["store", "check", "-o", "json", "--backup", backup]).output();
            let check = json(&check.unwrap());
            assert_eq!((&check["sound"], &check["format"]), (&true.into(), &old.into()), "{check}");
        }
        let again = json(&machine.store(&["migrate", "-o", "json"]));
        assert_eq!((&again["from"], &again["backup"]), (&newest.into(), &Value::Null));
        let up = machine.up(&["--no-controllers"]);
        assert_complete(&machine, &fixture);
        up.kill();

        // `up` migrates by itself and says where the backup is.
        let machine = unpacked(&fixture, &folder.0.join("by-up"));
        let mut up = machine.up(&["--no-controllers"]);
        assert_complete(&machine, &fixture);
        assert_eq!(up.signal(Signal::SIGTERM), Some(0));
        assert_eq!((format(&machine), backups(&machine).len()), (newest, usize::from(old != newest)));
        assert_eq!(machine.read_log("up").contains("store migrated"), old != newest);
    }
}

/// Data of a version without RBAC: the first start adds the default roles before it serves, and signing keys.
#[test]
fn older_data_gets_roles_and_keeps_its_users() {
    toolbox::in_own_namespaces!();
    const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
    for fixture in fixtures() {
        let folder = TestFolder::new("roles");
        let machine = unpacked(&fixture, &folder.0.join("data"));
        let mut up = machine.up(&["--no-controllers"]);
        for role in ["cluster-admin", "view", "zoneward:reader"] {
            let found = machine.ask("GET", &format!("{RBAC}/clusterroles/{role}"), "");
            assert!(found["rules"].as_array().is_some_and(|rules| !rules.is_empty()), "{role}: {found}");
        }
        let keys = || -> Vec<PathBuf> {
            let files = fs::read_dir(machine.data.join("pki")).unwrap().map(|entry| entry.unwrap().path());
            files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("sa-")).collect()
        };
        let before = keys();
        assert_eq!(before.len(), 1);
        let may = |verb: &str, resource: &str| {
            let review = serde_json::json!({"spec": {"user": "zoneward-reader", "groups": ["zoneward:readers"],
                "resourceAttributes": {"verb": verb, "resource": resource}}});
            let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            machine.ask("POST", path, &review.to_string())["status"]["allowed"] == true
        };
        assert!(may("list", "services") && !may("list", "secrets") && !may("delete", "services"));
        // The accounts come with the namespaces of the old data.
        let accounts = || machine.list("/api/v1/serviceaccounts").len();
        machine.until("default accounts", || accounts() == machine.list("/api/v1/namespaces").len());
        assert_eq!(up.signal(Signal::SIGTERM), Some(0));
        let roles = |machine: &Machine| machine.list(&format!("{RBAC}/clusterroles"));
        let mut up = machine.up(&["--no-controllers"]);
        let first = roles(&machine);
        assert_eq!(up.signal(Signal::SIGTERM), Some(0));
        let _up = machine.up(&["--no-controllers"]);
        assert_eq!((roles(&machine), keys()), (first, before), "a further start changes nothing");
    }
}

#[test]
fn way_back_is_the_backup() {
    toolbox::in_own_namespaces!();
    for fixture in fixtures() {
        let folder = TestFolder::new("back");
        let machine = unpacked(&fixture, &folder.0.join("data"));
        let old = format(&machine);
        // Before a migration, this version's own backup keeps the format as well.
        let file = folder.0.join("own.backup");
        assert!(machine.store(&["backup", file.to_str().unwrap()]).status.success());
        machine.store(&["migrate"]);
        for backup in backups(&machine).into_iter().chain([file]) {
            let mut check = Command::new(THIS);
            let check = check.args(["store", "check", "-o", "json", "--backup"]).arg(&backup).output();
            let check = json(&check.unwrap());
            assert_eq!((&check["sound"], &check["format"]), (&true.into(), &old.into()), "{check}");
            let back = Machine::new(THIS, &folder.0.join(backup.file_stem().unwrap()));
            fs::create_dir_all(&back.data).unwrap();
            let restored = back.store(&["restore", backup.to_str().unwrap()]);
            assert!(restored.status.success(), "{restored:?}");
            assert_eq!(format(&back), store::engine::FORMAT, "a restore by this version has its format");
            let _up = back.up(&["--no-controllers"]);
            assert_complete(&back, &fixture);
        }
    }
}

/// Every file of a folder, with its content.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = entries.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    all.sort();
    all
}

#[test]
fn newer_store_is_refused_by_name_and_untouched() {
    toolbox::in_own_namespaces!();
    let folder = TestFolder::new("newer");
    let fixtures = fixtures();
    let machine = unpacked(fixtures.last().unwrap(), &folder.0.join("data"));
    machine.store(&["migrate"]);
    let store = machine.data.join("store");
    let newer = store::engine::ENCRYPTED_FORMAT + 1;
    let named = format!("{{\"format\":{newer},\"program\":\"9.8.7\"}}\n");
    fs::write(store.join(store::engine::FORMAT_FILE), named).unwrap();
    // Its tables may be of a kind that this version takes for damage.
    fs::write(store.join("store.redb"), "of another kind").unwrap();
    let before = files(&store);
    let up = Command::new(THIS)
        .args(["up", "--no-node", "--no-mesh", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(&machine.data)
        .output()
        .unwrap();
    let backup = folder.0.join("backup");
    let outputs = [
        up,
        machine.store(&["check"]),
        machine.store(&["migrate"]),
        machine.store(&["migrate", "--dry-run"]),
        machine.store(&["backup", backup.to_str().unwrap()]),
    ];
    for output in outputs {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let place = store.display().to_string();
        let parts = [place, format!("in format {newer} of zoneward 9.8.7"), format!("up to {}", newer - 1)];
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        assert!(said.contains("zoneward store restore"), "{said}");
    }
    assert_eq!(files(&store), before);
}

/// The moment of a kill: when a file with this ending is in the store's folder, or at once.
const MOMENTS: [&str; 6] = ["", ".backup.partial", ".backup", ".format.partial", ".format", ".never"];

#[test]
fn migration_survives_kill_at_any_moment() {
    toolbox::in_own_namespaces!();
    let fixtures = fixtures();
    let fixture = fixtures.iter().find(|fixture| fixture.name.starts_with("before-")).unwrap();
    let folder = TestFolder::new("kill");
    let newest = store::engine::FORMAT;
    for moment in MOMENTS {
        let machine = unpacked(fixture, &folder.0.join("data"));
        let child = Command::new(THIS)
            .args(["store", "migrate", "--data-dir"])
            .arg(&machine.data)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut process = Process(child);
        let store = machine.data.join("store");
        let is_there = || names(&store).iter().any(|name| name.ends_with(moment));
        while !is_there() && process.0.try_wait().unwrap().is_none() {}
        let has_file = names(&store).iter().any(|name| name == store::engine::FORMAT_FILE);
        process.kill();
        // Whole in one of the two formats.
        let found = format(&machine);
        assert!(found == 1 && !has_file || found == newest, "{moment}: {found}");
        let done = machine.store(&["migrate"]);
        assert!(done.status.success(), "{done:?}");
        assert_eq!((format(&machine), backups(&machine).len()), (newest, 1), "{moment}");
        assert!(!names(&store).iter().any(|name| name.ends_with(".partial")), "{moment}");
    }
    let machine = Machine::new(THIS, &folder.0.join("data"));
    let _up = machine.up(&["--no-controllers"]);
    assert_complete(&machine, fixture);
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.into_string().unwrap()).collect()
}
