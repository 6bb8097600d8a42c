//! Logs of running daemons: their form, and that a failure that lasts does not flood them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fixtures::eventually;
use serde_json::Value;

use crate::daemons::exposition;
use crate::daemons::world::{Daemon, Folder, get};

const CONTROLLER: &str = "127.0.0.1:10400";

#[test]
fn no_daemon_complains_about_colours_on_a_terminal() {
    let folder = Folder::new("terminal");
    let data = folder.path("data");
    let nowhere = ["--kubeconfig", "/nonexistent"];
    let ranges = ["--service-cluster-ip-range", "10.0.0.0/16,10.1.0.0/16"];
    let commands: [Vec<&str>; 5] = [
        [&["controller"][..], &nowhere].concat(),
        [&["node", "--proxy-mode", "nftables"][..], &nowhere].concat(),
        [&["mesh", "proxy", "--from", "a", "--outbound", "8081=b"][..], &nowhere].concat(),
        [&["mesh", "control"][..], &nowhere].concat(),
        [&["up", "--no-node", "--data-dir", &data][..], &ranges].concat(),
    ];
    for words in commands {
        let line = format!("{} {}", env!("CARGO_BIN_EXE_zoneward"), words.join(" "));
        // It runs the line with a terminal of its own.
        let output = Command::new("script")
            .args(["-q", "-e", "-c", &line, "/dev/null"])
            .stdin(Stdio::null())
            .env("RUST_LOG", "trace")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert!(said.contains("zoneward: "), "{line} says why it ended: {said}");
        assert!(!said.contains("`ansi`") && !said.contains('\u{1b}'), "{line}: {said}");
    }
}

#[test]
fn children_of_up_log_json_where_up_does_and_nobody_warns_of_the_default_mode() {
    toolbox::in_own_namespaces!();
    let folder = Folder::new("json");
    let data = folder.path("data");
    let sidecar = "frontend:18081=backend";
    // The alias, which was the name before.
    let words = ["up", "--data-dir", &data, "--log-format", "json", "--sidecar", sidecar];
    let up = Daemon::start(&folder, "up", &words);
    eventually("the rules", || up.log().contains("all rules are programmed"));
    eventually("the sidecar", || get("127.0.0.1:10280", "/livez"));
    let log = folder.0.join("up.log");
    up.stop();
    let text = std::fs::read_to_string(log).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    for child in ["node", "sidecar frontend:18081=backend"] {
        let own = |line: &&Value| line["child"] == *child && line["level"] == "INFO";
        assert!(lines.iter().filter(own).count() > 1, "{child} logs JSON of its own: {text}");
    }
    assert!(!text.contains("KubeProxyDefaultMode") && !text.contains("runs as nftables"), "{text}");
}

#[test]
fn an_api_that_is_away_is_one_line_and_its_return_another() {
    toolbox::in_own_namespaces!();
    let folder = Folder::new("away");
    let (data, kubeconfig) = (folder.path("data"), folder.path("data/kubeconfig"));
    let start = || {
        Daemon::start(
            &folder,
            "up",
            &["up", "--data-dir", &data, "--no-node", "--no-mesh", "--no-controllers"],
        )
    };
    let up = start();
    eventually("the API", || get("127.0.0.1:10270", "/readyz"));
    let controller = Daemon::start(
        &folder,
        "controller",
        &["controller", "--kubeconfig", &kubeconfig, "--bind-address", CONTROLLER],
    );
    eventually("the leader", || controller.log().contains(" leading"));
    up.kill();
    let failures = || {
        let families = exposition::parse(&get(CONTROLLER, "/metrics")?);
        families["rest_client_requests_total"].value(&[("code", "<error>")])
    };
    eventually("failures", || failures().filter(|count| *count >= 30.0));
    let log = controller.log();
    let count = |word: &str| log.lines().filter(|line| line.contains(word)).count();
    assert_eq!(count("API unreachable; retrying"), 1, "{log}");
    assert_eq!(count("ERROR"), 0, "{log}");
    // Beside that line: reminders of a slow machine, and that it leads no longer.
    let warnings = count("WARN") - count("API still unreachable") - count("no longer leading");
    assert_eq!(warnings, 1, "{log}");
    let up = start();
    eventually("the return", || controller.log().contains("API reachable again"));
    controller.stop();
    up.stop();
}

