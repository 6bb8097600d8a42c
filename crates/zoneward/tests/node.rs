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
