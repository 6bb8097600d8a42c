//! The pinned programs and maps of the eBPF accelerator.

use dataplane::accelerator::{pinned_folder, remove_pins};

use super::{CleanupReport, Leftover};

pub(super) fn remove(dry_run: bool, report: &mut CleanupReport) {
    let leftover = |name: String| Leftover { what: "eBPF program", name };
    match remove_pins(pinned_folder(), dry_run) {
        Ok(folders) => {
            report.removed.extend(folders.iter().map(|folder| leftover(folder.display().to_string())));
        }
        Err(error) => {
            report.failed.push((leftover(pinned_folder().display().to_string()), error.to_string()));
        }
    }
}
