//! Runs the commands of README.md, docs/get-started.md and docs/guide/*.md, in order, and checks their output against the
//! claims of the page.
//!
//! Each page has a shell of its own, in a user and network namespace of its own, in a folder with copies of `examples`
//! and `deploy`. What a fenced block is, its first line says; CONTRIBUTING.md has the list.

mod page;
mod session;

use std::fs;
use std::path::{Path, PathBuf};

use page::{Block, Page};
use session::Session;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository is there")
}

fn page(name: &str) -> Page {
    let path = root().join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    Page::parse(name, &text).unwrap_or_else(|faults| panic!("\n{}\n", faults.join("\n")))
}

/// Runs a page and returns how many commands that were.
fn run(name: &str) -> usize {
    let page = page(name);
    let mut session = Session::start(&root(), name);
    let mut count = 0;
    for block in &page.blocks {
        match block {
            Block::File { path, content, .. } => session.write(path, content),
            Block::Commands(steps) => {
                for step in steps {
                    count += 1;
                    if let Err(why) = session.run(step) {
                        panic!("\n{name}:{}: {}\n{why}\n", step.line, step.command);
                    }
                }
            }
        }
    }
    session.end();
    count
}

/// The pages of this folder whose commands another test of this file runs.
const GUIDES: &[&str] = &[
    "choosing.md",
    "cluster.md",
    "dashboard.md",
    "envoy.md",
    "gateway-api.md",
    "outgrow.md",
    "replace-kube-proxy.md",
    "routes.md",
    "simulate.md",
    "single-machine.md",
    "status.md",
];

#[test]
fn every_guide_is_run_by_a_test() {
    let guides = fs::read_dir(root().join("docs/guide")).expect("docs/guide is there");
    let mut names: Vec<String> =
        guides.flatten().map(|file| file.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(names, GUIDES, "a new guide needs a row in GUIDES and a test that runs it");
}

#[test]
fn readme_does_what_it_says() {
    assert!(run("README.md") >= 5);
}

#[test]
fn get_started_does_what_it_says() {
    assert!(run("docs/get-started.md") >= 8);
}

#[test]
fn several_machines_does_what_it_says() {
    assert!(run("docs/get-started/several-machines.md") >= 12);
}

#[test]
fn choosing_does_what_it_says() {
    assert!(run("docs/guide/choosing.md") >= 3);
}

#[test]
fn cluster_does_what_it_says() {
    assert!(run("docs/guide/cluster.md") >= 1);
}

#[test]
fn dashboard_does_what_it_says() {
    assert!(run("docs/guide/dashboard.md") >= 5);
}

#[test]
fn envoy_does_what_it_says() {
    assert!(run("docs/guide/envoy.md") >= 12);
}

#[test]
fn gateway_api_does_what_it_says() {
    assert!(run("docs/guide/gateway-api.md") >= 20);
}

#[test]
fn outgrow_does_what_it_says() {
    assert!(run("docs/guide/outgrow.md") >= 12);
}

#[test]
fn replace_kube_proxy_does_what_it_says() {
    assert!(run("docs/guide/replace-kube-proxy.md") >= 1);
}

#[test]
fn routes_does_what_it_says() {
    assert!(run("docs/guide/routes.md") >= 6);
}

#[test]
fn simulate_does_what_it_says() {
    assert!(run("docs/guide/simulate.md") >= 8);
}

#[test]
fn single_machine_does_what_it_says() {
    assert!(run("docs/guide/single-machine.md") >= 8);
}

#[test]
fn status_does_what_it_says() {
    assert!(run("docs/guide/status.md") >= 8);
}
