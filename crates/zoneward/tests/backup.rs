//! A backup of an API that runs, taken while others write: it is whole, it can be checked and restored, and what it
//! says it holds it holds.

use crate::started;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};
use started::Up;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Only the API.
const ALONE: &[&str] = &["--no-controllers"];

fn ask(data: &Path, method: &str, path: &str, body: &str) -> (u16, Value) {
    let answer = started::ask(data, method, path, body);
    (answer.code, answer.json())
}

fn put(data: &Path, number: u64) -> u64 {
    let object =
        json!({"metadata": {"name": format!("map-{number}")}, "data": {"number": number.to_string()}});
    let (code, made) = ask(data, "POST", CONFIG_MAPS, &object.to_string());
    assert_eq!(code, 201, "{made}");
    made["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

fn store(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zoneward")).arg("store").args(words).output().unwrap()
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bk-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_backup_of_a_running_api_holds_what_it_says() {
    let place = folder("live");
    let (data, restored) = (place.join("a"), place.join("b"));
    let up = Up::start(&data, ALONE);
    let over = Arc::new(AtomicBool::new(false));
    let writer = {
        let (data, over) = (up.data.clone(), over.clone());
        thread::spawn(move || {
            let until_over = (0..).take_while(|_| !over.load(Ordering::SeqCst));
            until_over.map(|number| put(&data, number)).collect::<Vec<u64>>()
        })
    };
    while ask(&data, "GET", &format!("{CONFIG_MAPS}/map-20"), "").0 != 200 {}
    let file = place.join("monday.backup");
    let (name, dir) = (file.to_str().unwrap(), data.to_str().unwrap());
    let answer = store(&["backup", "--data-dir", dir, name]);
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    over.store(true, Ordering::SeqCst);
    let versions = writer.join().unwrap();
    let said = String::from_utf8_lossy(&answer.stdout).into_owned();
    let revision: u64 = said.trim().trim_end_matches('.').rsplit(' ').next().unwrap().parse().unwrap();

    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let again = store(&["backup", "--data-dir", dir, name]);
    assert!(again.status.code() == Some(1) && String::from_utf8_lossy(&again.stderr).contains("exists"));
    assert_eq!(store(&["check", "--backup", name]).status.code(), Some(0));
    drop(up);

    assert_eq!(store(&["restore", "--data-dir", restored.to_str().unwrap(), name]).status.code(), Some(0));
    let up = Up::start(&restored, ALONE);
    let (code, list) = ask(&up.data, "GET", CONFIG_MAPS, "");
    assert_eq!(code, 200);
    // Exactly those that were acknowledged up to the revision that the backup names.
    let expected = versions.iter().filter(|version| **version <= revision).count();
    assert!(expected > 20);
    assert_eq!(list["items"].as_array().unwrap().len(), expected);
    drop(up);
    std::fs::remove_dir_all(&place).unwrap();
}

#[test]
fn a_damaged_backup_is_found_by_check_and_refused_by_restore() {
    let place = folder("damaged");
    let data = place.join("a");
    let up = Up::start(&data, ALONE);
    let numbers: Vec<u64> = (0..200).map(|number| put(&data, number)).collect();
    assert_eq!(numbers.len(), 200);
    let file = place.join("backup");
    let name = file.to_str().unwrap();
    assert_eq!(store(&["backup", "--data-dir", data.to_str().unwrap(), name]).status.code(), Some(0));
    let again = store(&["backup", "--data-dir", data.to_str().unwrap(), name]);
    let said = String::from_utf8_lossy(&again.stderr);
    assert_eq!(said, format!("zoneward: {name} exists already: choose another name\n"));
    drop(up);
    let mut bytes = std::fs::read(&file).unwrap();
    for length in [bytes.len() / 2, 1000, 0] {
        let cut = place.join("cut");
        std::fs::write(&cut, &bytes[..length]).unwrap();
        for words in [vec!["check", "--backup"], vec!["restore", "--data-dir", place.to_str().unwrap()]] {
            let output =
                Command::new(env!("CARGO_BIN_EXE_zoneward")).arg("store").args(&words).arg(&cut).output();
            let said = String::from_utf8_lossy(&output.unwrap().stderr).into_owned();
            assert!(said.contains("is not a backup, or is incomplete or damaged: "), "{words:?}: {said}");
            assert!(said.ends_with(". Use another backup\n") && !said.contains(".."), "{words:?}: {said}");
            assert!(!said.contains("store check"), "{words:?}: {said}");
        }
    }
    let needle = b"\"number\":\"77\"";
    let at = bytes.windows(needle.len()).position(|window| window == needle).unwrap();
    bytes[at + 11] = b'8';
    std::fs::write(&file, bytes).unwrap();
    assert_eq!(store(&["check", "--backup", name]).status.code(), Some(1));
    let refused = store(&["restore", "--data-dir", place.join("b").to_str().unwrap(), name]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    std::fs::remove_dir_all(&place).unwrap();
}
