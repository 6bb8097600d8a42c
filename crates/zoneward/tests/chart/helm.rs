//! The real helm on the chart of this repository, and the value sets beside this file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Kubernetes as of the types of this workspace.
const KUBERNETES: &str = "1.37.0";

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

pub fn chart() -> PathBuf {
    root().join("deploy/chart")
}

/// helm, with nothing of the user's own configuration.
pub fn helm() -> Command {
    let mut command = toolbox::command("helm");
    for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "HOME"] {
        command.env(name, Path::new(env!("CARGO_TARGET_TMPDIR")).join("helm"));
    }
    command.env_remove("KUBECONFIG");
    command
}

/// The output of a command that succeeds.
pub fn succeed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success(), "{command:?}: {stdout}{stderr}");
    stdout
}

/// What a command that fails says.
pub fn fail(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(!status.success(), "{command:?}: {}", String::from_utf8_lossy(&stdout));
    String::from_utf8(stderr).unwrap()
}

/// `helm template` of the chart in a namespace.
pub fn template(namespace: &str, version: &str) -> Command {
    let mut command = helm();
    command.args(["template", "zoneward"]).arg(chart());
    command.args(["--namespace", namespace, "--kube-version", version]);
    command
}

/// A set of values, and the version of Kubernetes that it is for.
pub struct ValueSet {
    pub name: String,
    pub file: PathBuf,
    pub version: String,
}

impl ValueSet {
    fn new(file: PathBuf) -> Self {
        let text = fs::read_to_string(&file).unwrap();
        let version = text.lines().find_map(|line| line.strip_prefix("# kube-version: "));
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        Self { name, version: version.unwrap_or(KUBERNETES).to_owned(), file }
    }

    pub fn named(name: &str) -> Self {
        Self::new(values().join(format!("{name}.yaml")))
    }

    /// The objects of this set, in kube-system.
    pub fn objects(&self) -> Vec<Value> {
        let mut command = template("kube-system", &self.version);
        documents(&succeed(command.arg("--values").arg(&self.file)))
    }
}

fn values() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chart/values")
}

pub fn value_sets() -> Vec<ValueSet> {
    let files = fs::read_dir(values()).unwrap().map(|entry| entry.unwrap().path());
    let sets: Vec<ValueSet> = files.map(ValueSet::new).collect();
    assert!(sets.len() >= 10, "{}", sets.len());
    sets
}

/// The documents of a YAML text.
pub fn documents(text: &str) -> Vec<Value> {
    let texts = text.trim_start_matches("---\n").split("\n---\n");
    let parsed =
        texts.map(|text| serde_saphyr::from_str::<Value>(text).unwrap_or_else(|e| panic!("{e}: {text}")));
    parsed.filter(|value| !value.is_null()).collect()
}
