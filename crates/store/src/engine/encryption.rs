//! Encryption at rest: rows of some resources hold their JSON sealed, in the tables, the journal and backups alike.
//!
//! ```text
//!  sealed JSON = id of the key (8 bytes) | salt (24) | ciphertext | tag (16)
//!  salt --HKDF-SHA256 of the key--> AES-256 key and nonce of this row alone
//! ```
//!
//! Each row has a random salt of 192 bits, so that no nonce is used twice with one AES key, however many rows are written.
//! The additional data is revision, resource, namespace, name, expiry and whether the row is a tombstone: a row in the
//! place of another one does not open. `previous` is left out, because backups and replay change it without the key.
//!
//! One number of the tables names the key that seals every row; see [`reencrypt`] for how it changes.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use redb::{Database, ReadableTable};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};

use super::EngineOptions;
use super::backup::replace_file;
use super::error::{OpenError, StorageError, StorageErrorKind};
use super::files::{DATA_FILE, StoreFolder, holds_store};
use super::format::{self, ENCRYPTED_FORMAT, FORMAT};
use super::key::{ResourceId, StoreKey};
use super::row::{Row, take};
use super::storage::Storage;
use super::tables::{Meta, ReadTables, WriteTables};

const KEY_LEN: usize = 32;
const SALT_LEN: usize = 24;
const TAG_LEN: usize = 16;
/// Larger than any reasonable key file.
const FILE_BYTES: u64 = 64 << 10;

/// Names a key without telling it: the first bytes of a hash of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EncryptionKeyId(pub u64);

impl fmt::Display for EncryptionKeyId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

/// A key file was refused.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It cannot be read.
    #[error("{file}: {cause}")]
    Io {
        /// The file.
        file: String,
        /// The error of the system.
        cause: String,
    },
    /// Other users can read or write it.
    #[error("{file} has mode {mode:04o}, other users must have no access: run `chmod 600 {file}`")]
    Mode {
        /// The file.
        file: String,
        /// Its permission bits.
        mode: u32,
    },
    /// A line is malformed. The line itself is not quoted: it may be a key.
    #[error("{file}: line {line}: {cause}")]
    Line {
        /// The file.
        file: String,
        /// From 1.
        line: usize,
        /// What is wrong.
        cause: &'static str,
    },
    /// There is no key.
    #[error("{file} has no key: write one with `head -c 32 /dev/urandom | base64 > {file}`")]
    Empty {
        /// The file.
        file: String,
    },
}

/// The keys that seal and open rows; without any, rows are written as they are and sealed ones stay closed.
#[derive(Clone, Default)]
pub struct EncryptionKeys(Option<Arc<KeyRing>>);

struct KeyRing {
    /// Names the keys in messages.
    file: String,
    keys: Vec<(EncryptionKeyId, [u8; KEY_LEN])>,
    /// Whether the first key seals new rows; otherwise they are written as they are.
    seals: bool,
    /// The resources whose rows are sealed, and their names in messages.
    resources: Vec<(ResourceId, &'static str)>,
}

impl fmt::Debug for EncryptionKeys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = self.0.iter().flat_map(|ring| ring.keys.iter().map(|(id, _)| id.to_string()));
        out.debug_list().entries(ids).finish()
    }
}

