//! A store on a real file system that is full: a small tmpfs in a mount namespace of the test.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use store::engine::{
    Bytes, Engine, EngineOptions, Expect, ResourceId, Revision, StorageErrorKind, StoreKey, TxnError,
    WriteError,
};

const PODS: ResourceId = ResourceId(1);

/// The folder of the tmpfs, in the process that has one.
const FOLDER: &str = "ZONEWARD_FULL_DISK";

const TEST: &str = "full_disk::deletes_and_restarts_work_on_a_full_file_system";

#[test]
fn deletes_and_restarts_work_on_a_full_file_system() {
    match std::env::var(FOLDER) {
        Ok(folder) => delete_and_restart(Path::new(&folder)),
        Err(_) => run_in_namespace(),
    }
}

/// Runs this test again in a mount namespace.
fn run_in_namespace() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("full-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let script = "mount -t tmpfs -o size=48m tmpfs \"$0\" && exec \"$1\" --exact \"$2\" --nocapture";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(&folder)
        .arg(std::env::current_exe().unwrap())
        .arg(TEST)
        .env(FOLDER, &folder)
        .output()
        .unwrap();
    let _ = fs::remove_dir_all(&folder);
    let text = String::from_utf8_lossy(&output.stdout);
    let is_passed = output.status.success() && text.contains("1 passed");
    assert!(is_passed, "{text}{}", String::from_utf8_lossy(&output.stderr));
}

fn put(engine: &Engine, name: &str) -> Result<Revision, WriteError<TxnError>> {
    let key = StoreKey::new(PODS, "default", name);
    engine.write(move |txn| txn.put(key, Bytes::from("x".repeat(4_000)), Expect::Anything))
}

fn fill(folder: &Path) {
    let mut options = fs::OpenOptions::new();
    let mut file = options.create(true).append(true).open(folder.join("filler")).unwrap();
    let block = [b'x'; 4_096];
    while file.write_all(&block).is_ok() {}
}

fn delete(engine: &Engine, number: u32) {
    let key = StoreKey::new(PODS, "default", &format!("p{number}"));
    let deleted = engine.write(move |txn| txn.delete(&key, None, Expect::Present));
    deleted.unwrap_or_else(|error| panic!("p{number}: {error}"));
}

fn delete_and_restart(disk: &Path) {
    let store = disk.join("store");
    let options = || EngineOptions { journal_bytes: 8 << 20, ..EngineOptions::default() };
    let mut engine = Engine::open(&store, options()).unwrap();
    for number in 0..1_000 {
        put(&engine, &format!("p{number}")).unwrap();
    }
    fill(disk);
    for number in 0..1_000 {
        if number % 100 == 0 {
            let refused = put(&engine, "other").err();
            assert!(
                matches!(refused, Some(WriteError::Failed(error)) if error.kind == StorageErrorKind::Full)
            );
            // Another program takes what the store gave back.
            fill(disk);
        }
        if number % 250 == 100 {
            drop(engine);
            engine = Engine::open(&store, options()).unwrap();
        }
        delete(&engine, number);
    }
    fs::remove_file(disk.join("filler")).unwrap();
    put(&engine, "after").unwrap();
    drop(engine);
    let engine = Engine::open(&store, options()).unwrap();
    assert!(engine.get(&StoreKey::new(PODS, "default", "p1")).unwrap().is_none());
    assert!(engine.get(&StoreKey::new(PODS, "default", "after")).unwrap().is_some());
}
