//! `cargo xtask manifests`: the plain manifests in `deploy/`, rendered from the chart.
//!
//! ```text
//! deploy/chart + deploy/manifests-values.yaml --> helm template --> target/manifests --> deploy/{crds,controller,node,mesh}
//! ```
//!
//! Each template has a manifest of the same path. READMEs and kustomizations in those folders are not rendered.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Stop, report, shell, tools};

/// The folders of `deploy/` whose manifests are rendered.
const FOLDERS: [&str; 4] = ["crds", "controller", "node", "mesh"];

/// The version of Kubernetes that they are for; the chart leaves out what older ones do not know.
const KUBERNETES: &str = "1.37.0";

/// The first line of each manifest.
const HEAD: &str = "# Rendered from deploy/chart by `cargo xtask manifests`: change it there.\n";

pub(crate) fn run(install: bool, check: bool) -> Result<(), Stop> {
    tools::ensure(&[tools::HELM], install)?;
    render(check)
}

/// Renders the manifests, or names those that differ.
pub(crate) fn render(check: bool) -> Result<(), Stop> {
    let deploy = shell::root().join("deploy");
    let (wanted, held) = (rendered(&deploy)?, manifests(&deploy, &FOLDERS)?);
    let names = wanted.keys().chain(held.keys().filter(|name| !wanted.contains_key(*name)));
    let changed: Vec<&String> = names.filter(|name| wanted.get(*name) != held.get(*name)).collect();
    if check && !changed.is_empty() {
        let list: Vec<String> = changed.iter().map(|name| format!("deploy/{name}")).collect();
        let list = list.join(", ");
        return Err(Stop::Failed(format!("not what the chart renders: {list}; run `cargo xtask manifests`")));
    }
    for name in &changed {
        let path = deploy.join(name);
        let written = match wanted.get(*name) {
            Some(text) => fs::write(&path, text),
            None => fs::remove_file(&path),
        };
        written.map_err(|error| failed(&path, &error))?;
        report::say(&format!("deploy/{name}"));
    }
    report::say(&format!("{} manifests, {} changed", wanted.len(), changed.len()));
    Ok(())
}

/// What helm renders, by path below `deploy/`.
fn rendered(deploy: &Path) -> Result<BTreeMap<String, String>, Stop> {
    let folder = shell::target_dir().join("manifests");
    if let Err(error) = fs::remove_dir_all(&folder)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(failed(&folder, &error));
    }
    let mut files = BTreeMap::new();
    // The folder of the nodes can be applied without that of the controller, so it has what they share, too.
    for more in [&[][..], &["--set", "controller.enabled=false"]] {
        let output = folder.join(if more.is_empty() { "all" } else { "nodes" });
        let mut helm = shell::program(shell::tools().bin().join("helm"));
        helm.args(["template", "zoneward"]).arg(deploy.join("chart"));
        helm.args(["--kube-version", KUBERNETES]);
        helm.args(["--namespace", "kube-system", "--values"]).arg(deploy.join("manifests-values.yaml"));
        helm.args(more).arg("--output-dir").arg(&output).stdout(std::process::Stdio::null());
        shell::run(&mut helm, "helm template", "see the output above")?;
        let folders: &[&str] = if more.is_empty() { &FOLDERS } else { &["node"] };
        files.extend(manifests(&output.join("zoneward/templates"), folders)?);
    }
    Ok(files.into_iter().map(|(name, text)| (name, plain(&text))).collect())
}

/// The files of the folders, by path.
fn manifests(place: &Path, folders: &[&str]) -> Result<BTreeMap<String, String>, Stop> {
    let mut files = BTreeMap::new();
    for folder in folders {
        let path = place.join(folder);
        for entry in fs::read_dir(&path).map_err(|error| failed(&path, &error))? {
            let file: PathBuf = entry.map_err(|error| failed(&path, &error))?.path();
            let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if name.ends_with(".yaml") {
                let text = fs::read_to_string(&file).map_err(|error| failed(&file, &error))?;
                files.insert(format!("{folder}/{name}"), text);
            }
        }
    }
    Ok(files)
}

/// Helm's output without the lines that name the template, and with ours at the top.
fn plain(text: &str) -> String {
    let documents = text.split("---\n# Source: ").filter_map(|document| document.split_once('\n'));
    let documents = documents.map(|(_, document)| format!("{}\n", document.trim_matches('\n')));
    format!("{HEAD}{}", documents.collect::<Vec<_>>().join("---\n"))
}

fn failed(path: &Path, error: &std::io::Error) -> Stop {
    Stop::Failed(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_templates_are_removed_and_documents_stay_apart() {
        let text = "---\n# Source: a/b.yaml\n# why\nkind: A\n---\n# Source: a/b.yaml\nkind: B\n\n";
        assert_eq!(plain(text), format!("{HEAD}# why\nkind: A\n---\nkind: B\n"));
    }
}
