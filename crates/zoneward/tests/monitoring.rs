//! `deploy/monitoring`: rules and dashboards name only metrics that the daemons have, the rules pass their own tests, and
//! a real Prometheus that scrapes real daemons answers every query, those of kubernetes-mixin for kube-proxy included.

use crate::daemons::reference;
use crate::daemons::world;
use crate::started;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fixtures::eventually;
use regex::Regex;
use serde_json::{Value, json};

use started::ask;
use world::{Daemon, Folder, get};

fn monitoring() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/monitoring")
}

fn rules() -> Value {
    serde_saphyr::from_str(&std::fs::read_to_string(monitoring().join("rules.yaml")).unwrap()).unwrap()
}

/// Expressions of the rules, with the name of what they record, if any.
fn rule_expressions() -> Vec<(Option<String>, String)> {
    let rules = rules();
    let groups = rules["groups"].as_array().unwrap().iter();
    let all = groups.flat_map(|group| group["rules"].as_array().unwrap());
    all.map(|rule| (rule["record"].as_str().map(str::to_owned), rule["expr"].as_str().unwrap().to_owned()))
        .collect()
}

/// Dashboards by file name.
fn dashboards() -> BTreeMap<String, Value> {
    let files = std::fs::read_dir(monitoring().join("grafana")).unwrap().flatten().map(|entry| entry.path());
    let one = |path: PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap())
    };
    files.map(one).collect()
}

/// The queries of a dashboard, with its variables as `.*`.
fn queries(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let panels = targets.map(|target| target["expr"].as_str().unwrap().to_owned());
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let series = Regex::new(r"^label_values\((.+), \w+\)$").unwrap();
    let variables = variables.filter_map(|variable| variable["definition"].as_str()).map(|definition| {
        series.captures(definition).unwrap_or_else(|| panic!("{definition}"))[1].to_owned()
    });
    let filled = panels.chain(variables).map(|query| {
        ["$namespace", "$service", "$instance"].iter().fold(query, |query, name| query.replace(name, ".*"))
    });
    filled.inspect(|query| assert!(!query.contains('$'), "an unknown variable: {query}")).collect()
}

/// The metrics that an expression names: words that are neither functions, nor labels, nor keywords.
fn metrics(expression: &str) -> BTreeSet<String> {
    let text = Regex::new(r#""[^"]*""#).unwrap().replace_all(expression, "\"\"").into_owned();
    let text = Regex::new(r"\{[^}]*\}").unwrap().replace_all(&text, "").into_owned();
    let text = Regex::new(r"\[[^\]]*\]").unwrap().replace_all(&text, "").into_owned();
    let lists = Regex::new(r"\b(by|on|without|ignoring|group_left|group_right) *\([^)]*\)").unwrap();
    let text = lists.replace_all(&text, "").into_owned();
    let words = Regex::new(r"[a-zA-Z_:][a-zA-Z0-9_:]*").unwrap();
    let keywords = ["and", "or", "unless", "bool", "e9", "offset"];
    let found = words.find_iter(&text).filter(|word| !text[word.end()..].trim_start().starts_with('('));
    let found = found.filter(|word| !text[..word.start()].ends_with(|c: char| c.is_ascii_digit()));
    found.map(|word| word.as_str().to_owned()).filter(|word| !keywords.contains(&word.as_str())).collect()
}

/// Metrics of the reference, which another test compares with the daemons, by whether they exist from the start on.
fn exported() -> BTreeMap<String, bool> {
    let mut names = BTreeMap::from([("up".to_owned(), true)]);
    for (name, row) in reference::read().into_values().flatten() {
        match row.kind.as_str() {
            "histogram" => ["_bucket", "_sum", "_count"].iter().for_each(|end| {
                names.insert(format!("{name}{end}"), row.at_start);
            }),
            _ => drop(names.insert(name, row.at_start)),
        }
    }
    names
}

#[test]
fn rules_and_dashboards_name_only_metrics_that_exist() {
    let mut known: BTreeSet<String> = exported().into_keys().collect();
    let rules = rule_expressions();
    known.extend(rules.iter().filter_map(|(record, _)| record.clone()));
    let mut used = BTreeSet::new();
    let of_rules = rules.iter().map(|(_, expression)| ("rules.yaml".to_owned(), expression.clone()));
    let of_dashboards = dashboards().into_iter().flat_map(|(name, dashboard)| {
        queries(&dashboard).into_iter().map(move |query| (name.clone(), query))
    });
    for (file, expression) in of_rules.chain(of_dashboards) {
        for metric in metrics(&expression) {
            assert!(known.contains(&metric), "{file}: {metric} is not a metric, in {expression}");
            used.insert(metric);
        }
    }
    let unused: Vec<&String> = rules
        .iter()
        .filter_map(|(record, _)| record.as_ref())
        .filter(|record| !used.contains(*record))
        .collect();
    assert_eq!(unused, Vec::<&String>::new(), "recorded, and used by no alert and no dashboard");
    assert!(used.len() > 50, "{used:?}");
}

#[test]
fn dashboards_have_an_identity_and_say_that_grafana_was_not_tried() {
    let dashboards = dashboards();
    assert_eq!(
        dashboards.keys().map(String::as_str).collect::<Vec<_>>(),
        ["node.json", "overview.json", "proxy.json", "service.json"]
    );
    let mut identities = BTreeSet::new();
    for (name, dashboard) in &dashboards {
        assert!(identities.insert(dashboard["uid"].as_str().unwrap()), "{name}");
        assert!(dashboard["description"].as_str().unwrap().contains("not tried in Grafana"), "{name}");
        let mut places = BTreeSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            let place = &panel["gridPos"];
            assert!(
                places.insert((place["x"].as_u64(), place["y"].as_u64())),
                "{name}: two panels at {place}"
            );
            assert!(place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap() <= 24, "{name}: {place}");
        }
    }
}

