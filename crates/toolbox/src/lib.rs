//! Where tests, benches and xtask find the programs that they run: `tools/bin` below the target directory.
//! xtask puts them there by name and version. PATH is never searched: a namesake there has another version, or is broken.

pub mod iptables;
pub mod namespaces;
#[cfg(target_os = "linux")]
pub mod ports;
pub mod static_build;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder `tools` of a target directory.
#[derive(Debug, Clone)]
pub struct Toolbox {
    folder: PathBuf,
}

impl Toolbox {
    /// The tools below this target directory.
    pub fn below(target: &Path) -> Self {
        Self { folder: target.join("tools") }
    }

    /// The tools of the build that the running program is part of: those of the nearest folder above that has some. Builds
    /// for a named target are one folder deeper than others.
    pub fn own() -> Self {
        let program = std::env::current_exe().expect("a running program knows its file");
        let mut above = program.ancestors().skip(1).map(Self::below);
        above.find(|tools| tools.bin().is_dir()).unwrap_or_else(|| Self::below(Path::new("target")))
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where each program has an entry of its name.
    pub fn bin(&self) -> PathBuf {
        self.folder.join("bin")
    }

    /// The file of a program, if it is there.
    pub fn find(&self, program: &str) -> Option<PathBuf> {
        Some(self.bin().join(program)).filter(|file| file.is_file())
    }

    /// PATH with these tools in front, for programs that look there themselves.
    pub fn search_path(&self) -> OsString {
        let mut places = vec![self.bin()];
        places.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
        // Debian keeps network tools where users without root do not look.
        places.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
        std::env::join_paths(places).unwrap_or_else(|_| std::env::var_os("PATH").unwrap_or_default())
    }
}

/// A tool, to be started by a test.
///
/// # Panics
/// If xtask has not installed it.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(path(program));
    // kubectl remembers what an API serves by its address, in the home folder: another API may have had the same one.
    command.env("KUBECACHEDIR", "/dev/null");
    command
}

/// The file of a tool, for a test.
///
/// # Panics
/// If xtask has not installed it.
pub fn path(program: &str) -> PathBuf {
    let tools = Toolbox::own();
    tools.find(program).unwrap_or_else(|| {
        panic!("{program} is not in {}: `cargo xtask tools` installs it", tools.bin().display())
    })
}

/// PATH with the tools in front, for a program under test that looks for tools there.
pub fn search_path() -> OsString {
    Toolbox::own().search_path()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_folder_of_tools_is_searched() {
        let folder = std::env::temp_dir().join(format!("zoneward-toolbox-{}", std::process::id()));
        let tools = Toolbox::below(&folder);
        std::fs::create_dir_all(tools.bin()).expect("temporary folder");
        std::fs::write(tools.bin().join("kubectl"), "").expect("temporary file");
        assert_eq!(tools.find("kubectl"), Some(folder.join("tools/bin/kubectl")));
        assert_eq!(tools.find("sh"), None, "sh is on PATH");
        std::fs::remove_dir_all(folder).expect("temporary folder");
    }

    #[test]
    fn tools_come_first_on_the_search_path() {
        let path = search_path();
        assert_eq!(std::env::split_paths(&path).next(), Some(Toolbox::own().bin()));
    }
}
