//! Renewal of credentials over years, on a clock that the test sets.

use std::time::SystemTime;

use clock::ManualTime;

use super::*;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("zoneward-credentials-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn credentials_are_renewed_at_two_thirds_and_the_previous_ones_end() {
    let (folder, time) = (Folder::new("renewal"), ManualTime::starting_at(SystemTime::now()));
    let credentials = Credentials::open_at(&folder.0, time.clock()).unwrap();
    credentials.write_kubeconfigs("127.0.0.1:6443".parse().unwrap()).unwrap();
    let (token, kubeconfig) = (folder.read("pki/admin.token"), folder.read("kubeconfig"));
    let key = folder.read("pki/admin.key");
    let certificate = parse(&folder.read("pki/admin.crt")).unwrap();
    let left = not_after(&certificate).unwrap().duration_since(time.clock().timestamp());
    assert!((364..=365).contains(&(left.as_hours() / 24)), "{left:?}");
    time.advance(DAY * 242);
    assert!(!credentials.refresh().unwrap());
    time.advance(DAY * 2);
    assert!(credentials.refresh().unwrap());
    let renewed = folder.read("pki/admin.token");
    assert_ne!(renewed, token);
    assert_ne!(folder.read("kubeconfig"), kubeconfig);
    let new_key = rcgen::KeyPair::from_pem(&folder.read("pki/admin.key")).unwrap();
    assert_ne!(folder.read("pki/admin.key"), key, "a stolen key ends with its certificate");
    assert!(has_key(&folder.read("pki/admin.crt"), &new_key).unwrap());
    assert_ne!(parse(&folder.read("pki/admin.crt")).unwrap(), certificate);
    // Clients have four months to follow.
    for held in [&token, &renewed] {
        assert_eq!(credentials.by_token(held).unwrap().user.name, "kubernetes-admin");
    }
    assert!(credentials.by_certificate(&certificate).is_some());
    time.advance(DAY * 122);
    assert!(credentials.by_token(&token).is_none(), "a year is over");
    assert!(credentials.by_token(&renewed).is_some());
    // A second renewal ends the certificate of the first.
    time.advance(DAY * 130);
    assert!(credentials.refresh().unwrap());
    assert!(credentials.by_certificate(&certificate).is_none());
    assert!(credentials.by_token(&renewed).is_some());
}

#[test]
fn renewal_that_fails_changes_no_file_and_a_key_without_its_certificate_gets_one() {
    let (folder, time) = (Folder::new("interrupted"), ManualTime::starting_at(SystemTime::now()));
    let credentials = Credentials::open_at(&folder.0, time.clock()).unwrap();
    let names = ["pki/admin.key", "pki/admin.crt", "pki/admin.token"];
    let before = names.map(|name| folder.read(name));
    time.advance(DAY * 250);
    let obstacle = folder.0.join("pki/admin.crt.new");
    fs::create_dir(&obstacle).unwrap();
    credentials.refresh().unwrap_err();
    assert_eq!(names.map(|name| folder.read(name)), before);
    assert!(!folder.0.join("pki/admin.key.new").exists() && !folder.0.join("pki/previous.crt").exists());
    fs::remove_dir(&obstacle).unwrap();
    // As after a stop between the key and its certificate.
    let key = rcgen::KeyPair::generate().unwrap();
    fs::write(folder.0.join("pki/admin.key"), key.serialize_pem()).unwrap();
    assert!(credentials.refresh().unwrap());
    let key = rcgen::KeyPair::from_pem(&folder.read("pki/admin.key")).unwrap();
    assert!(has_key(&folder.read("pki/admin.crt"), &key).unwrap());
    assert!(credentials.by_certificate(&parse(&before[1]).unwrap()).is_some(), "its holders can follow");
}

#[test]
fn full_disk_keeps_a_usable_credential_only() {
    let full = || Err(io::Error::from(io::ErrorKind::StorageFull));
    assert!(unless_full(Ok(()), true).unwrap() && !unless_full(full(), true).unwrap());
    unless_full(full(), false).unwrap_err();
    unless_full(Err(io::Error::other("denied")), true).unwrap_err();
}

#[test]
fn credential_that_was_deleted_is_replaced_without_a_restart_and_ends_at_once() {
    let folder = Folder::new("deleted");
    let credentials = Credentials::open(&folder.0).unwrap();
    let token = folder.read("pki/reader.token");
    let certificate = parse(&folder.read("pki/reader.crt")).unwrap();
    assert!(credentials.by_token(&token).is_some() && credentials.by_certificate(&certificate).is_some());
    for ending in ["token", "crt", "key"] {
        fs::remove_file(folder.0.join(format!("pki/reader.{ending}"))).unwrap();
    }
    assert!(credentials.refresh().unwrap());
    assert!(credentials.by_token(&token).is_none() && credentials.by_certificate(&certificate).is_none());
    assert!(credentials.by_token(&folder.read("pki/reader.token")).is_some());
    assert!(credentials.by_token(&folder.read("pki/admin.token")).is_some());
}

#[test]
fn token_without_expiry_of_an_earlier_version_is_replaced_and_stays_until_the_next_renewal() {
    let folder = Folder::new("earlier");
    drop(Credentials::open(&folder.0).unwrap());
    fs::write(folder.0.join("pki/admin.token"), "00112233445566778899aabbccddeeff\n").unwrap();
    let credentials = Credentials::open(&folder.0).unwrap();
    assert!(credentials.by_token("00112233445566778899aabbccddeeff").is_some());
    assert!(token_expiry(&folder.read("pki/admin.token")).is_some());
    assert!(credentials.by_token("").is_none() && credentials.by_token("-").is_none());
}

#[test]
fn server_certificate_is_renewed_in_memory() {
    let (folder, time) = (Folder::new("server"), ManualTime::starting_at(SystemTime::now()));
    let authority = Arc::new(Authority::create(&folder.0, time.clock().timestamp()).unwrap());
    let serving = ServerCertificate::new(authority, &[], time.clock()).unwrap();
    let first = serving.current().cert[0].clone();
    time.advance(DAY * 240);
    assert_eq!(serving.current().cert[0], first);
    time.advance(DAY * 4);
    let second = serving.current().cert[0].clone();
    assert_ne!(second, first);
    assert!(not_after(&second) > not_after(&first));
}