fn promtool(words: &[&str], folder: &Path) {
    let output = Command::new(toolbox::path("promtool")).args(words).current_dir(folder).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{words:?}: {}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn promtool_accepts_the_rules_their_tests_and_the_configuration() {
    let place = monitoring();
    promtool(&["check", "rules", "rules.yaml"], &place);
    promtool(&["test", "rules", "rules-test.yaml"], &place);
    // Every alert has a test.
    let tests = std::fs::read_to_string(place.join("rules-test.yaml")).unwrap();
    let rules = rules();
    let untested: Vec<&str> = rules["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap())
        .filter_map(|rule| rule["alert"].as_str())
        .filter(|alert| !tests.contains(&format!("alertname: {alert}")))
        .collect();
    assert_eq!(untested, Vec::<&str>::new(), "alerts without a test");
    // Debian's build cannot discover pods: the rest of the configuration is checked.
    let folder = Folder::new("monitoring-config");
    let text = std::fs::read_to_string(place.join("prometheus.yaml")).unwrap();
    let mut config: Value = serde_saphyr::from_str(&text).unwrap();
    let job = config["scrape_configs"][0].as_object_mut().unwrap();
    assert!(job.remove("kubernetes_sd_configs").is_some());
    job.remove("authorization");
    job.insert("static_configs".to_owned(), json!([{"targets": ["localhost:1"]}]));
    std::fs::write(folder.0.join("prometheus.yaml"), config.to_string()).unwrap();
    std::fs::copy(place.join("rules.yaml"), folder.0.join("rules.yaml")).unwrap();
    promtool(&["check", "config", "prometheus.yaml"], &folder.0);
}

/// Prometheus, which ends with the test.
struct Prometheus(Child);

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const ADDRESS: &str = "127.0.0.1:19090";

impl Prometheus {
    fn start(folder: &Folder, targets: &[(&str, &str)]) -> Self {
        let jobs: Vec<Value> = targets
            .iter()
            .map(|(job, target)| {
                json!({"job_name": job, "scrape_interval": "1s", "scrape_timeout": "1s",
                    "static_configs": [{"targets": [target]}]})
            })
            .collect();
        let rules = monitoring().join("rules.yaml").canonicalize().unwrap();
        let config =
            json!({"global": {"evaluation_interval": "1s"}, "rule_files": [rules], "scrape_configs": jobs});
        let file = folder.path("prometheus.yaml");
        std::fs::write(&file, config.to_string()).unwrap();
        let log = std::fs::File::create(folder.0.join("prometheus.log")).unwrap();
        let child = Command::new(toolbox::path("prometheus"))
            .arg(format!("--config.file={file}"))
            .arg(format!("--storage.tsdb.path={}", folder.path("tsdb")))
            .arg(format!("--web.listen-address={ADDRESS}"))
            .current_dir(&folder.0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self(child)
    }

    /// The samples that answer a query.
    fn query(&self, query: &str) -> Vec<Value> {
        let encoded: String = query
            .bytes()
            .map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
                other => format!("%{other:02X}"),
            })
            .collect();
        let answer = request(ADDRESS, &format!("/api/v1/query?query={encoded}")).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().unwrap().clone()
    }
}

/// The body of a response of any status, also of a chunked one.
fn request(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer.split_once("\r\n\r\n")?.1.to_owned())
}

