//! `zoneward plan node` on the shop of the examples: what a changed object changes, and nothing else.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn root() -> &'static Path {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    crates.and_then(Path::parent).expect("this crate lies two levels below the root")
}

fn run(args: &[&str]) -> Output {
    let program = Command::new(env!("CARGO_BIN_EXE_zoneward")).args(args).current_dir(root()).output();
    program.expect("the program can be started")
}

fn plan(more: &[&str]) -> Value {
    let args = ["plan", "node", "-f", "examples/shop", "--node", "node-a1", "-o", "json"];
    let output = run(&[&args, more].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{more:?}: {error}: {errors}"))
}

fn lines(plan: &Value) -> Vec<&Value> {
    let of = |part: &str| plan[part].as_array().unwrap_or_else(|| panic!("no {part}: {plan}")).iter();
    of("now").chain(of("later")).collect()
}

#[test]
fn the_same_objects_change_nothing() {
    assert_eq!(lines(&plan(&["--with", "examples/shop/services.yaml"])), Vec::<&Value>::new());
}

#[test]
fn a_changed_port_changes_the_elements_of_its_service_alone() {
    let text =
        std::fs::read_to_string(root().join("examples/shop/services.yaml")).expect("the example is there");
    let cart = text.split("\n---").find(|document| document.contains("name: cart\n")).expect("the cart");
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plan-node-cart.yaml");
    std::fs::write(&path, cart.replace("port: 80,", "port: 8080,")).expect("the file can be written");
    let plan = plan(&["--with", path.to_str().expect("a path in UTF-8")]);
    let _ = std::fs::remove_file(&path);
    let lines = lines(&plan);
    assert!(!lines.is_empty());
    for line in lines {
        let (what, detail) = (line["what"].as_str().unwrap_or(""), line["detail"].as_str().unwrap_or(""));
        assert!(what.starts_with("element ") && detail.starts_with("10.96.1.20 . tcp . 80"), "{line}");
    }
}

#[test]
fn a_packet_is_traced_for_people_from_the_service_to_the_rule() {
    let packet = "tcp 10.244.1.99:40000 -> 10.96.1.20:80";
    let output = run(&["trace", "packet", "-f", "examples/shop", "--node", "node-a1", "--packet", packet]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    for words in
        ["on node-a1: dnat", "Service shop/cart:http", "zone hints", "nftables ip zoneward cluster-ip-"]
    {
        assert!(text.contains(words), "{words} is missing in:\n{text}");
    }
    let wrong =
        run(&["trace", "packet", "-f", "examples/shop", "--node", "node-a1", "--packet", "tcp somewhere"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("expected 'tcp"));
}

#[test]
fn mode_ipvs_is_planned_and_traced() {
    let planned = plan(&["--proxy-mode", "ipvs"]);
    let ipvs = planned["ipvs"].as_array().expect("changes of IPVS");
    let of_cart = |line: &&Value| line["what"] == "virtual server TCP 10.96.1.20:80";
    let cart = ipvs.iter().find(of_cart).unwrap_or_else(|| panic!("{planned:#}"));
    let detail = cart["detail"].as_str().unwrap_or("");
    assert!(detail.starts_with("rr, 10.244.") && detail.ends_with("(shop/cart)"), "{cart}");
    assert!(
        ipvs.iter().any(|line| line["what"].as_str().unwrap_or("").starts_with("local route ")),
        "{planned:#}"
    );
    assert!(plan(&[])["ipvs"].is_null(), "not in mode nftables");
    let packet = "tcp 10.244.1.99:40000 -> 10.96.1.20:80";
    let args = ["trace", "packet", "-f", "examples/shop", "--node", "node-a1", "--packet", packet];
    let output = run(&[&args[..], &["--proxy-mode", "ipvs"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    for words in [
        "on node-a1: dnat",
        "Service shop/cart:http",
        "zoneward cluster-ip-ipvs: virtual server: IPVS forwards: accept",
        "ipvs TCP 10.96.1.20:80 rr: virtual server: one of",
    ] {
        assert!(text.contains(words), "{words} is missing in:\n{text}");
    }
}

#[test]
fn mode_kernelspace_is_a_preview_that_runs_anywhere() {
    let planned = plan(&["--proxy-mode", "kernelspace", "--enable-dsr"]);
    let of_cart = |line: &&Value| line["what"] == "load balancer TCP 10.96.1.20:80";
    let cart = planned["now"].as_array().and_then(|lines| lines.iter().find(of_cart));
    let cart = cart.unwrap_or_else(|| panic!("{planned:#}"));
    let detail = cart["detail"].as_str().unwrap_or("");
    assert!(detail.starts_with("to port ") && detail.ends_with(", DSR (shop/cart)"), "{cart}");
    let documents = planned["hcn"]["loadBalancers"].as_array().expect("documents");
    assert!(documents.iter().any(|document| document["FrontendVIPs"][0] == "10.96.1.20"), "{planned:#}");
    let overlay = ["--proxy-mode", "kernelspace", "--hns-network", "overlay", "--source-vip", "10.244.1.2"];
    let overlay = plan(&overlay);
    let has_provider = |document: &Value| document["Policies"][0]["Type"] == "ProviderAddress";
    assert!(
        overlay["hcn"]["endpoints"].as_array().is_some_and(|all| all.iter().all(has_provider)),
        "{overlay:#}"
    );
    let same = plan(&["--proxy-mode", "kernelspace", "--with", "examples/shop/services.yaml"]);
    assert_eq!(lines(&same), Vec::<&Value>::new());

    let packet = "tcp 10.244.1.99:40000 -> 10.96.1.20:80";
    let args = ["trace", "packet", "-f", "examples/shop", "--node", "node-a1", "--packet", packet];
    let output = run(&[&args[..], &["--proxy-mode", "kernelspace"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    for words in ["on node-a1: dnat", "Service shop/cart:http", "zone hints", "hns load balancer 7a6f6e65-"] {
        assert!(text.contains(words), "{words} is missing in:\n{text}");
    }
    for (more, words) in [
        (&["--proxy-mode", "kernelspace", "--live"][..], "leave out --live"),
        (&["--proxy-mode", "kernelspace", "--hns-network", "overlay"][..], "needs winkernel.sourceVip"),
        (
            &["--proxy-mode", "kernelspace", "--enable-dsr", "--feature-gates", "WinDSR=false"][..],
            "needs the feature gate WinDSR",
        ),
        (&["--enable-dsr"][..], "need --proxy-mode kernelspace"),
    ] {
        let refused = run(&[&args[..], more].concat());
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && errors.contains(words), "{more:?}: {errors}");
    }
    let refused = run(&["node", "--proxy-mode", "kernelspace", "--hostname-override", "w1"]);
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{errors}");
    assert!(errors.contains("`zoneward plan node` and `zoneward trace packet`"), "{errors}");
}

/// A tenant's older Service asks for the cluster IP of `shop/cart` and for a privileged port.
#[test]
fn a_service_that_asks_for_the_address_of_another_is_named_and_gets_no_packet() {
    let intruder = "apiVersion: v1
kind: Service
metadata: {name: intruder, namespace: shop, creationTimestamp: '2001-01-01T00:00:00Z'}
spec:
  type: NodePort
  clusterIP: 10.96.1.66
  clusterIPs: [10.96.1.66]
  externalIPs: [10.96.1.20]
  ports: [{name: http, port: 80, nodePort: 22}]
";
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plan-node-intruder.yaml");
    std::fs::write(&path, intruder).expect("the file can be written");
    let file = path.to_str().expect("a path in UTF-8");
    let files = ["-f", "examples/shop", "-f", file, "--node", "node-a1"];
    let packet = ["--packet", "tcp 10.244.1.99:40000 -> 10.96.1.20:80"];
    let traced = run(&[&["trace", "packet"][..], &files, &packet].concat());
    let planned = run(&[&["plan", "node"][..], &files].concat());
    let _ = std::fs::remove_file(&path);
    let text = String::from_utf8_lossy(&traced.stdout);
    assert!(text.contains("Service shop/cart:http"), "{text}");
    for output in [&traced, &planned] {
        let text = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        for words in [
            "spec.externalIPs: 10.96.1.20 is the cluster IP of Service shop/cart, so TCP 10.96.1.20:80",
            "spec.ports[].nodePort: port 22",
            "FrontendConflict",
            "DeprecatedExternalIPs",
            "PortOutOfRange",
        ] {
            assert!(text.contains(words), "{words} is missing in:\n{text}");
        }
    }
}
