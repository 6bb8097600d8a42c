//! The Helm chart as `helm package` lays it out: one folder `zoneward/`, without entries for folders.

use std::path::Path;

use anyhow::{Context, ensure};

use crate::archive::{FolderEntries, Packed, gzip, tar};
use crate::source_date::SourceDate;

/// The folder of the chart in the repository.
pub const FOLDER: &str = "deploy/chart";

/// The file of the chart.
pub fn file_name(version: &str) -> String {
    format!("zoneward-chart-{version}.tgz")
}

/// The chart of a folder; its version must be that of the program.
pub fn pack(folder: &Path, version: &str, date: SourceDate) -> anyhow::Result<Vec<u8>> {
    let file = folder.join("Chart.yaml");
    let chart = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    for field in ["version", "appVersion"] {
        let value = chart.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
        let value = value.with_context(|| format!("{}: no field {field}", file.display()))?;
        let value = value.split('#').next().unwrap_or_default().trim().trim_matches(['"', '\'']);
        ensure!(
            value == version,
            "{}: {field} is {value}, the program is {version}: make them equal",
            file.display()
        );
    }
    let mut files = Vec::new();
    collect(folder, "", &mut files)?;
    gzip(&tar("zoneward/", &files, FolderEntries::Implied, date)?)
}

/// Files that start with a dot are for editors and helm itself.
fn collect(folder: &Path, prefix: &str, files: &mut Vec<Packed>) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let path = entry.with_context(|| format!("reading {}", folder.display()))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            collect(&path, &format!("{prefix}{name}/"), files)?;
        } else {
            let bytes = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            files.push(Packed::file(format!("{prefix}{name}"), bytes));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn chart_has_one_folder_and_the_version_of_the_program() {
        let folder = std::env::temp_dir().join(format!("zoneward-chart-{}", std::process::id()));
        fs::create_dir_all(folder.join("templates")).expect("a folder");
        fs::write(
            folder.join("Chart.yaml"),
            "name: zoneward\nversion: 1.2.3\nappVersion: \"1.2.3\" # same\n",
        )
        .expect("a file");
        fs::write(folder.join("templates/node.yaml"), "kind: DaemonSet\n").expect("a file");
        fs::write(folder.join(".helmignore"), "*.swp\n").expect("a file");
        let chart = pack(&folder, "1.2.3", SourceDate::new(1));
        let other = pack(&folder, "1.2.4", SourceDate::new(1));
        fs::remove_dir_all(&folder).expect("the folder is removed");
        let chart = chart.expect("packs");
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&chart[..]));
        let entries = archive.entries().expect("a tar file");
        let names = entries.map(|entry| entry.expect("an entry").path_bytes().into_owned());
        assert_eq!(names.collect::<Vec<_>>(), [&b"zoneward/Chart.yaml"[..], b"zoneward/templates/node.yaml"]);
        assert!(other.expect_err("another version").to_string().contains("version is 1.2.3"));
    }
}
