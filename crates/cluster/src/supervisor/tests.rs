//! Children that are shell scripts: they fail, hang, and are stopped.

use std::fs;

use super::*;

const QUICK: Backoff = Backoff {
    first: Duration::from_millis(10),
    longest: Duration::from_millis(40),
    steady: Duration::from_secs(60),
};

fn shell(script: &str) -> Program {
    Program {
        name: "test".to_owned(),
        path: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        log: LogFormat::Text,
    }
}

fn file(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("zoneward-children-{name}-{}", std::process::id()));
    let _ = fs::remove_file(&path);
    path
}

async fn lines(path: &std::path::Path, wanted: usize) -> usize {
    for _ in 0..400 {
        let count = fs::read_to_string(path).unwrap_or_default().lines().count();
        if count >= wanted {
            return count;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{} never got {wanted} lines", path.display());
}

#[test]
fn pauses_double_up_to_a_bound_and_begin_anew_after_a_steady_run() {
    let backoff = Backoff::default();
    let mut pauses = Vec::new();
    let mut pause = None;
    for _ in 0..8 {
        pause = Some(backoff.after(pause, Duration::ZERO));
        pauses.extend(pause.map(|pause| pause.as_millis()));
    }
    assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
    assert_eq!(backoff.after(pause, Duration::from_secs(61)), Duration::from_millis(500));
}

#[test]
fn lines_of_children_are_json_where_the_log_is() {
    assert_eq!(passed("node", LogFormat::Text, "hello"), "node: hello");
    let own: Value = serde_json::from_str(&passed("node", LogFormat::Json, r#"{"level":"WARN","n":1}"#))
        .expect("an object");
    assert_eq!(own, serde_json::json!({"level": "WARN", "n": 1, "child": "node"}));
    let bare: Value =
        serde_json::from_str(&passed("node", LogFormat::Json, "panicked at \"x\"")).expect("an object");
    assert_eq!((&bare["child"], &bare["message"]), (&"node".into(), &"panicked at \"x\"".into()));
    assert!(bare["timestamp"].is_string() && bare["level"] == "INFO", "{bare}");
}

#[tokio::test]
async fn a_child_that_fails_is_started_anew() {
    let path = file("anew");
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(keep(shell(&format!("echo run >> {}; exit 3", path.display())), QUICK, stopped));
    lines(&path, 3).await;
    stop.send_replace(true);
    task.await.expect("it ends");
    fs::remove_file(&path).expect("the file was there");
}

#[tokio::test]
async fn a_child_is_asked_to_stop_before_anything_else() {
    let path = file("asked");
    let script = format!(
        "trap 'echo asked >> {0}; exit 0' TERM; echo run >> {0}; while :; do sleep 0.05; done",
        path.display()
    );
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(keep(shell(&script), QUICK, stopped));
    lines(&path, 1).await;
    stop.send_replace(true);
    task.await.expect("it ends");
    assert_eq!(fs::read_to_string(&path).expect("the file"), "run\nasked\n");
    fs::remove_file(&path).expect("the file was there");
}

#[tokio::test]
async fn whoever_is_dropped_takes_its_child_along() {
    let path = file("dropped");
    let script = format!("trap '' TERM; while :; do echo beat >> {}; sleep 0.05; done", path.display());
    let (_stop, stopped) = watch::channel(false);
    let task = tokio::spawn(keep(shell(&script), QUICK, stopped));
    lines(&path, 2).await;
    task.abort();
    let _ = task.await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let then = lines(&path, 2).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(lines(&path, 2).await, then, "nobody writes any more");
    fs::remove_file(&path).expect("the file was there");
}

#[tokio::test]
async fn a_program_that_is_missing_is_no_panic() {
    let program = Program {
        name: "test".to_owned(),
        path: "no/such/program".into(),
        args: Vec::new(),
        log: LogFormat::Text,
    };
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(keep(program, QUICK, stopped));
    tokio::time::sleep(Duration::from_millis(100)).await;
    stop.send_replace(true);
    task.await.expect("it ends");
}
