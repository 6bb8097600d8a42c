//! Machines that may not join.

use super::boxes::{Machine, machines};

const SERVER: [&str; 2] = ["--server", "https://10.0.0.1:6443"];

/// What a join says that is refused. Nothing is stored.
fn refused(machine: &Machine, words: &[String], more: &[&str]) -> String {
    let data = machine.data.display().to_string();
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words.extend(["--no-node", "--data-dir", &data]);
    words.extend(more);
    let said = machine.refused(&words);
    assert!(!machine.kubeconfig().exists());
    said
}

#[test]
fn wrong_used_and_expired_tokens_are_refused() {
    toolbox::in_own_namespaces!();
    let [first, second, third] = machines("refused");
    let up = first.up();
    let data = first.data.display().to_string();
    let elsewhere = second.data.display().to_string();
    let said = second.refused(&["token", "create", "--data-dir", &elsewhere, "--node", "box-2"]);
    assert!(said.contains("no API has its data there: start `zoneward up` with it first"), "{said}");
    assert_eq!(said.matches(&elsewhere).count(), 1, "{said}");
    let missing = format!("{elsewhere}/none");
    let said = second.refused(&["token", "create", "--kubeconfig", &missing, "--node", "box-2"]);
    assert_eq!(said.matches(&missing).count(), 1, "{said}");
    let token = first.token("box-2", &SERVER);
    let listed = first.run_json(&["token", "list", "--data-dir", &data]);
    assert_eq!(
        (listed[0]["node"].as_str(), listed[0]["id"] == token["id"]),
        (Some("box-2"), true),
        "{listed}"
    );
    assert!(!listed.to_string().contains(token["token"].as_str().unwrap()), "the secret is not shown");

    let mut wrong = Machine::join_words(&token);
    wrong[3] = format!("{}.0000000000000000", token["id"].as_str().unwrap());
    let said = refused(&third, &wrong, &[]);
    assert!(said.contains("refuses the token: it is unknown, or was used"), "{said}");
    wrong[3] = "nonsense".to_owned();
    assert!(refused(&third, &wrong, &[]).contains("--token: expected ID.SECRET"));
    // The token is not for anything else.
    let kubeconfig = third.data.with_extension("log");
    let text = std::fs::read_to_string(first.kubeconfig()).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["users"][0]["user"] = serde_json::json!({"token": token["token"]});
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    for path in ["/api/v1/nodes", "/api/v1/secrets", "/api/v1/services"] {
        assert_eq!(third.ask(&kubeconfig, "GET", path, &serde_json::Value::Null).0, 403, "{path}");
    }

    let joined = second.start(&[
        "join",
        "https://10.0.0.1:6443",
        "--token",
        token["token"].as_str().unwrap(),
        "--ca-hash",
        token["caHash"].as_str().unwrap(),
        "--no-node",
    ]);
    let said = refused(&third, &Machine::join_words(&token), &[]);
    assert!(said.contains("it is unknown, or was used") && said.contains("A token is valid once"), "{said}");
    let said = first.refused(&["token", "create", "--data-dir", &data, "--node", "box-2"]);
    assert!(said.contains("Node box-2 exists") && said.contains("kubectl delete node box-2"), "{said}");

    let short = first.token("box-3", &["--ttl", "1s", SERVER[0], SERVER[1]]);
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    let said = refused(&third, &Machine::join_words(&short), &[]);
    assert!(said.contains("has expired"), "{said}");

    let deleted = first.token("box-3", &SERVER);
    let id = deleted["id"].as_str().unwrap();
    assert!(first.run(&["token", "delete", id, "--data-dir", &data]).status.success());
    assert!(refused(&third, &Machine::join_words(&deleted), &[]).contains("it is unknown, or was used"));
    assert!(first.refused(&["token", "delete", id, "--data-dir", &data]).contains("does not exist"));
    let said = refused(&third, &["join".to_owned()], &[]);
    assert!(said.contains("join with the command that `zoneward token create --node NAME` prints"), "{said}");
    drop((joined, up));
    [first, second, third].iter().for_each(Machine::remove);
}

#[test]
fn another_authority_is_refused() {
    toolbox::in_own_namespaces!();
    let [first, second] = machines("authority");
    let up = first.up();
    let token = first.token("box-2", &SERVER);
    let mut words = Machine::join_words(&token);
    let real = words[5].clone();
    words[5] = format!("sha256:{}", "0".repeat(64));
    let said = refused(&second, &words, &[]);
    assert!(
        said.contains("has another certificate authority, with the hash") && said.contains(&real),
        "{said}"
    );
    words[5] = "sha256:abc".to_owned();
    assert!(refused(&second, &words, &[]).contains("--ca-hash: expected sha256:"));
    // The hash is that of kubeadm: of the public key of the certificate.
    let certificate = first.data.join("pki/ca.crt");
    assert_eq!(store::credentials::certificate_hash(&std::fs::read(certificate).unwrap()).unwrap(), real);
    words[5] = real;
    words[1] = "https://10.0.0.1:9".to_owned();
    assert!(refused(&second, &words, &[]).contains("connecting to 10.0.0.1:9"));
    drop(up);
    [first, second].iter().for_each(Machine::remove);
}
