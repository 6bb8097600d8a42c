//! Children as shell scripts: they fail, hang, and are stopped.

use std::fs;

use fixtures::eventually_async;

use super::*;

const QUICK: RestartBackoff = RestartBackoff {
    first: Duration::from_millis(10),
    max: Duration::from_millis(40),
    reset_after: Duration::from_secs(60),
};

fn shell(script: &str) -> ChildProgram {
    ChildProgram {
        name: "test".to_owned(),
        path: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        log: LogFormat::Text,
        privileges: ChildPrivileges::Inherited,
    }
}

fn file(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("zoneward-children-{name}-{}", std::process::id()));
    let _ = fs::remove_file(&path);
    path
}

async fn lines(path: &std::path::Path, min: usize) -> usize {
    eventually_async(&format!("{min} lines in {}", path.display()), async || {
        let count = fs::read_to_string(path).unwrap_or_default().lines().count();
        if count >= min { Ok(count) } else { Err(count) }
    })
    .await
}

#[test]
fn delays_double_up_to_a_bound_and_reset_after_a_long_run() {
    let backoff = RestartBackoff::default();
    let mut pauses = Vec::new();
    let mut pause = None;
    for _ in 0..8 {
        pause = Some(backoff.next(pause, Duration::ZERO));
        pauses.extend(pause.map(|pause| pause.as_millis()));
    }
    assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
    assert_eq!(backoff.next(pause, Duration::from_secs(61)), Duration::from_millis(500));
}

#[test]
fn lines_of_children_are_json_if_the_log_is() {
    assert_eq!(forwarded("node", LogFormat::Text, "hello", Timestamp::UNIX_EPOCH), "node: hello");
    let own: Value = serde_json::from_str(&forwarded(
        "node",
        LogFormat::Json,
        r#"{"level":"WARN","n":1}"#,
        Timestamp::UNIX_EPOCH,
    ))
    .expect("an object");
    assert_eq!(own, serde_json::json!({"level": "WARN", "n": 1, "child": "node"}));
    let bare: Value =
        serde_json::from_str(&forwarded("node", LogFormat::Json, "panicked at \"x\"", Timestamp::UNIX_EPOCH))
            .expect("an object");
    assert_eq!((&bare["child"], &bare["message"]), (&"node".into(), &"panicked at \"x\"".into()));
    assert!(bare["timestamp"].is_string() && bare["level"] == "INFO", "{bare}");
}

#[tokio::test]
async fn a_child_that_fails_is_restarted() {
    let path = file("restarted");
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(supervise(
        shell(&format!("echo run >> {}; exit 3", path.display())),
        QUICK,
        Clock::system(),
        stopped,
    ));
    lines(&path, 3).await;
    stop.send_replace(true);
    task.await.expect("it ends");
    fs::remove_file(&path).expect("the file was there");
}

#[tokio::test]
async fn a_child_gets_sigterm_first() {
    let path = file("asked");
    let script = format!(
        "trap 'echo asked >> {0}; exit 0' TERM; echo run >> {0}; while :; do sleep 0.05; done",
        path.display()
    );
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(supervise(shell(&script), QUICK, Clock::system(), stopped));
    lines(&path, 1).await;
    stop.send_replace(true);
    task.await.expect("it ends");
    assert_eq!(fs::read_to_string(&path).expect("the file"), "run\nasked\n");
    fs::remove_file(&path).expect("the file was there");
}

#[tokio::test]
async fn dropping_the_supervisor_kills_the_child() {
    let path = file("dropped");
    let script = format!("trap '' TERM; while :; do echo beat >> {}; sleep 0.05; done", path.display());
    let (_stop, stopped) = watch::channel(false);
    let task = tokio::spawn(supervise(shell(&script), QUICK, Clock::system(), stopped));
    lines(&path, 2).await;
    task.abort();
    let _ = task.await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let then = lines(&path, 2).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(lines(&path, 2).await, then, "the child is dead");
    fs::remove_file(&path).expect("the file was there");
}

#[tokio::test]
async fn a_missing_program_is_retried() {
    let program = ChildProgram {
        name: "test".to_owned(),
        path: "no/such/program".into(),
        args: Vec::new(),
        log: LogFormat::Text,
        privileges: ChildPrivileges::Inherited,
    };
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(supervise(program, QUICK, Clock::system(), stopped));
    tokio::time::sleep(Duration::from_millis(100)).await;
    stop.send_replace(true);
    task.await.expect("it ends");
}
