//! A store on a real file system that is full: a small tmpfs in a mount namespace of the test.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

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

#[test]
fn deletes_and_restarts_work_on_a_full_file_system() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("full-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let script = "mount -t tmpfs -o size=48m tmpfs \"$0\" && ZONEWARD_FULL_DISK=$0 exec \"$1\" --exact in_the_namespace --ignored --nocapture";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(&folder)
        .arg(std::env::current_exe().unwrap())
        .output()
        .unwrap();
    let _ = fs::remove_dir_all(&folder);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn put(engine: &Engine, name: &str) -> Result<Revision, WriteError<TxnError>> {
    let key = StoreKey::new(PODS, "default", name);
    engine.write(move |txn| txn.put(key, Bytes::from("x".repeat(4_000)), Expect::Anything))
}

fn fill(folder: &Path) {
    let mut file = fs::File::create(folder.join("filler")).unwrap();
    let block = [b'x'; 4_096];
    while file.write_all(&block).is_ok() {}
}

#[test]
#[ignore = "runs in the namespace of the other test"]
fn in_the_namespace() {
    let folder = std::env::var(FOLDER).expect("started by the other test");
    let (disk, store) = (Path::new(&folder), Path::new(&folder).join("store"));
    let options = || EngineOptions { journal_bytes: 8 << 20, ..EngineOptions::default() };
    let mut engine = Engine::open(&store, options()).unwrap();
    for number in 0..1_000 {
        put(&engine, &format!("p{number}")).unwrap();
    }
    fill(disk);
    let refused = (0..20_000).find_map(|number| put(&engine, &format!("more-{number}")).err());
    let Some(WriteError::Failed(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(error.kind, StorageErrorKind::Full);
    for number in 0..1_000 {
        if number % 250 == 100 {
            drop(engine);
            engine = Engine::open(&store, options()).unwrap();
        }
        let key = StoreKey::new(PODS, "default", &format!("p{number}"));
        let deleted = engine.write(move |txn| txn.delete(&key, None, Expect::Present));
        deleted.unwrap_or_else(|error| panic!("p{number}: {error}"));
    }
    fs::remove_file(disk.join("filler")).unwrap();
    put(&engine, "after").unwrap();
    assert!(engine.get(&StoreKey::new(PODS, "default", "p1")).unwrap().is_none());
}
