//! A restart while the API is away, of a machine whose kernel has more than its snapshot.

use std::fs;

use fixtures::eventually;

use super::boxes::{Machine, is_in_snapshot, machines};
use super::joined::{create_web, until_reached};

#[test]
fn rules_that_are_newer_than_the_snapshot_stay_while_the_api_is_away() {
    toolbox::in_own_namespaces!();
    let [first, second] = machines("newer");
    let mut up = first.up();
    let mut joined = second.join(&first.token("box-2", &["--server", "https://10.0.0.1:6443"]));
    let web = create_web(&first);
    let expose = |port: u16| {
        let (to, kubeconfig) = (format!("10.0.0.2:{port}"), second.kubeconfig().display().to_string());
        second.run_json(&["expose", "web", "--port", "80", "--to", &to, "--kubeconfig", &kubeconfig]);
    };
    (8080..8083).for_each(|port| second.serve(port));
    expose(8080);
    let snapshot = second.data.join("snapshot.json");
    eventually("the snapshot", || is_in_snapshot(&snapshot, "ipv4-8080"));

    // As if it were killed before it wrote the next one.
    let blocked = second.data.join("snapshot.json.new");
    eventually("nothing is written", || fs::create_dir(&blocked).is_ok());
    expose(8081);
    until_reached(&second, web, &["box-2:8081"]);
    up.kill_all();
    joined.kill_all();
    assert!(!is_in_snapshot(&snapshot, "ipv4-8081"));
    let mut joined = second.start(&["join"]);
    let log = || fs::read_to_string(second.log()).unwrap();
    eventually("the decision", || log().contains("the kernel's rules are newer than the snapshot"));
    for _ in 0..20 {
        assert_eq!(second.connect(web).as_deref(), Some("box-2:8081"), "{}", log());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(!log().contains("serving the snapshot"), "{}", log());

    // When the API is back, it goes on from there; the next start has a snapshot that is as new.
    fs::remove_dir(&blocked).unwrap();
    let mut up = first.up();
    expose(8082);
    until_reached(&second, web, &["box-2:8082"]);
    eventually("the snapshot", || is_in_snapshot(&snapshot, "ipv4-8082"));
    up.kill_all();
    joined.kill_all();
    let joined = second.start(&["join"]);
    eventually("the snapshot is served", || log().contains("serving the snapshot of its objects"));
    until_reached(&second, web, &["box-2:8082"]);
    drop((joined, up));
    [first, second].iter().for_each(Machine::remove);
}
