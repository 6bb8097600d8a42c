//! Which directory a demo gets, and which demo a command is for.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use anyhow::anyhow;

use super::*;

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("zoneward-demo-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn paths(count: usize) -> Vec<PathBuf> {
    (1..=count).map(|number| PathBuf::from(format!("demo-{number}"))).collect()
}

fn now() -> Timestamp {
    "2026-07-01T12:00:00Z".parse().unwrap()
}

fn running(path: &str, process: u64, seconds: i64, is_kept: bool) -> RunningDemo {
    let started = Some(now() - jiff::SignedDuration::from_secs(seconds));
    RunningDemo { path: path.into(), process, started, is_kept }
}

#[test]
fn the_first_directory_without_a_demo_is_taken() {
    let free = |taken: &'static [&'static str]| {
        move |path: &Path| {
            Ok(Some(path.to_owned()).filter(|path| !taken.contains(&path.to_str().expect("plain names"))))
        }
    };
    assert_eq!(first_free(&paths(3), free(&[])).unwrap(), (0, "demo-1".into()));
    assert_eq!(first_free(&paths(3), free(&["demo-1"])).unwrap(), (1, "demo-2".into()));
    assert_eq!(first_free(&paths(3), free(&["demo-1", "demo-3"])).unwrap(), (1, "demo-2".into()));
    let error = first_free(&paths(3), free(&["demo-1", "demo-2", "demo-3"])).unwrap_err();
    assert_eq!(error.to_string(), "3 demos are running: stop one with Ctrl-C, or use --data-dir");
}

#[test]
fn a_directory_of_another_user_is_passed_over_and_named_if_none_is_left() {
    let of_others = |count: usize| {
        move |path: &Path| {
            let mut foreign = paths(count).into_iter();
            if foreign.any(|other| other == path) {
                Err(anyhow!("{}: foreign", path.display()))
            } else {
                Ok(Some(()))
            }
        }
    };
    assert_eq!(first_free(&paths(3), of_others(2)).unwrap(), (2, ()));
    assert_eq!(first_free(&paths(3), of_others(3)).unwrap_err().to_string(), "demo-1: foreign");
}

#[test]
fn default_directories_belong_to_the_user_and_are_numbered_from_two() {
    let all = default_paths();
    let first = all[0].display().to_string();
    assert!(first.ends_with(&format!("zoneward-demo-{}", nix::unistd::Uid::current())), "{first}");
    assert_eq!(all[1].display().to_string(), format!("{first}-2"));
    assert_eq!((all.len(), all[31].display().to_string()), (32, format!("{first}-32")));
}

#[test]
fn a_command_is_for_the_only_demo_and_several_are_listed() {
    let none = choose(Vec::new(), now()).unwrap_err().to_string();
    assert!(none.starts_with("no demo is running: start one with zoneward demo --keep"), "{none}");
    let first = running("/tmp/zoneward-demo-0", 41, 4_000, true);
    assert_eq!(choose(vec![first.clone()], now()).unwrap(), first.path);
    let second = running("/tmp/zoneward-demo-0-2", 52, 30, true);
    let mut older = running("/tmp/zoneward-demo-0-3", 63, 0, true);
    older.started = None;
    assert_eq!(
        choose(vec![first, second, older], now()).unwrap_err().to_string(),
        "3 demos are running: choose one with its --data-dir\n  \
         --data-dir /tmp/zoneward-demo-0  process 41, started 66 min ago\n  \
         --data-dir /tmp/zoneward-demo-0-2  process 52, started 30 s ago\n  \
         --data-dir /tmp/zoneward-demo-0-3  process 63"
    );
}

#[test]
fn a_demo_that_ends_by_itself_does_not_make_the_kept_one_ambiguous() {
    let passing = running("/tmp/zoneward-demo-0", 41, 10, false);
    let kept = running("/tmp/zoneward-demo-0-2", 52, 30, true);
    assert_eq!(choose(vec![passing.clone(), kept.clone()], now()).unwrap(), kept.path);
    assert_eq!(choose(vec![passing.clone()], now()).unwrap(), passing.path, "it can be entered");
    let other = running("/tmp/zoneward-demo-0-3", 63, 10, false);
    assert!(choose(vec![passing, other], now()).is_err());
}

#[test]
fn ages_are_in_units_that_fit() {
    let age = |seconds| age(jiff::SignedDuration::from_secs(seconds));
    assert_eq!([-5, 0, 119, 120, 7_199, 7_200].map(age), ["0 s", "0 s", "119 s", "2 min", "119 min", "2 h"]);
}

#[test]
fn a_directory_that_others_can_write_to_is_rejected() {
    let folder = Folder::new("owner");
    let path = folder.0.join("demo");
    assert!(check_owner(&path).is_ok(), "a missing directory will be created");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    assert!(check_owner(&path).is_ok());
    fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    assert!(check_owner(&path).is_err());
    fs::remove_dir(&path).unwrap();
    std::os::unix::fs::symlink("/tmp", &path).unwrap();
    assert!(check_owner(&path).is_err(), "a link may lead to the directory of another user");
}

#[test]
fn a_claimed_directory_is_taken_until_its_lock_is_dropped() {
    let folder = Folder::new("lock");
    let path = folder.0.join("below/demo");
    let lock = claim(&path, Remains::Replace).unwrap().expect("nothing uses it");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    assert!(claim(&path, Remains::Replace).unwrap().is_none(), "it is in use");
    let error = DataDir::claim(Some(&path)).map(|_| ()).unwrap_err().to_string();
    assert_eq!(error, format!("another demo is running in {}: stop it with Ctrl-C first", path.display()));
    drop(lock);
    assert!(claim(&path, Remains::Replace).unwrap().is_some());
}

#[test]
fn remains_of_a_demo_are_replaced_and_other_files_are_not_touched() {
    let folder = Folder::new("remains");
    let path = folder.0.join("demo");
    fs::create_dir_all(path.join("logs")).unwrap();
    fs::create_dir(path.join("data")).unwrap();
    // The process is this test, which is no namespace host: the number was given away again.
    fs::write(path.join("namespaces.json"), format!("{{\"pid\": {}}}", std::process::id())).unwrap();
    assert!(claim(&path, Remains::Refuse).unwrap_err().to_string().contains("not empty"));
    assert!(path.join("data").exists());
    drop(claim(&path, Remains::Replace).unwrap().expect("no demo runs in it"));
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    fs::write(path.join("letter"), "").unwrap();
    assert!(claim(&path, Remains::Replace).is_err(), "not the remains of a demo");
    assert!(path.join("letter").exists());
}
