//! The values: lint, the schema, errors for wrong ones, and the table in docs/reference/chart.md.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::chart::helm::{ValueSet, chart, fail, helm, root, succeed, template, value_sets};

fn yaml(file: &str) -> Value {
    let text = fs::read_to_string(chart().join(file)).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

#[test]
fn the_chart_has_the_version_of_the_workspace() {
    let chart = yaml("Chart.yaml");
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!((&chart["version"], &chart["appVersion"]), (&version.into(), &version.into()));
}

#[test]
fn lint_finds_nothing_in_any_value_set() {
    for ValueSet { file, version, .. } in value_sets() {
        let mut lint = helm();
        lint.args(["lint", "--strict", "--quiet", "--kube-version", &version]);
        succeed(lint.arg("--values").arg(file).arg(chart()));
    }
}

#[test]
fn wrong_values_are_refused_with_their_name() {
    let digest = "image.digest=sha256:1";
    let node = "node.enabled=true,node.apiServer.host=api.example";
    let mesh = "mesh.enabled=true";
    let gateway = |index: &str, port: &str, number: u16| {
        let row = format!("mesh.gateways[{}]", if index.is_empty() { "0" } else { index });
        format!("{row}.name=edge,{row}.ports[0].name={port},{row}.ports[0].port={number}")
    };
    let cases: &[(&[&str], &[&str])] = &[
        (&["controler.replicas=1"], &["Additional property controler is not allowed"]),
        (&["controller.replica=1"], &["controller", "Additional property replica is not allowed"]),
        (&["controller.replicas=two"], &["controller.replicas", "Expected: integer, given: string"]),
        (&["controller.mode=both"], &["controller.mode", "must be one of the following", "takeover"]),
        (&["controller.leaderElection.retryPeriod=2"], &["controller.leaderElection.retryPeriod"]),
        (&["controller.extraArgs={coexist}"], &["controller.extraArgs.0"]),
        (&["controller.port=70000"], &["controller.port", "65535"]),
        (&[digest], &["image.digest"]),
        (&["image.repository=registry.example/zoneward:1"], &["image.repository"]),
        (&[node, "node.config.clusterCIDR=10.244.0.0"], &["node.config.clusterCIDR"]),
        (&[&gateway("", "a", 80)], &["mesh.enabled is false"]),
        (&[mesh, &gateway("", "a", 80), &gateway("1", "b", 80)], &["default/edge occurs twice"]),
        (
            &[
                mesh,
                &gateway("", "a", 80),
                "mesh.gateways[0].ports[1].name=b,mesh.gateways[0].ports[1].port=80",
            ],
            &["gateway default/edge has two ports with port 80"],
        ),
        (&["node.enabled=true"], &["node.apiServer.host is required", "kube-proxy's kubeconfig"]),
        (
            &["node.enabled=true,node.apiServer.host=kubernetes.default.svc"],
            &["node.apiServer.host", "is a Service"],
        ),
        (
            &["node.enabled=true,node.apiServer.host=https://api:6443"],
            &["node.apiServer.host: https://api:6443 is a URL; set the host alone"],
        ),
        (&["node.enabled=true,node.apiServer.host=[fd00::1]"], &["node.apiServer.host", "without brackets"]),
        (
            &["controller.leaderElection.leaseDuration=10s"],
            &["controller.leaderElection.leaseDuration: 10s must be longer than renewDeadline, which is 10s"],
        ),
        (
            &[
                "controller.leaderElection.leaseDuration=0.25m,controller.leaderElection.renewDeadline=15001ms",
            ],
            &["controller.leaderElection.leaseDuration: 0.25m must be longer"],
        ),
        (
            &["controller.leaderElection.retryPeriod=6s"],
            &["controller.leaderElection.renewDeadline: 10s must be at least twice retryPeriod, which is 6s"],
        ),
        (&["controller.leaderElection.retryPeriod=0s"], &["retryPeriod not zero"]),
        (
            &["controller.defaultTrafficDistribution=PreferSamezone"],
            &["controller.defaultTrafficDistribution", "must be one of the following", "PreferSameZone"],
        ),
        (
            &[mesh, &gateway("", "a", 10271)],
            &["gateway default/edge: port a has containerPort 10271", "metricsPort"],
        ),
        (
            &[
                mesh,
                &gateway("", "a", 80),
                "mesh.gateways[0].ports[0].containerPort=9000,mesh.gateways[0].metricsPort=9000",
            ],
            &["containerPort 9000"],
        ),
        (&[mesh, &gateway("", "metrics", 80)], &["the port name metrics is taken"]),
        (
            &[mesh, &gateway("", "a", 80), "mesh.gateways[0].drain=1m"],
            &["terminationGracePeriodSeconds is 60, which must be longer than drain, 1m, plus the 5 s"],
        ),
        (
            &[mesh, &gateway("", "a", 80), "mesh.gateways[0].terminationGracePeriodSeconds=50"],
            &["terminationGracePeriodSeconds is 50"],
        ),
        (
            &["node.enabled=true,node.apiServer.host=api:6443"],
            &["node.apiServer.host", "node.apiServer.port"],
        ),
        (&[node, "node.config.clusterCidr=10.0.0.0/8"], &["node.config", "Additional property clusterCidr"]),
        (
            &[node, "node.ipvsDummyInterface=true"],
            &["node.ipvsDummyInterface: only with node.config.mode ipvs"],
        ),
        (&[node, "node.config.mode=ebpf"], &["node.config.mode", "nftables"]),
        (
            &[node, "node.config.clientConnection.kubeconfig=/x"],
            &["node.config.clientConnection.kubeconfig", "remove it"],
        ),
        (&["mesh.gateways[0].name=edge"], &["mesh.gateways.0", "ports is required"]),
        (&["mesh.gateways[0].name=edge,mesh.gateways[0].ports={}"], &["mesh.gateways.0.ports"]),
        (
            &[
                "mesh.enabled=true,mesh.gateways[0].name=edge,mesh.gateways[0].proxy=envoy",
                "mesh.gateways[0].ports[0].name=http,mesh.gateways[0].ports[0].port=80",
            ],
            &["gateway edge has proxy: envoy", "mesh.control.enabled"],
        ),
    ];
    for (values, wanted) in cases {
        let mut command = template("kube-system", "1.37.0");
        for value in *values {
            command.args(["--set", value]);
        }
        let said = fail(&mut command);
        for text in *wanted {
            assert!(said.contains(text), "{values:?}: no {text:?} in {said}");
        }
    }
}

#[test]
fn an_unknown_field_of_the_configuration_is_refused_and_every_known_one_is_not() {
    let schema: Value =
        serde_json::from_str(&fs::read_to_string(chart().join("values.schema.json")).unwrap()).unwrap();
    let allowed = &schema["properties"]["node"]["properties"]["config"]["properties"];
    let allowed: BTreeSet<&str> = allowed.as_object().unwrap().keys().map(String::as_str).collect();
    let known = node::config::fields::FIELDS.iter().map(|(path, _)| path.split('.').next().unwrap());
    assert_eq!(allowed, known.collect());
}

#[test]
fn values_at_the_limits_are_accepted() {
    let mesh = "mesh.enabled=true,mesh.gateways[0].name=edge,mesh.gateways[0].ports[0].name=a,mesh.gateways[0].ports[0].port=80";
    for values in [
        &["controller.leaderElection.leaseDuration=10001ms"][..],
        &["controller.leaderElection.retryPeriod=5s"],
        &["controller.leaderElection.leaseDuration=1h1m,controller.leaderElection.renewDeadline=1h"],
        &[mesh, "mesh.gateways[0].terminationGracePeriodSeconds=51"],
        &[mesh, "mesh.gateways[0].ports[0].containerPort=10271,mesh.gateways[0].metricsPort=10272"],
        &["node.enabled=true,node.apiServer.host=fd00::1"],
    ] {
        let mut command = template("kube-system", "1.37.0");
        for value in values {
            command.args(["--set", value]);
        }
        succeed(&mut command);
    }
}

#[test]
fn the_default_distribution_takes_every_value_that_the_controller_takes() {
    let schema: Value =
        serde_json::from_str(&fs::read_to_string(chart().join("values.schema.json")).unwrap()).unwrap();
    let allowed = &schema["properties"]["controller"]["properties"]["defaultTrafficDistribution"]["enum"];
    let allowed: BTreeSet<&str> =
        allowed.as_array().unwrap().iter().map(|value| value.as_str().unwrap()).collect();
    let mechanisms = plan::hints::Mechanism::ALL.iter().filter(|mechanism| !mechanism.is_resting());
    let other_names = ["", "Balanced", "PreferClose", "zoneward.dev/Spill"];
    assert_eq!(allowed, mechanisms.map(|mechanism| mechanism.as_str()).chain(other_names).collect());
}

/// A value of values.yaml: its path, its default as written, and the comment above it.
#[derive(Debug)]
struct Row {
    path: String,
    default: String,
    comment: String,
}

/// The values, line by line: comments belong to the key below them.
fn rows() -> Vec<Row> {
    let text = fs::read_to_string(chart().join("values.yaml")).unwrap();
    let (mut rows, mut path, mut comment) = (Vec::<Row>::new(), Vec::<(usize, String)>::new(), String::new());
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim();
        if let Some(words) = line.strip_prefix('#') {
            comment = format!("{comment} {}", words.trim()).trim().to_owned();
        } else if let Some((key, value)) = line.split_once(':').filter(|_| !line.starts_with('-')) {
            path.retain(|(depth, _)| *depth < indent);
            path.push((indent, key.to_owned()));
            let path = path.iter().map(|(_, key)| key.as_str()).collect::<Vec<_>>().join(".");
            rows.push(Row { path, default: value.trim().to_owned(), comment: std::mem::take(&mut comment) });
        } else if line.is_empty() {
            comment.clear();
        } else if let Some(last) = rows.last_mut() {
            last.default = format!("{} {line}", last.default).trim().to_owned();
        }
    }
    rows
}

