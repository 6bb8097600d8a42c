//! `zoneward sysdump` with the embedded API and real processes: secrets are planted wherever it reads, and none of their
//! bytes may be in the archive.

use crate::started;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fixtures::eventually;
use serde_json::{Value, json};
use started::{Up, folder};

/// Files of an archive by name, unpacked by the system's tar.
fn unpack(archive: &Path) -> BTreeMap<String, String> {
    let target = archive.with_extension("unpacked");
    std::fs::create_dir_all(&target).unwrap();
    let status = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(&target).status().unwrap();
    assert!(status.success());
    let mut files = BTreeMap::new();
    let mut folders = vec![target.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(target.join("zoneward-sysdump")).unwrap().display().to_string();
            files.insert(name, String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned());
        }
    }
    files
}

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn base64(text: &str) -> String {
    let mut child =
        Command::new("base64").arg("-w0").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

#[test]
fn planted_secrets_are_nowhere_in_the_archive() {
    // Daemons on the ports of another network would be in the archive.
    toolbox::in_own_namespaces!();
    let data = folder("sysdump");
    let up = Up::start(&data, &["--no-mesh"]);
    let secret_data = "Planted-secret-data-1";
    let applied_data = "Planted-applied-data-2";
    let environment = "Planted-environment-3";
    let argument = "Planted-argument-4";
    let annotation = "Planted-annotation-5";
    let kubeconfig_token = "Planted-kubeconfig-token-6";
    let flag_token = "Planted-flag-token-7";
    let log_token = "Planted-log-token-8";
    let log_password = "Planted-log-password-9";
    let key_line = "UGxhbnRlZGtleWxpbmUxMFBsYW50ZWRrZXlsaW5lMTA";
    let url_password = "Planted-url-password-11";
    let jwt = "eyJhbGciOiJFUzI1NiIsImtpZCI6IngifQ.eyJQbGFudGVkIjoidG9rZW4tMTIifQ.UGxhbnRlZHNpZ25hdHVyZTEy";
    let private_key = format!("-----BEGIN EC PRIVATE KEY-----\n{key_line}\n-----END EC PRIVATE KEY-----\n");

    let applied = json!({"kind": "Secret", "stringData": {"p": applied_data}}).to_string();
    up.post(
        "/api/v1/namespaces/default/secrets",
        &json!({"metadata": {"name": "planted",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": applied}},
        "data": {"key": base64(secret_data), "tls.key": base64(&private_key)}}),
    );
    let applied =
        json!({"spec": {"containers": [{"env": [{"name": "API_TOKEN", "value": environment}]}]}}).to_string();
    up.post("/api/v1/namespaces/default/pods", &json!({"metadata": {"name": "planted",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": applied,
            "vault.example.com/token": annotation}},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i", "args": [format!("--password={argument}")],
            "env": [{"name": "API_TOKEN", "value": environment}, {"name": "PLAIN", "value": argument}]}]}}));
    up.post(
        "/api/v1/namespaces/default/services",
        &json!({"metadata": {"name": "web",
        "annotations": {"zoneward.dev/traffic-distribution": "Spill", "example.com/note": annotation}},
        "spec": {"ports": [{"port": 80}]}}),
    );

    up.post(
        "/apis/gateway.networking.k8s.io/v1/namespaces/default/httproutes",
        &json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "shop"},
            "spec": {"rules": [{"backendRefs": [{"name": "web", "port": 80}],
                "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {
                    "set": [{"name": "Authorization", "value": argument}]}}]}]}}),
    );
    up.post(
        "/apis/zoneward.dev/v1alpha1/zonedrains",
        &json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "ZoneDrain", "metadata": {"name": "drain-a"},
            "spec": {"zone": "zone-a", "expiresAt": "2099-01-01T00:00:00Z"}}),
    );

    // A kubeconfig with a token beside the certificate that is used.
    let kubeconfig = data.join("planted.kubeconfig");
    let text = std::fs::read_to_string(&up.kubeconfig).unwrap();
    let mut value: Value = serde_saphyr::from_str(&text).unwrap();
    let client_key = value["users"][0]["user"]["client-key-data"].as_str().unwrap().to_owned();
    value["users"].as_array_mut().unwrap().push(json!({"name": "x", "user": {"token": kubeconfig_token}}));
    std::fs::write(&kubeconfig, value.to_string()).unwrap();

    // A log in which everything was printed, the value of a Secret without any mark, too.
    let log = data.join("daemon.log");
    let lines = format!(
        "INFO the value is {secret_data} and {environment}\nWARN Authorization: Bearer {log_token}\n\
         ERROR connect https://user:{url_password}@db.example.com/ failed\nINFO password=\"{log_password}\"\n\
         DEBUG {jwt}\nINFO kubeconfig had {kubeconfig_token}\n{private_key}INFO this line stays\n"
    );
    std::fs::write(&log, lines).unwrap();

    // A daemon of ours, by its name, with a token in its flags.
    let mut command = Command::new("bash");
    command.args(["-c", &format!("exec -a zoneward-planted bash -c 'read line' --token={flag_token} --bearer-token {flag_token} --zone zone-a")]);
    let flagged = Ended(command.stdin(Stdio::piped()).spawn().unwrap());
    let line = format!("/proc/{}/cmdline", flagged.0.id());
    eventually("its name", || std::fs::read_to_string(&line).unwrap().starts_with("zoneward-planted"));

    let archive = data.join("dump.tar.gz");
    let dump = || {
        Command::new(env!("CARGO_BIN_EXE_zoneward"))
            .args(["sysdump", "--kubeconfig"])
            .arg(&kubeconfig)
            .arg("--log")
            .arg(&log)
            .arg("--output-file")
            .arg(&archive)
            .output()
            .unwrap()
    };
    let output = dump();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::metadata(&archive).unwrap().permissions().mode() & 0o777, 0o600);
    let files = unpack(&archive);
    let everything: String = files.iter().map(|(name, text)| format!("{name}\n{text}\n")).collect();
    let mut planted: Vec<String> = [
        secret_data,
        applied_data,
        environment,
        argument,
        annotation,
        kubeconfig_token,
        flag_token,
        log_token,
        log_password,
        key_line,
        url_password,
        jwt,
    ]
    .map(str::to_owned)
    .to_vec();
    planted.extend(planted.clone().iter().map(|secret| base64(secret)));
    planted.push(client_key);
    for folder in ["pki/admin.token", "pki/reader.token"] {
        planted.push(std::fs::read_to_string(data.join(folder)).unwrap().trim().to_owned());
    }
    for secret in &planted {
        if let Some(at) = everything.find(secret.as_str()) {
            let (file, _) = files.iter().find(|(_, text)| text.contains(secret.as_str())).unwrap();
            panic!(
                "{secret} is in {file}: {}",
                &everything[at.saturating_sub(80)..(at + 80).min(everything.len())]
            );
        }
    }
    assert!(!everything.contains("BEGIN "), "a key or certificate is in the archive");

    // And yet it is useful.
    let index: Value = serde_json::from_str(&files["index.json"]).unwrap();
    let listed: Vec<&str> =
        index["parts"].as_array().unwrap().iter().filter_map(|part| part["file"].as_str()).collect();
    for (name, words) in [
        ("version.json", "storeFormat"),
        ("preflight.json", "\"checks\""),
        ("objects/services.yaml", "zoneward.dev/traffic-distribution"),
        ("objects/secrets.yaml", "bytes removed"),
        ("objects/pods.yaml", "nodeName"),
        ("objects/httproutes.yaml", "name: shop"),
        ("objects/gateways.yaml", ""),
        ("objects/zonedrains.yaml", "name: drain-a"),
        ("machine/sysctls.txt", "/proc/sys/net/ipv4/ip_forward = "),
        ("daemons/command-lines.txt", "--zone zone-a"),
        ("logs/0-daemon.log", "this line stays"),
        ("api/version.json", "gitVersion"),
    ] {
        assert!(listed.contains(&name), "{name} is not in {listed:?}");
        assert!(files[name].contains(words), "{name}: {}", files[name]);
    }
    let left_out = index["leftOut"].as_array().unwrap();
    assert!(left_out.iter().all(|part| !part["reason"].as_str().unwrap().is_empty()), "{left_out:?}");
    assert!(left_out.iter().any(|part| part["what"] == "node-configuration.yaml"), "{left_out:?}");
    assert!(index["neverIncluded"].as_array().unwrap().len() > 3);
    for entry in index["parts"].as_array().unwrap() {
        let file = entry["file"].as_str().unwrap();
        assert_eq!(entry["bytes"], files[file].len(), "{file}");
    }

    drop(flagged);

    // The objects can be read by the other commands.
    let objects = archive.with_extension("unpacked").join("zoneward-sysdump/objects");
    let planned = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(["plan", "slices", "-o", "json", "-f"])
        .arg(&objects)
        .output()
        .unwrap();
    assert!(planned.status.success(), "{}", String::from_utf8_lossy(&planned.stderr));

    // An archive is never overwritten.
    let again = dump();
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("dump.tar.gz"));
    drop(up);
    std::fs::remove_dir_all(&data).unwrap();
}