#[test]
fn rust_log_says_how_much_is_logged() {
    toolbox::in_own_namespaces!();
    let folder = Folder::new("level");
    for (level, wanted) in [("info", true), ("warn", false), ("cluster::admin_server=info", true)] {
        let log = folder.0.join(format!("{level}.log"));
        let words = ["mesh", "control", "-f", "/dev/null", "--logging-format", "text"];
        let control = Daemon::start_at(level, &folder, level, &words);
        eventually("it serves", || get("127.0.0.1:10272", "/livez"));
        control.stop();
        let text = std::fs::read_to_string(log).unwrap();
        assert_eq!(text.contains("serving health and metrics"), wanted, "{level}: {text}");
    }
}

#[test]
fn messages_of_log_lines_are_constant() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folders: Vec<PathBuf> =
        std::fs::read_dir(&crates).unwrap().map(|entry| entry.unwrap().path()).collect();
    let (mut wrong, mut logging) = (Vec::new(), BTreeSet::new());
    for folder in folders.iter().filter(|folder| folder.join("src").is_dir()) {
        for file in sources(&folder.join("src")) {
            let text = std::fs::read_to_string(&file).unwrap();
            for call in calls(&text) {
                logging.insert(folder.file_name().unwrap().to_owned());
                if !has_constant_message(call) {
                    wrong.push(format!("{}: {call}", file.display()));
                }
            }
        }
    }
    for name in ["cluster", "controller", "mesh", "node", "proxy", "xds", "zoneward"] {
        assert!(logging.contains(OsStr::new(name)), "crate {name} has log lines");
    }
    assert_eq!(wrong, Vec::<String>::new(), "values belong into fields");
}

#[test]
fn values_in_messages_are_found() {
    assert!(has_constant_message(r#"name, %error, "cannot {{listen}}""#));
    assert!(has_constant_message(r#"url = %format_args!("http://{address}"), "serving health and metrics""#));
    assert!(has_constant_message("\n    a = f(x, \"{y}\"),\n    \"a message\",\n"));
    for wrong in [r#""x {}", y"#, r#""x {y}""#, r#"name, "x {}", y"#, r#"name, "x {y}""#, "message", ""] {
        assert!(!has_constant_message(wrong), "{wrong}");
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .collect()
}

/// The arguments of each call of a logging macro.
fn calls(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for word in ["trace!(", "debug!(", "info!(", "warn!(", "error!("] {
        for (at, _) in text.match_indices(word) {
            if text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
                continue;
            }
            let inside = &text[at + word.len()..];
            found.push(arguments(inside).1);
        }
    }
    found
}

/// The arguments up to the closing parenthesis, split at top-level commas, and all of them as one text.
fn arguments(text: &str) -> (Vec<&str>, &str) {
    let (mut depth, mut quoted, mut escaped, mut start) = (1, false, false, 0);
    let mut split = Vec::new();
    for (at, c) in text.char_indices() {
        match (quoted, c) {
            (true, _) if escaped => escaped = false,
            (true, '\\') => escaped = true,
            (_, '"') => quoted = !quoted,
            (false, '(' | '[' | '{') => depth += 1,
            (false, ')' | ']' | '}') => depth -= 1,
            (false, ',') if depth == 1 => {
                split.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
        if depth == 0 {
            split.push(text[start..at].trim());
            return (split, &text[..at]);
        }
    }
    split.push(text[start..].trim());
    (split, text)
}

/// Whether the last argument is a string literal without placeholders, and no other argument is one.
fn has_constant_message(call: &str) -> bool {
    let (mut split, _) = arguments(call);
    split.retain(|argument| !argument.is_empty());
    let literals = split.iter().filter(|argument| argument.starts_with('"')).count();
    let message = split.last().and_then(|last| last.strip_prefix('"'));
    literals == 1 && message.is_some_and(|text| !text.replace("{{", "").contains('{'))
}
