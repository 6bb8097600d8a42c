//! `zoneward up --encryption-key-file` as an operator uses it: on, rotated, killed in the middle, with the wrong file, off.

use crate::started;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use started::{Up, folder};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const PLAIN: &str = "correct horse battery staple";
const ONE: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
const TWO: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";
/// Only the API.
const ALONE: &[&str] = &["--no-controllers", "--no-mesh"];

fn key_file(folder: &Path, lines: &[&str]) -> String {
    let file = folder.join("keys");
    fs::write(&file, lines.join("\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    file.to_str().unwrap().to_owned()
}

fn with_keys(file: &str) -> Vec<&str> {
    [ALONE, &["--encryption-key-file", file]].concat()
}

fn store(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zoneward")).arg("store").args(words).output().unwrap()
}

fn create(up: &Up, name: &str) {
    let object = json!({"metadata": {"name": name}, "stringData": {"password": PLAIN},
        "data": {"bytes": "c2VjcmV0IGJ5dGVzIG9mIHRoaXMgdGVzdA=="}});
    up.post(SECRETS, &object);
}

fn names(up: &Up) -> usize {
    up.ask("GET", SECRETS, "").json()["items"].as_array().unwrap().len()
}

/// The files below a folder that contain the Secrets' values as they are stored: in base64, or as they were sent.
fn leaks(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(leaks(&path));
        } else if path.is_file() {
            // Searching text is optimised code of std, unlike windows of bytes.
            let bytes = fs::read(&path).unwrap();
            let shown = String::from_utf8_lossy(&bytes);
            let texts = [PLAIN, "Y29ycmVjdCBob3JzZSBiYXR0ZXJ5IHN0YXBsZQ==", "c2VjcmV0IGJ5dGVz"];
            if texts.into_iter().any(|text| shown.contains(text)) {
                found.push(path);
            }
        }
    }
    found
}

fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat()
}

#[test]
fn encryption_is_turned_on_rotated_and_turned_off() {
    let place = folder("encryption");
    let data = place.join("data");
    fs::create_dir_all(&place).unwrap();
    let mut up = Up::start(&data, ALONE);
    create(&up, "first");
    up.signal("-TERM");
    assert!(!leaks(&data).is_empty(), "stored as it is without a key");

    let keys = key_file(&place, &[ONE]);
    let mut up = Up::start(&data, &with_keys(&keys));
    create(&up, "second");
    let backup = place.join("backup");
    let name = backup.to_str().unwrap();
    let taken = store(&["backup", "--data-dir", data.to_str().unwrap(), name]);
    assert!(taken.status.success(), "{}", text(&taken));
    assert_eq!(leaks(&place), Vec::<PathBuf>::new(), "data, journal, audit and backup");
    assert_eq!(names(&up), 2);
    // A crash: the journal has rows that the tables on disk do not have.
    create(&up, "third");
    up.signal("-KILL");
    assert_eq!(leaks(&place), Vec::<PathBuf>::new());
    let checked = store(&["check", "--data-dir", data.to_str().unwrap()]);
    assert!(text(&checked).contains("3 Secrets are encrypted with key "), "{}", text(&checked));

    let keys = key_file(&place, &[TWO, ONE]);
    let mut up = Up::start(&data, &with_keys(&keys));
    assert_eq!(names(&up), 3);
    up.signal("-TERM");
    let keys = key_file(&place, &[TWO]);
    let checked =
        store(&["check", "-o", "json", "--encryption-key-file", &keys, "--data-dir", data.to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&checked.stdout).unwrap();
    let counts: Vec<&Value> = report["encryptedSecrets"].as_object().unwrap().values().collect();
    assert_eq!((&report["sound"], counts), (&json!(true), vec![&json!(3)]), "{report}");

    let restored = place.join("restored");
    let words = ["restore", "--data-dir", restored.to_str().unwrap(), name];
    let refused = store(&words);
    assert!(text(&refused).contains("is encrypted with key"), "{}", text(&refused));
    let old = key_file(&place, &[ONE]);
    let done = store(&[&words[..], &["--encryption-key-file", &old]].concat());
    assert!(done.status.success(), "{}", text(&done));
    let mut up = Up::start(&restored, &with_keys(&old));
    assert_eq!(names(&up), 2);
    up.signal("-TERM");

    let keys = key_file(&place, &["identity", TWO]);
    Up::start(&data, &with_keys(&keys)).signal("-TERM");
    let mut up = Up::start(&data, ALONE);
    assert_eq!(names(&up), 3);
    up.signal("-TERM");
    fs::remove_dir_all(&place).unwrap();
}

#[test]
fn a_start_with_the_wrong_file_says_what_is_missing() {
    let place = folder("wrong-key");
    let data = place.join("data");
    fs::create_dir_all(&place).unwrap();
    let keys = key_file(&place, &[ONE]);
    let mut up = Up::start(&data, &with_keys(&keys));
    create(&up, "only");
    up.signal("-TERM");
    let start = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
        command.args(["up", "--no-node", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&data);
        let output = command.args(more).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        text(&output)
    };
    let said = start(ALONE);
    assert!(said.contains("is encrypted with key") && said.contains("--encryption-key-file"), "{said}");
    let keys = key_file(&place, &[TWO]);
    let said = start(&with_keys(&keys));
    assert!(said.contains("Secret default/only is encrypted with key") && said.contains(&keys), "{said}");
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o644)).unwrap();
    let said = start(&with_keys(&keys));
    assert!(said.contains("has mode 0644") && said.contains("chmod 600"), "{said}");
    let keys = key_file(&place, &["tooshort"]);
    let said = start(&with_keys(&keys));
    assert!(said.contains("line 1") && !said.contains("tooshort"), "{said}");
    let keys = key_file(&place, &[ONE]);
    let mut up = Up::start(&data, &with_keys(&keys));
    assert_eq!(names(&up), 1);
    up.signal("-TERM");
    fs::remove_dir_all(&place).unwrap();
}

#[test]
fn a_kill_in_the_middle_of_reencryption_loses_nothing() {
    let place = folder("kill-encryption");
    let data = place.join("data");
    fs::create_dir_all(&place).unwrap();
    let keys = key_file(&place, &[ONE]);
    let mut up = Up::start(&data, &with_keys(&keys));
    for number in 0..100 {
        create(&up, &format!("s{number}"));
    }
    up.signal("-TERM");
    let partial = data.join("store/store.redb.partial");
    let mut keys = [ONE, TWO];
    for round in 0..6u64 {
        keys.reverse();
        let file = key_file(&place, &keys);
        let mut up = Up::spawn(&data, &with_keys(&file));
        // As soon as the copy is there, and a little later in each round.
        let until = Instant::now() + Duration::from_secs(10);
        while !partial.exists() && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(100));
        }
        std::thread::sleep(Duration::from_micros(800 * round));
        up.signal("-KILL");
        let checked = store(&["check", "--encryption-key-file", &file, "--data-dir", data.to_str().unwrap()]);
        let said = text(&checked);
        assert!(checked.status.success() && said.contains("100 Secrets are encrypted with key"), "{said}");
        assert_eq!(leaks(&data), Vec::<PathBuf>::new());
        let mut up = Up::start(&data, &with_keys(&file));
        assert_eq!(names(&up), 100);
        up.signal("-TERM");
        assert!(!partial.exists());
    }
    fs::remove_dir_all(&place).unwrap();
}