/// The table of the reference: a row for each value that has a comment.
fn table() -> String {
    let mut lines = vec!["| value | default | meaning |".to_owned(), "|---|---|---|".to_owned()];
    let rows = rows();
    for row in rows.iter().filter(|row| !row.comment.is_empty()) {
        let below = rows.iter().filter(|other| other.path.starts_with(&format!("{}.", row.path)));
        let parts: Vec<String> = below
            .filter(|other| other.comment.is_empty() && !other.default.is_empty())
            .map(|other| format!("{}: {}", &other.path[row.path.len() + 1..], other.default))
            .collect();
        let default = if row.default.is_empty() { parts.join(", ") } else { row.default.clone() };
        let default = if default.is_empty() { "see below".to_owned() } else { format!("`{default}`") };
        lines.push(format!("| `{}` | {default} | {} |", row.path, row.comment.replace('|', "\\|")));
    }
    lines.join("\n")
}

#[test]
fn the_reference_has_every_value() {
    let page = root().join("docs/reference/chart.md");
    let text = fs::read_to_string(&page).unwrap();
    let (start, end) = ("<!-- values -->\n\n", "\n\n<!-- end of values -->");
    let (head, rest) = text.split_once(start).expect("the mark before the table");
    let (held, tail) = rest.split_once(end).expect("the mark after the table");
    if std::env::var_os("UPDATE_STRINGS").is_some() {
        fs::write(&page, format!("{head}{start}{}{end}{tail}", table())).unwrap();
        return;
    }
    assert_eq!(held, table(), "UPDATE_STRINGS=1 rewrites the table from values.yaml");
}

