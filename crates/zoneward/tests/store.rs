//! `zoneward store` as an operator uses it: back up, lose everything, restore, check.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use store::engine::{Engine, EngineOptions, Expect, ResourceId, StoreKey};

struct Data(PathBuf);

impl Data {
    fn new(name: &str) -> Data {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("the build folder can be written");
        Data(path)
    }

    fn engine(&self) -> Engine {
        Engine::open(&self.0.join("store"), EngineOptions::default()).expect("a store opens")
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
        command.arg("store").args(args).arg("--data-dir").arg(&self.0);
        command.output().expect("the program can be started")
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn key() -> StoreKey {
    StoreKey::new(ResourceId(1), "default", "web")
}

fn stderr(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_backup_brings_back_what_was_lost() {
    let data = Data::new("store-command");
    let engine = data.engine();
    engine.write(|txn| txn.put(key(), "{}".into(), Expect::Absent)).unwrap();
    let file = data.0.join("backup");
    let name = file.to_str().expect("the build folder has a plain name");

    assert!(stderr(&data.run(&["backup", name])).contains("in use by another process"));
    drop(engine);
    assert_eq!(data.run(&["backup", name]).status.code(), Some(0));
    let said = stderr(&data.run(&["backup", name]));
    assert_eq!(said, format!("zoneward: {name} exists already: choose another name\n"));
    assert!(stderr(&data.run(&["restore", name])).contains("nothing is overwritten"));

    std::fs::remove_dir_all(data.0.join("store")).unwrap();
    assert!(stderr(&data.run(&["check"])).contains("does not hold a store"));
    assert!(stderr(&data.run(&["backup", "other"])).contains("does not hold a store"));
    assert_eq!(data.run(&["restore", name]).status.code(), Some(0));
    assert_eq!(data.engine().get(&key()).unwrap().unwrap().json, "{}");
}

#[test]
fn check_answers_in_words_and_in_json_and_names_damage() {
    let data = Data::new("store-check");
    data.engine().write(|txn| txn.put(key(), "{}".into(), Expect::Absent)).unwrap();
    let answer = data.run(&["check"]);
    assert_eq!(answer.status.code(), Some(0));
    let words = String::from_utf8_lossy(&answer.stdout).into_owned();
    assert!(words.starts_with("1 objects in 1 versions"), "{words}");
    let json: Value = serde_json::from_slice(&data.run(&["check", "-o", "json"]).stdout).unwrap();
    assert_eq!((&json["sound"], &json["objects"]), (&true.into(), &1.into()));

    std::fs::remove_file(data.0.join("store/store.journal")).unwrap();
    let said = stderr(&data.run(&["check"]));
    assert!(said.contains("the journal is missing") && said.contains("zoneward store restore"), "{said}");
    assert!(!said.contains("zoneward store check"), "no advice to run the same command: {said}");
}

#[test]
fn check_asks_for_a_data_directory_or_a_backup() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
    let output = command.args(["store", "check"]).output().expect("the program can be started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--data-dir <DIR>") && said.contains("--backup <FILE>"), "{said}");
}