/// The queries of kubernetes-mixin's dashboard of kube-proxy, and of its alert, with an empty cluster label. Goroutines are
/// Go's.
const MIXIN: [&str; 13] = [
    r#"sum(up{cluster="", job="kube-proxy"})"#,
    r#"sum(rate(kubeproxy_sync_proxy_rules_duration_seconds_count{cluster="", job="kube-proxy", instance=~".*"}[1m]))"#,
    r#"histogram_quantile(0.99, rate(kubeproxy_sync_proxy_rules_duration_seconds_bucket{cluster="", job="kube-proxy", instance=~".*"}[1m]))"#,
    r#"sum(rate(kubeproxy_network_programming_duration_seconds_count{cluster="", job="kube-proxy", instance=~".*"}[1m]))"#,
    r#"histogram_quantile(0.99, sum(rate(kubeproxy_network_programming_duration_seconds_bucket{cluster="", job="kube-proxy", instance=~".*"}[1m])) by (instance, le))"#,
    r#"sum(rate(rest_client_requests_total{cluster="", job="kube-proxy", instance=~".*", code=~"2.."}[1m]))"#,
    r#"histogram_quantile(0.99, sum(rate(rest_client_request_duration_seconds_bucket{cluster="", job="kube-proxy", instance=~".*", verb="GET"}[1m])) by (verb, le))"#,
    r#"histogram_quantile(0.99, sum(rate(rest_client_request_duration_seconds_bucket{cluster="", job="kube-proxy", instance=~".*", verb="POST"}[1m])) by (verb, le))"#,
    r#"process_resident_memory_bytes{cluster="", job="kube-proxy", instance=~".*"}"#,
    r#"rate(process_cpu_seconds_total{cluster="", job="kube-proxy", instance=~".*"}[1m])"#,
    r#"kubeproxy_network_programming_duration_seconds_bucket{cluster="", job="kube-proxy"}"#,
    r#"max(zoneward_build_info{job="kube-proxy"})"#,
    r#"up{job="kube-proxy"} == 1"#,
];

/// What answers on every connection.
fn serve(address: &str) {
    let listener = TcpListener::bind(address).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let mut buffer = [0; 1024];
            let _ = stream.read(&mut buffer);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
        }
    });
}