/// The paths of maps in a schema, with whether they refuse unknown keys.
fn open_maps(schema: &Value, path: &str, found: &mut Vec<String>) {
    if schema["properties"].is_object() && schema["additionalProperties"] != false {
        found.push(path.to_owned());
    }
    for (key, below) in schema["properties"].as_object().into_iter().flatten() {
        open_maps(below, &format!("{path}.{key}"), found);
    }
    if schema["items"].is_object() {
        open_maps(&schema["items"], &format!("{path}[]"), found);
    }
}

#[test]
fn the_schema_knows_every_value_and_refuses_unknown_ones() {
    let schema: Value =
        serde_json::from_str(&fs::read_to_string(chart().join("values.schema.json")).unwrap()).unwrap();
    let mut open = Vec::new();
    open_maps(&schema, "", &mut open);
    assert_eq!(open, [""; 0], "these accept unknown keys");
    let values = yaml("values.yaml");
    for row in rows() {
        let steps = || row.path.split('.');
        assert!(steps().try_fold(&values, |at, step| at.get(step)).is_some(), "{} was misread", row.path);
        let described = steps().try_fold(&schema, |at, step| {
            // A map without properties takes any key.
            if at["properties"].is_object() { at["properties"].get(step) } else { Some(at) }
        });
        assert!(described.is_some(), "{} is not in the schema", row.path);
    }
}