impl EncryptionKeys {
    /// Reads a file with one key per line, 32 bytes in base64. The first key seals, every key opens. If the first line is
    /// `identity`, as the provider of Kubernetes, new rows are not sealed.
    pub fn read(
        file: &Path,
        resources: &[(ResourceId, &'static str)],
    ) -> Result<EncryptionKeys, KeyFileError> {
        let name = file.display().to_string();
        let failed =
            |error: std::io::Error| KeyFileError::Io { file: name.clone(), cause: error.to_string() };
        let opened = File::open(file).map_err(failed)?;
        let mode = opened.metadata().map_err(failed)?.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(KeyFileError::Mode { file: name, mode });
        }
        let mut text = String::new();
        opened.take(FILE_BYTES).read_to_string(&mut text).map_err(failed)?;
        parse(&name, &text, resources)
    }

    /// Whether there are no keys at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The key of new rows; `None` if they are not sealed.
    pub fn sealing_key(&self) -> Option<EncryptionKeyId> {
        let ring = self.0.as_ref().filter(|ring| ring.seals)?;
        ring.keys.first().map(|(id, _)| *id)
    }

    /// The key of new rows as the tables name it; 0 for none.
    pub(super) fn sealing_number(&self) -> u64 {
        self.sealing_key().map_or(0, |id| id.0)
    }

    /// The format of a store that is written with these keys.
    pub(super) fn format(&self) -> u64 {
        if self.sealing_key().is_some() { ENCRYPTED_FORMAT } else { FORMAT }
    }

    fn covers(&self, resource: ResourceId) -> bool {
        self.0.as_ref().is_some_and(|ring| ring.resources.iter().any(|(covered, _)| *covered == resource))
    }

    /// Seals the row as it will be written, if its resource is sealed and it is not yet.
    pub(super) fn seal(&self, revision: u64, row: &Row) -> Result<Option<Row>, StorageError> {
        let Some(ring) = self.0.as_ref().filter(|ring| ring.seals && self.covers(row.key.resource)) else {
            return Ok(None);
        };
        if row.sealed {
            return Ok(None);
        }
        let (id, key) = &ring.keys[0];
        let mut salt = [0; SALT_LEN];
        getrandom::fill(&mut salt).map_err(|error| {
            StorageError::new(StorageErrorKind::Io, format!("the system has no random bytes: {error}"))
        })?;
        let mut out = Vec::with_capacity(8 + SALT_LEN + row.json.len() + TAG_LEN);
        out.extend(id.0.to_le_bytes());
        out.extend(salt);
        out.extend(&row.json[..]);
        let (cipher, nonce) = row_cipher(key, &salt);
        let tag = cipher
            .seal_in_place_separate_tag(nonce, Aad::from(bound(revision, row)), &mut out[8 + SALT_LEN..])
            .map_err(|_| StorageError::damaged(format!("{} is too large to encrypt", self.name(&row.key))))?;
        out.extend(tag.as_ref());
        Ok(Some(Row { sealed: true, json: out.into(), ..row.clone() }))
    }

    /// Opens a sealed row; others stay as they are.
    pub(super) fn open(&self, revision: u64, row: Row) -> Result<Row, StorageError> {
        if !row.sealed {
            return Ok(row);
        }
        let name = self.name(&row.key);
        let altered = || {
            StorageError::damaged(format!(
                "{name} at revision {revision} cannot be decrypted: its row was altered, or belongs elsewhere"
            ))
        };
        let id = row.sealed_by().ok_or_else(altered)?;
        let Some(ring) = &self.0 else { return Err(no_key(&format!("{name} is encrypted with key {id}"))) };
        let Some((_, key)) = ring.keys.iter().find(|(known, _)| *known == id) else {
            return Err(no_key(&format!("{name} is encrypted with key {id}, which is not in {}", ring.file)));
        };
        let mut rest = &row.json[8..];
        let salt = take::<SALT_LEN>(&mut rest).ok_or_else(altered)?;
        let (ciphertext, tag) = rest.split_last_chunk::<TAG_LEN>().ok_or_else(altered)?;
        let mut json = ciphertext.to_vec();
        let (cipher, nonce) = row_cipher(key, &salt);
        cipher
            .open_in_place_separate_tag(
                nonce,
                Aad::from(bound(revision, &row)),
                Tag::from(*tag),
                &mut json,
                0..,
            )
            .map_err(|_| altered())?;
        Ok(Row { sealed: false, json: Bytes::from(json), ..row })
    }

    fn name(&self, key: &StoreKey) -> String {
        let resources = self.0.iter().flat_map(|ring| &ring.resources);
        match resources.into_iter().find(|(resource, _)| *resource == key.resource) {
            Some((_, kind)) => format!("{kind} {}/{}", key.namespace, key.name),
            None => key.to_string(),
        }
    }
}

fn no_key(cause: &str) -> StorageError {
    StorageError::new(StorageErrorKind::Key, cause)
}

impl Row {
    /// The key of a sealed row.
    pub(super) fn sealed_by(&self) -> Option<EncryptionKeyId> {
        let mut content = &self.json[..];
        take(&mut content).filter(|_| self.sealed).map(u64::from_le_bytes).map(EncryptionKeyId)
    }
}

/// What a sealed row is bound to.
fn bound(revision: u64, row: &Row) -> Vec<u8> {
    let mut out = revision.to_le_bytes().to_vec();
    out.push(row.deleted.into());
    out.extend(row.expires.unwrap_or(0).to_le_bytes());
    out.extend(row.key.resource.0.to_le_bytes());
    for text in [&row.key.namespace, &row.key.name] {
        out.extend((text.len() as u32).to_le_bytes());
        out.extend(text.as_bytes());
    }
    out
}

struct DerivedLen;

impl KeyType for DerivedLen {
    fn len(&self) -> usize {
        KEY_LEN + NONCE_LEN
    }
}

/// The cipher and the nonce of one row.
fn row_cipher(key: &[u8; KEY_LEN], salt: &[u8; SALT_LEN]) -> (LessSafeKey, Nonce) {
    let mut derived = [0; KEY_LEN + NONCE_LEN];
    let extracted = Salt::new(HKDF_SHA256, salt).extract(key);
    let expanded = extracted.expand(&[b"zoneward row"], DerivedLen);
    expanded.and_then(|okm| okm.fill(&mut derived)).expect("the length suits HKDF");
    let (key, nonce) = derived.split_at(KEY_LEN);
    let cipher = UnboundKey::new(&AES_256_GCM, key).expect("the key has the length of AES-256");
    let nonce = Nonce::try_assume_unique_for_key(nonce).expect("the nonce has its length");
    (LessSafeKey::new(cipher), nonce)
}

fn parse(
    file: &str,
    text: &str,
    resources: &[(ResourceId, &'static str)],
) -> Result<EncryptionKeys, KeyFileError> {
    let (mut keys, mut seals): (Vec<(EncryptionKeyId, [u8; KEY_LEN])>, _) = (Vec::new(), None);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let refused = |cause| KeyFileError::Line { file: file.to_owned(), line: index + 1, cause };
        if line == "identity" {
            if seals.is_some() {
                return Err(refused("identity must come before the keys"));
            }
            seals = Some(false);
            continue;
        }
        let bytes = STANDARD.decode(line).map_err(|_| refused("expected a key in base64"))?;
        let key: [u8; KEY_LEN] =
            bytes.try_into().map_err(|_| refused("expected a key of 32 bytes in base64"))?;
        let id = id_of(&key);
        if keys.iter().any(|(known, _)| *known == id) {
            return Err(refused("this key is in the file twice"));
        }
        keys.push((id, key));
        seals.get_or_insert(true);
    }
    if keys.is_empty() {
        return Err(KeyFileError::Empty { file: file.to_owned() });
    }
    let ring =
        KeyRing { file: file.to_owned(), keys, seals: seals.unwrap_or(true), resources: resources.to_vec() };
    Ok(EncryptionKeys(Some(Arc::new(ring))))
}

/// Never 0, which stands for no key.
fn id_of(key: &[u8; KEY_LEN]) -> EncryptionKeyId {
    let mut hash = ring::digest::Context::new(&ring::digest::SHA256);
    hash.update(b"zoneward key id");
    hash.update(key);
    let hash = hash.finish();
    let mut bytes = hash.as_ref();
    EncryptionKeyId(u64::from_be_bytes(take(&mut bytes).expect("the hash is longer")).max(1))
}

impl ReadTables {
    /// Opens a row to check it; without keys, a sealed one stays closed.
    pub(super) fn open_checked(&self, meta: &Meta, revision: u64, row: Row) -> Result<Row, StorageError> {
        let keys = &self.keys;
        if keys.is_empty() {
            return Ok(row);
        }
        let is_encrypted = meta.encryption_key != 0 && meta.encryption_key == keys.sealing_number();
        if is_encrypted && !row.sealed && keys.covers(row.key.resource) {
            let name = keys.name(&row.key);
            return Err(StorageError::damaged(format!("{name} at revision {revision} is not encrypted")));
        }
        keys.open(revision, row)
    }

    /// Copies everything into an empty database, sealed with the first key or open. Returns how many versions changed.
    fn copy_reencrypted(&self, to: &Database, keys: &EncryptionKeys) -> Result<u64, StorageError> {
        let mut txn = to.begin_write()?;
        txn.set_quick_repair(true);
        let mut tables = WriteTables::open(&txn)?;
        for entry in self.index.iter()? {
            let (key, head) = entry?;
            tables.index.insert(key.value(), head.value())?;
        }
        for entry in self.expiry.iter()? {
            tables.expiry.insert(entry?.0.value(), ())?;
        }
        let mut meta = self.meta()?;
        meta.log_bytes = 0;
        let (mut changed, mut bytes) = (0, Vec::new());
        for entry in self.versions.iter()? {
            let (revision, content) = entry?;
            let revision = revision.value();
            let found = Row::decode(revision, content.value())?;
            let was_sealed = found.sealed;
            let row = keys.open(revision, found)?;
            let sealed = keys.seal(revision, &row)?;
            changed += u64::from(was_sealed || sealed.is_some());
            bytes.clear();
            sealed.as_ref().unwrap_or(&row).encode(revision, &mut bytes);
            if revision > meta.compacted {
                meta.log_bytes += bytes.len() as u64;
            }
            tables.versions.insert(revision, &bytes[..])?;
        }
        (meta.format, meta.encryption_key) = (keys.format(), keys.sealing_number());
        tables.set_meta(&meta)?;
        drop(tables);
        txn.commit()?;
        Ok(changed)
    }
}

/// What a re-encryption did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reencryption {
    /// Sealed versions that were opened, and versions that were sealed.
    pub versions: u64,
    /// The key of all sealed versions now; `None` if none are sealed.
    pub key: Option<EncryptionKeyId>,
}

/// Seals every version with the first key, or opens every version. The tables get a new file, so that neither pages nor
/// the journal keep what was written before.
///
/// ```text
///  checkpoint ----> zeros over the journal ----> copy of the tables under another name ----> rename
/// ```
///
/// A crash before the rename leaves the old file, which has everything, one after it the new file.
pub(super) fn reencrypt(folder: &Path, keys: &EncryptionKeys) -> Result<Option<Reencryption>, OpenError> {
    let place = folder.display().to_string();
    let failed = |error: StorageError| OpenError::at(&place, error);
    if keys.is_empty() || !holds_store(folder).map_err(|error| failed(error.into()))? {
        return Ok(None);
    }
    format::refuse_newer(folder)?;
    let files = StoreFolder::new(folder).map_err(|error| failed(error.into()))?;
    let options = EngineOptions { verify: false, encryption: keys.clone(), ..EngineOptions::default() };
    let storage = Storage::open_since(FORMAT, Box::new(files), options)?;
    let result = reencrypt_storage(folder, &storage, keys);
    storage.close();
    let done = result.map_err(failed)?;
    if done.is_some() {
        format::write_file(folder, keys.format()).map_err(|error| failed(error.into()))?;
    }
    Ok(done)
}

fn reencrypt_storage(
    folder: &Path,
    storage: &Storage,
    keys: &EncryptionKeys,
) -> Result<Option<Reencryption>, StorageError> {
    if storage.meta()?.encryption_key == keys.sealing_number() {
        return Ok(None);
    }
    if let Some(problem) = storage.check()?.summary() {
        return Err(StorageError::damaged(problem));
    }
    storage.clear_journal()?;
    let versions = replace_file(&folder.join(DATA_FILE), |target| {
        storage.read_newest(|tables| tables.copy_reencrypted(target, keys))
    })?;
    Ok(Some(Reencryption { versions, key: keys.sealing_key() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECRETS: ResourceId = ResourceId(6);
    const ONE: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
    const TWO: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

    fn keys(text: &str) -> EncryptionKeys {
        parse("keys", text, &[(SECRETS, "Secret")]).unwrap()
    }

    fn row(name: &str, json: &[u8]) -> Row {
        let key = StoreKey::new(SECRETS, "default", name);
        Row { key, deleted: false, previous: 3, expires: None, sealed: false, json: json.to_vec().into() }
    }

    #[test]
    fn a_key_file_has_one_key_per_line() {
        let both = keys(&format!("# today\n{ONE}\n\n  {TWO}  \n"));
        assert_eq!(both.sealing_key(), Some(id_of(&[1; 32])));
        assert_eq!(keys(&format!("identity\n{ONE}")).sealing_key(), None);
        let refused = |text: &str| parse("keys", text, &[]).unwrap_err().to_string();
        assert_eq!(refused(&format!("{ONE}\nidentity")), "keys: line 2: identity must come before the keys");
        assert_eq!(refused("AQEB"), "keys: line 1: expected a key of 32 bytes in base64");
        assert_eq!(refused("hunter2!"), "keys: line 1: expected a key in base64");
        assert_eq!(refused(&format!("{ONE}\n{ONE}")), "keys: line 2: this key is in the file twice");
        assert!(refused("identity\n").contains("has no key"));
        assert!(!format!("{both:?}").contains("AQEB"));
    }

    #[test]
    fn a_sealed_row_opens_only_in_its_own_place() {
        let keys = keys(ONE);
        let sealed = keys.seal(7, &row("web", b"hunter2")).unwrap().unwrap();
        assert_eq!(keys.open(7, sealed.clone()).unwrap(), row("web", b"hunter2"));
        assert_eq!(keys.open(7, Row { previous: 0, ..sealed.clone() }).unwrap().json, "hunter2");
        let elsewhere = |revision, moved: Row| {
            let error = keys.open(revision, moved).unwrap_err();
            assert_eq!(error.kind, StorageErrorKind::Damaged);
        };
        elsewhere(8, sealed.clone());
        elsewhere(7, Row { deleted: true, ..sealed.clone() });
        elsewhere(7, Row { expires: Some(9), ..sealed.clone() });
        elsewhere(7, Row { key: StoreKey::new(SECRETS, "default", "other"), ..sealed.clone() });
        elsewhere(7, Row { key: StoreKey::new(SECRETS, "defaultw", "eb"), ..sealed.clone() });
        elsewhere(7, Row { key: StoreKey::new(ResourceId(2), "default", "web"), ..sealed });
    }

    #[test]
    fn a_missing_key_is_named_with_its_object_and_file() {
        let sealed = keys(ONE).seal(7, &row("web", b"hunter2")).unwrap().unwrap();
        let id = id_of(&[1; 32]);
        let error = keys(TWO).open(7, sealed.clone()).unwrap_err();
        assert_eq!(error.kind, StorageErrorKind::Key);
        let cause = format!("Secret default/web is encrypted with key {id}, which is not in keys");
        assert_eq!(&*error.cause, cause);
        assert_eq!(EncryptionKeys::default().open(7, sealed).unwrap_err().kind, StorageErrorKind::Key);
    }

    #[test]
    fn no_two_rows_have_the_same_salt() {
        let keys = keys(ONE);
        let salts: std::collections::BTreeSet<Vec<u8>> = (0..1_000)
            .map(|_| keys.seal(7, &row("web", b"same")).unwrap().unwrap().json[8..8 + SALT_LEN].to_vec())
            .collect();
        assert_eq!(salts.len(), 1_000);
    }

    proptest! {
        #[test]
        fn a_flipped_bit_of_a_sealed_row_is_seen(json: Vec<u8>, at: prop::sample::Index, bit in 0..8u8) {
            let keys = keys(ONE);
            let sealed = keys.seal(7, &row("web", &json)).unwrap().unwrap();
            let mut bytes = sealed.json.to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let altered = Row { json: bytes.into(), ..sealed };
            prop_assert!(keys.open(7, altered).is_err());
        }

        #[test]
        fn any_sealed_bytes_are_read_without_a_panic(json: Vec<u8>, known: bool) {
            let mut bytes = if known { id_of(&[1; 32]).0.to_le_bytes().to_vec() } else { Vec::new() };
            bytes.extend(json);
            let mut row = row("web", &bytes);
            row.sealed = true;
            prop_assert!(keys(ONE).open(7, row).is_err());
        }
    }
}
