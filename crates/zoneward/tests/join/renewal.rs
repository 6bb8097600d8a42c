//! Renewal of the credential while a joined machine runs, also when the API is away at that time.

use std::time::Duration;

use fixtures::eventually;
use serde_json::Value;

use super::boxes::{Machine, machines};
use super::joined::{create_web, expose, until_reached};

fn credential(machine: &Machine) -> String {
    let text = std::fs::read_to_string(machine.kubeconfig()).unwrap();
    let config: Value = serde_json::from_str(&text).unwrap();
    config["users"][0]["user"]["token"].as_str().unwrap().to_owned()
}

#[test]
fn credential_is_renewed_while_the_machine_runs() {
    toolbox::in_own_namespaces!();
    let [first, second] = machines("renewal");
    let ttl = ["--node-credential-ttl", "30s"];
    let mut up = first.up_with(&ttl);
    let joined = second.join(&first.token("box-2", &["--server", "https://10.0.0.1:6443"]));
    let oldest = second.data.with_extension("hostname");
    std::fs::copy(second.kubeconfig(), &oldest).unwrap();
    let (issued, began) = (credential(&second), std::time::Instant::now());
    let web = create_web(&first);
    expose(&second);
    until_reached(&second, web, &["box-2:8080"]);
    eventually("the renewal", || credential(&second) != issued);

    // The next renewal finds no API. It is retried, and connections do not need it.
    up.kill();
    let renewed = credential(&second);
    let log = || std::fs::read_to_string(second.log()).unwrap();
    eventually("the failed renewal", || log().contains("the credential was not renewed; retrying"));
    assert_eq!(second.connect(web).as_deref(), Some("box-2:8080"));
    assert_eq!(credential(&second), renewed);
    let up = first.up_with(&ttl);
    eventually("the renewal after that", || credential(&second) != renewed);

    // The first credential ends, and the machine goes on with the newest.
    std::thread::sleep(Duration::from_secs(35).saturating_sub(began.elapsed()));
    let (code, message) = second.ask(&oldest, "GET", "/api/v1/services", &Value::Null);
    assert_eq!(code, 401, "{message}");
    assert!(message.as_str().unwrap().contains("the credential of node box-2 has expired"), "{message}");
    second.serve(8081);
    let kubeconfig = second.kubeconfig().display().to_string();
    second.run_json(&["expose", "web", "--port", "80", "--to", "10.0.0.2:8081", "--kubeconfig", &kubeconfig]);
    until_reached(&second, web, &["box-2:8081"]);
    let said = log();
    assert_eq!(said.matches("the credential was not renewed").count(), 1, "{said}");
    assert!(said.matches("credential renewed").count() >= 2, "{said}");
    drop((joined, up));
    [first, second].iter().for_each(Machine::remove);
}