#[test]
fn every_gateway_field_is_in_the_reference() {
    let schema: Value =
        serde_json::from_str(&fs::read_to_string(chart().join("values.schema.json")).unwrap()).unwrap();
    let fields = &schema["properties"]["mesh"]["properties"]["gateways"]["items"]["properties"];
    let text = fs::read_to_string(root().join("docs/reference/chart.md")).unwrap();
    for field in fields.as_object().unwrap().keys() {
        assert!(text.contains(&format!("| `{field}` |")), "{field} is missing in docs/reference/chart.md");
    }
}

/// Texts that people copy from.
fn texts(folder: &std::path::Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let is_text =
            entry.extension().is_some_and(|ending| ["md", "yaml", "txt", "tpl"].iter().any(|e| ending == *e));
        if entry.is_dir() {
            texts(&entry, found);
        } else if is_text {
            found.push((entry.display().to_string(), fs::read_to_string(&entry).unwrap()));
        }
    }
}

#[test]
fn every_text_names_the_image_by_its_version() {
    let mut found = Vec::new();
    for folder in ["docs", "deploy", "examples"] {
        texts(&root().join(folder), &mut found);
    }
    found.push(("README.md".to_owned(), fs::read_to_string(root().join("README.md")).unwrap()));
    let tag = regex::Regex::new(r"(?:^|[^:\w])zoneward:([A-Za-z0-9][A-Za-z0-9._-]*)").unwrap();
    // Default roles and groups of the embedded API, and recording rules, have names of the same form.
    let roles = serde_json::to_string(&apimachinery::rbac::bootstrap_objects()).unwrap();
    let rules = fs::read_to_string(root().join("deploy/monitoring/rules.yaml")).unwrap();
    let is_image = |named: &regex::Captures<'_>| {
        let name = &named[1];
        !roles.contains(&format!("\"zoneward:{name}\""))
            && !rules.contains(&format!("record: zoneward:{name}"))
    };
    let mut seen = 0;
    for (file, text) in found {
        for named in tag.captures_iter(&text).filter(is_image) {
            let version = named[1].strip_suffix("-iptables").unwrap_or(&named[1]);
            assert!([env!("CARGO_PKG_VERSION"), "VERSION"].contains(&version), "{file}: {}", &named[0]);
            seen += 1;
        }
    }
    assert!(seen > 5, "{seen}");
}