#[test]
fn prometheus_answers_every_query() {
    toolbox::in_own_namespaces!();
    let ip =
        |words: &[&str]| assert!(Command::new(toolbox::path("ip")).args(words).status().unwrap().success());
    // An address of the machine, and a way to cluster IPs.
    ip(&["link", "add", "net0", "type", "bridge"]);
    ip(&["link", "set", "net0", "up"]);
    ip(&["address", "add", "192.0.2.1/24", "dev", "net0"]);
    ip(&["route", "add", "default", "via", "192.0.2.254"]);
    let folder = Folder::new("monitoring");
    let data = folder.path("data");
    let socket = folder.path("data/api.sock");
    let up = [
        "up",
        "--data-dir",
        &data,
        "--zone",
        "zone-a",
        "--sidecar",
        "frontend:18081=web",
        "--audit-log-path",
        "-",
    ];
    let up = Daemon::start(&folder, "up", &up);
    eventually("the API", || get("127.0.0.1:10270", "/readyz"));
    let gateway = json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGateway", "metadata": {"name": "edge"},
        "spec": {"listeners": [{"name": "http", "port": 18080, "protocol": "HTTP"}]}});
    let made = ask(
        Path::new(&data),
        "POST",
        "/apis/zoneward.dev/v1alpha1/namespaces/default/meshgateways",
        &gateway.to_string(),
    );
    assert_eq!(made.code, 201, "{}", made.body);
    let controller = ["controller", "--api-socket", &socket, "--bind-address", "127.0.0.1:10400"];
    let controller = Daemon::start(&folder, "controller", &controller);
    let control = Daemon::start(&folder, "control", &["mesh", "control", "--api-socket", &socket]);
    serve("192.0.2.1:8080");
    let exposed = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args([
            "expose",
            "web",
            "--port",
            "80",
            "--to",
            "192.0.2.1:8080@zone-b",
            "--api-socket",
            &socket,
            "-o",
            "json",
        ])
        .output()
        .unwrap();
    assert!(exposed.status.success(), "{}", String::from_utf8_lossy(&exposed.stderr));
    let exposed: Value = serde_json::from_slice(&exposed.stdout).unwrap();
    let vip = format!("{}:80", exposed["service"]["spec"]["clusterIP"].as_str().unwrap());
    for address in
        ["127.0.0.1:10249", "127.0.0.1:10280", "127.0.0.1:10281", "127.0.0.1:10400", "127.0.0.1:10272"]
    {
        eventually(address, || get(address, "/metrics"));
    }
    let prometheus = Prometheus::start(
        &folder,
        &[
            ("kube-proxy", "127.0.0.1:10249"),
            ("zoneward-up", "127.0.0.1:10270"),
            ("zoneward-controller", "127.0.0.1:10400"),
            ("zoneward-sidecar", "127.0.0.1:10280"),
            ("zoneward-gateway", "127.0.0.1:10281"),
            ("zoneward-mesh-control", "127.0.0.1:10272"),
        ],
    );
    eventually("Prometheus", || get(ADDRESS, "/-/ready"));
    eventually("all targets", || prometheus.query("sum(up) == 6").len() == 1);
    // Traffic to the Service by the kernel and by the sidecar, until it is counted.
    eventually("connections by zone", || {
        for address in [vip.as_str(), "127.0.0.1:18081"] {
            let _ = request(address, "/");
        }
        (prometheus.query(r#"zoneward:service_connections:rate5m{locality="cross-zone"} > 0"#).len() == 1)
            .then_some(())
    });
    eventually("the share in zone", || {
        let _ = request(&vip, "/");
        let found = prometheus.query("zoneward:service_in_zone:ratio{service=\"web\"}");
        (!found.is_empty()).then_some(())
    });
    for query in MIXIN {
        assert!(!prometheus.query(query).is_empty(), "{query} has no answer");
    }
    let known = exported();
    let mut empty = Vec::new();
    let all: BTreeSet<String> = dashboards().values().flat_map(queries).collect();
    for query in &all {
        let is_later = metrics(query).iter().any(|metric| known.get(metric) == Some(&false));
        if prometheus.query(query).is_empty() && !is_later {
            empty.push(query.clone());
        }
    }
    // Without errors and requests there is no share of errors, and without bytes no price.
    empty.retain(|query| {
        !["proxy_route_errors", "cost_per_month", "service_bytes"].iter().any(|part| query.contains(part))
    });
    assert_eq!(empty, Vec::<String>::new(), "queries without an answer");
    println!("{} queries of dashboards, {} of kubernetes-mixin", all.len(), MIXIN.len());
    for (_, expression) in rule_expressions() {
        prometheus.query(&expression);
    }
    let evaluated = request(ADDRESS, "/api/v1/rules").unwrap();
    let evaluated: Value = serde_json::from_str(&evaluated).unwrap();
    for rule in
        evaluated["data"]["groups"].as_array().unwrap().iter().flat_map(|g| g["rules"].as_array().unwrap())
    {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    drop(prometheus);
    [controller, control, up].into_iter().for_each(Daemon::stop);
}