#[test]
fn without_an_api_and_within_a_small_bound_it_says_what_is_missing() {
    toolbox::in_own_namespaces!();
    let folder = folder("sysdump-small");
    std::fs::create_dir_all(&folder).unwrap();
    let log = folder.join("large.log");
    let lines: String = (0..400_000).map(|n| format!("line {n}\n")).collect();
    std::fs::write(&log, &lines).unwrap();
    let archive = folder.join("dump.tar.gz");
    let output = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(["sysdump", "--no-api", "--max-size", "1", "--log"])
        .arg(&log)
        .arg("--log")
        .arg(folder.join("missing.log"))
        .arg("--output-file")
        .arg(&archive)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files = unpack(&archive);
    let size: usize =
        files.iter().filter(|(name, _)| *name != "index.json").map(|(_, text)| text.len()).sum();
    assert!(size <= 1 << 20, "{size}");
    let index: Value = serde_json::from_str(&files["index.json"]).unwrap();
    let left_out = index["leftOut"].to_string();
    for word in ["--no-api", "missing.log", "beyond --max-size"] {
        assert!(left_out.contains(word), "{word}: {left_out}");
    }
    let log =
        index["parts"].as_array().unwrap().iter().find(|part| part["file"] == "logs/0-large.log").unwrap();
    assert!(log["cut"].as_str().unwrap().starts_with("the end of"), "{log}");
    assert!(files["logs/0-large.log"].ends_with("line 399999\n"));
    std::fs::remove_dir_all(&folder).unwrap();
}
