//! Encryption at rest against a reader and a writer of the disk: plain text is nowhere, rows keep their place, and a lost
//! key is an error and never a lost object.

use crate::folder;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use folder::TestFolder;
use redb::{Database, ReadableDatabase, TableDefinition};
use store::engine::{
    Bytes, CommitMode, DATA_FILE, ENCRYPTED_FORMAT, EncryptionKeys, Engine, EngineOptions, Expect, FORMAT,
    FORMAT_FILE, JOURNAL_FILE, ListQuery, OpenError, ResourceId, Revision, StoreKey,
};

const PODS: ResourceId = ResourceId(5);
const SECRETS: ResourceId = ResourceId(6);
const PLAIN: &str = "correct horse battery staple";
const ONE: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
const TWO: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

/// A folder with a store, and key files beside it.
struct World(TestFolder);

impl World {
    fn new() -> World {
        World(TestFolder::new())
    }

    fn store(&self) -> PathBuf {
        self.0.path().join("store")
    }

    fn keys(&self, lines: &[&str]) -> EncryptionKeys {
        let file = self.0.path().join("keys");
        fs::write(&file, lines.join("\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        EncryptionKeys::read(&file, &[(SECRETS, "Secret")]).unwrap()
    }

    fn try_open(&self, encryption: EncryptionKeys) -> Result<Engine, OpenError> {
        Engine::reencrypt(&self.store(), &encryption)?;
        let options = EngineOptions { encryption, commit: CommitMode::Inline, ..EngineOptions::default() };
        Engine::open(&self.store(), options)
    }

    fn open(&self, encryption: EncryptionKeys) -> Engine {
        self.try_open(encryption).unwrap()
    }

    /// The files below the folder that contain a text.
    fn with_text(&self, text: &str) -> Vec<PathBuf> {
        files(self.0.path()).into_iter().filter(|path| contains(&fs::read(path).unwrap(), text)).collect()
    }

    fn format(&self) -> String {
        fs::read_to_string(self.store().join(FORMAT_FILE)).unwrap()
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    // Searching text is optimised code of std, unlike windows of bytes.
    String::from_utf8_lossy(bytes).contains(text)
}

fn secret(name: &str) -> StoreKey {
    StoreKey::new(SECRETS, "default", name)
}

fn put(engine: &Engine, key: StoreKey, json: &str) -> Revision {
    let json = Bytes::from(json.to_owned());
    engine.write(move |txn| txn.put(key, json, Expect::Anything)).unwrap()
}

fn json_of(engine: &Engine, name: &str) -> String {
    String::from_utf8(engine.get(&secret(name)).unwrap().unwrap().json.to_vec()).unwrap()
}

#[test]
fn plain_text_of_a_secret_is_nowhere_on_disk() {
    let world = World::new();
    let engine = world.open(world.keys(&[ONE]));
    put(&engine, StoreKey::new(PODS, "default", "web"), "a pod is no secret");
    put(&engine, secret("old"), &format!("{PLAIN} old"));
    put(&engine, secret("web"), &format!("{PLAIN} 1"));
    put(&engine, secret("web"), &format!("{PLAIN} 2"));
    let gone = secret("old");
    engine.write(move |txn| txn.delete(&gone, None, Expect::Present)).unwrap();
    let backup = world.0.path().join("backup");
    engine.backup(&backup).unwrap();
    assert_eq!(world.with_text(PLAIN), Vec::<PathBuf>::new(), "while it runs");
    // Readers see plain text: get, list, watch and the state of an earlier revision.
    assert_eq!(json_of(&engine, "web"), format!("{PLAIN} 2"));
    assert_eq!(engine.list(&ListQuery::all(SECRETS)).unwrap().items.len(), 1);
    let before = ListQuery { at: Some(Revision(3)), ..ListQuery::all(SECRETS) };
    assert_eq!(engine.list(&before).unwrap().items[1].json, format!("{PLAIN} 1"));
    drop(engine);
    assert_eq!(world.with_text(PLAIN), Vec::<PathBuf>::new(), "after a checkpoint");
    assert_eq!(world.with_text("a pod is no secret").len(), 3, "tables, journal, backup");
    assert!(world.format().contains(&format!("\"format\":{ENCRYPTED_FORMAT}")), "older programs refuse it");
    let engine = world.open(world.keys(&[ONE]));
    assert_eq!(json_of(&engine, "web"), format!("{PLAIN} 2"));
    let mut watcher = engine.watch(SECRETS, None, Revision(2)).unwrap();
    let events = watcher.ready().unwrap();
    assert_eq!(events[0].json, format!("{PLAIN} 1"));
}

#[test]
fn turning_encryption_on_leaves_no_plain_text_behind_and_off_again_needs_no_key() {
    let world = World::new();
    let engine = world.open(EncryptionKeys::default());
    put(&engine, secret("web"), &format!("{PLAIN} 1"));
    put(&engine, secret("web"), &format!("{PLAIN} 2"));
    drop(engine);
    assert_eq!(world.with_text(PLAIN).len(), 2, "tables and journal");
    drop(world.open(world.keys(&[ONE])));
    assert_eq!(world.with_text(PLAIN), Vec::<PathBuf>::new());
    let report = Engine::check(&world.store(), &EncryptionKeys::default()).unwrap();
    assert_eq!((report.format, report.objects, report.versions), (ENCRYPTED_FORMAT, 1, 2));
    assert_eq!(report.encrypted.values().collect::<Vec<_>>(), [&1]);
    assert!(report.is_sound(), "{report}");

    let engine = world.open(world.keys(&["identity", ONE]));
    assert_eq!(json_of(&engine, "web"), format!("{PLAIN} 2"));
    drop(engine);
    assert!(world.format().contains(&format!("\"format\":{FORMAT}")), "older programs read it");
    let engine = world.open(EncryptionKeys::default());
    assert_eq!(json_of(&engine, "web"), format!("{PLAIN} 2"));
    assert_eq!(put(&engine, secret("web"), "3"), Revision(3));
    drop(engine);
    let report = Engine::check(&world.store(), &EncryptionKeys::default()).unwrap();
    assert!(report.is_sound() && report.encrypted.is_empty(), "{report}");
}

#[test]
fn a_rotated_key_is_not_needed_any_more() {
    let world = World::new();
    let engine = world.open(world.keys(&[ONE]));
    for number in 0..20 {
        put(&engine, secret(&format!("s{number}")), PLAIN);
    }
    drop(engine);
    let both = world.keys(&[TWO, ONE]);
    let done = Engine::reencrypt(&world.store(), &both).unwrap().unwrap();
    assert_eq!((done.versions, done.key), (20, both.sealing_key()));
    assert_eq!(Engine::reencrypt(&world.store(), &both).unwrap(), None, "once");
    let engine = world.open(world.keys(&[TWO]));
    assert_eq!(json_of(&engine, "s7"), PLAIN);
    drop(engine);
    let report = Engine::check(&world.store(), &world.keys(&[TWO])).unwrap();
    assert_eq!(report.encrypted.into_iter().collect::<Vec<_>>(), [(both.sealing_key().unwrap(), 20)]);
}

#[test]
fn a_wrong_or_missing_key_is_refused_by_name_and_changes_nothing() {
    let world = World::new();
    let engine = world.open(world.keys(&[ONE]));
    put(&engine, secret("web"), PLAIN);
    let backup = world.0.path().join("backup");
    engine.backup(&backup).unwrap();
    drop(engine);
    let right = world.keys(&[ONE]);
    let id = right.sealing_key().unwrap().to_string();
    let said = world.try_open(world.keys(&[TWO])).map(drop).unwrap_err().to_string();
    let file = world.0.path().join("keys").display().to_string();
    assert!(said.contains("Secret default/web") && said.contains(&id) && said.contains(&file), "{said}");
    let said = world.try_open(world.keys(&["identity", TWO])).map(drop).unwrap_err().to_string();
    assert!(said.contains("Secret default/web"), "{said}");
    let said = world.try_open(EncryptionKeys::default()).map(drop).unwrap_err().to_string();
    assert!(said.contains(&id) && said.contains("--encryption-key-file"), "{said}");
    let wrong = Engine::check(&world.store(), &world.keys(&[TWO]));
    assert!(matches!(wrong, Err(OpenError::Key { .. })), "{wrong:?}");

    let target = world.0.path().join("restored");
    for keys in [EncryptionKeys::default(), world.keys(&[TWO])] {
        let refused = Engine::restore(&backup, &target, &keys);
        assert!(matches!(refused, Err(OpenError::Key { .. })), "{refused:?}");
    }
    assert!(!target.join(DATA_FILE).exists());
    // The lost key does not hide the rest from a check, and does not keep a backup from being taken.
    assert!(Engine::check_backup(&backup, &EncryptionKeys::default()).unwrap().is_sound());
    Engine::backup_of(&world.store(), &world.0.path().join("again")).unwrap();
    assert_eq!(json_of(&world.open(right), "web"), PLAIN);
}

#[test]
fn a_backup_stays_encrypted_and_comes_back_with_the_key() {
    let world = World::new();
    let engine = world.open(world.keys(&[ONE]));
    put(&engine, secret("web"), PLAIN);
    let backup = world.0.path().join("backup");
    engine.backup(&backup).unwrap();
    drop(engine);
    fs::remove_dir_all(world.store()).unwrap();
    Engine::restore(&backup, &world.store(), &world.keys(&[TWO, ONE])).unwrap();
    assert_eq!(world.with_text(PLAIN), Vec::<PathBuf>::new());
    assert_eq!(json_of(&world.open(world.keys(&[TWO])), "web"), PLAIN);
    // A plain backup is encrypted on its way in.
    let plain = World::new();
    put(&plain.open(EncryptionKeys::default()), secret("web"), PLAIN);
    let backup = plain.0.path().join("backup");
    Engine::backup_of(&plain.store(), &backup).unwrap();
    let target = World::new();
    Engine::restore(&backup, &target.store(), &target.keys(&[ONE])).unwrap();
    assert_eq!(target.with_text(PLAIN), Vec::<PathBuf>::new());
    assert_eq!(json_of(&target.open(target.keys(&[ONE])), "web"), PLAIN);
}

const VERSIONS: TableDefinition<u64, &[u8]> = TableDefinition::new("versions");

/// The start of the sealed JSON: behind kind, previous, expiry, resource, and two texts with their lengths.
fn sealed_at(row: &[u8]) -> usize {
    let mut at = 1 + 8 + 8 + 2;
    for _ in 0..2 {
        let len = u32::from_le_bytes(row[at..at + 4].try_into().unwrap()) as usize;
        at += 4 + len;
    }
    at
}

/// The row with another content, and a right checksum, which needs no key.
fn forged(row: &[u8], revision: u64, content: &[u8]) -> Vec<u8> {
    let mut out = [&row[..sealed_at(row)], content].concat();
    let mut sum = crc32fast::Hasher::new();
    sum.update(&revision.to_le_bytes());
    sum.update(&out);
    out.extend(sum.finalize().to_le_bytes());
    out
}

#[test]
fn swapped_and_replayed_rows_are_refused_although_their_checksums_are_right() {
    for (from, to) in [(1, 2), (2, 1), (1, 3)] {
        let world = World::new();
        let engine = world.open(world.keys(&[ONE]));
        put(&engine, secret("admin"), "the password of the admin");
        put(&engine, secret("guest"), "the password of a guest");
        put(&engine, secret("admin"), "the new password of the admin");
        drop(engine);
        let database = Database::create(world.store().join(DATA_FILE)).unwrap();
        let row = |revision: u64| {
            let tables = database.begin_read().unwrap().open_table(VERSIONS).unwrap();
            tables.get(revision).unwrap().unwrap().value().to_vec()
        };
        let (source, target) = (row(from), row(to));
        let content = &source[sealed_at(&source)..source.len() - 4];
        let forged = forged(&target, to, content);
        let txn = database.begin_write().unwrap();
        txn.open_table(VERSIONS).unwrap().insert(to, &forged[..]).unwrap();
        txn.commit().unwrap();
        drop(database);
        let said = world.try_open(world.keys(&[ONE])).map(drop).unwrap_err().to_string();
        let name = if to == 2 { "guest" } else { "admin" };
        assert!(
            said.contains(&format!("Secret default/{name} at revision {to} cannot be decrypted")),
            "{said}"
        );
    }
}

#[test]
fn what_an_interrupted_reencryption_leaves_is_whole() {
    let world = World::new();
    let engine = world.open(world.keys(&[ONE]));
    for number in 0..20 {
        put(&engine, secret(&format!("s{number}")), PLAIN);
    }
    drop(engine);
    // Killed while the copy was written: part of a file is left beside the old one.
    let partial = world.store().join(format!("{DATA_FILE}.partial"));
    let data = fs::read(world.store().join(DATA_FILE)).unwrap();
    fs::write(&partial, &data[..data.len() / 2]).unwrap();
    // Killed between zeros over the journal, which the tables do not need any more.
    let journal = fs::File::options().write(true).open(world.store().join(JOURNAL_FILE)).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&journal, &[0; 700], 0).unwrap();
    assert!(Engine::check(&world.store(), &world.keys(&[ONE])).unwrap().is_sound());
    let engine = world.open(world.keys(&[TWO, ONE]));
    assert_eq!(json_of(&engine, "s19"), PLAIN);
    drop(engine);
    assert!(!partial.exists());
    assert!(Engine::check(&world.store(), &world.keys(&[TWO])).unwrap().is_sound());
}

#[test]
fn a_key_file_of_others_is_refused() {
    let world = World::new();
    world.keys(&[ONE]);
    let file = world.0.path().join("keys");
    for mode in [0o640, 0o604, 0o620] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let said = EncryptionKeys::read(&file, &[]).unwrap_err().to_string();
        assert!(said.contains(&format!("mode {mode:04o}")) && said.contains("chmod 600"), "{said}");
    }
}
