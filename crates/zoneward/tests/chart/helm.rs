//! The real helm on the chart of this repository, and the value sets beside this file.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
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

    /// The objects of this set, in kube-system. Each test is a process, so what helm made of the same chart and values is
    /// kept in a file.
    pub fn objects(&self) -> Vec<Value> {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
            "chart-{}-{:016x}.json",
            self.name,
            self.digest()
        ));
        if let Ok(bytes) = fs::read(&file) {
            return serde_json::from_slice(&bytes).unwrap();
        }
        let mut command = template("kube-system", &self.version);
        let objects = documents(&succeed(command.arg("--values").arg(&self.file)));
        // Another test may be writing the same.
        let own = file.with_extension(std::process::id().to_string());
        fs::write(&own, serde_json::to_vec(&objects).unwrap()).unwrap();
        fs::rename(own, file).unwrap();
        objects
    }

    /// Of all that helm reads, and of helm.
    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let helm = fs::metadata(toolbox::path("helm")).unwrap();
        (&self.version, helm.len(), helm.modified().unwrap()).hash(&mut hasher);
        for file in files_below(&chart()).into_iter().chain([self.file.clone()]) {
            (&file, fs::read(&file).unwrap()).hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// All files below a folder, in order.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries.into_iter().flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
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
