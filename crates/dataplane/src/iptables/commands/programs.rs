//! The installed programs of iptables, and which of the two flavours a node uses.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use model::Family;

use super::{IptablesCommandError, IptablesCommands, IptablesFlavour};
use crate::iptables::names::IptablesTableName;

/// Exit status of iptables: the lock is held, or memory is short.
const RESOURCE_PROBLEM: i32 = 4;
/// Attempts while another program holds the lock; each waits [`LOCK_SECONDS`].
const ATTEMPTS: usize = 3;
const LOCK_SECONDS: &str = "5";
/// Where distributions keep the programs, besides PATH.
const MORE_FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"];
/// Chains of the kubelet by which a flavour is recognised.
const KUBELET_CHAINS: [&str; 2] = [":KUBE-IPTABLES-HINT ", ":KUBE-KUBELET-CANARY "];

/// The programs of one flavour.
#[derive(Clone, Debug)]
pub struct IptablesPrograms {
    flavour: IptablesFlavour,
    folders: Vec<PathBuf>,
    families: Vec<Family>,
}

impl IptablesPrograms {
    /// The programs of PATH, of the flavour that this node uses.
    pub fn find() -> Result<Self, IptablesCommandError> {
        Self::detect(folders())
    }

    /// The programs in these folders, of the flavour that this node uses.
    pub fn detect(folders: Vec<PathBuf>) -> Result<Self, IptablesCommandError> {
        Self::of(detect(&folders), folders)
    }

    /// The programs of PATH, of this flavour.
    pub fn find_flavour(flavour: IptablesFlavour) -> Result<Self, IptablesCommandError> {
        Self::of(flavour, folders())
    }

    /// The programs of a flavour in these folders.
    pub fn of(flavour: IptablesFlavour, folders: Vec<PathBuf>) -> Result<Self, IptablesCommandError> {
        let mut programs = Self { flavour, folders, families: Vec::new() };
        for family in [Family::V4, Family::V6] {
            // A kernel without IPv6 has the program and no tables.
            let works = programs.program(family, "-restore").is_some()
                && programs.save(family, IptablesTableName::Nat).is_ok();
            programs.families.extend(works.then_some(family));
        }
        if programs.families.is_empty() {
            let name = programs.name(Family::V4, "-restore");
            let why = match programs.program(Family::V4, "-save") {
                Some(_) => {
                    programs.save(Family::V4, IptablesTableName::Nat).err().map(|error| error.to_string())
                }
                None => None,
            };
            let why = why.unwrap_or_else(|| "it is not installed".to_owned());
            return Err(IptablesCommandError::Failed(format!(
                "mode iptables needs the program {name}: {why}; install iptables, or use mode nftables, which needs no program"
            )));
        }
        Ok(programs)
    }

    fn name(&self, family: Family, suffix: &str) -> String {
        format!("{}-{}{suffix}", base(family), self.flavour.as_str())
    }

    fn program(&self, family: Family, suffix: &str) -> Option<PathBuf> {
        find(&self.folders, &self.name(family, suffix)).or_else(|| {
            // Without variants there is one flavour.
            let has_other = find(&self.folders, &format!("{}-nft", base(family))).is_some();
            find(&self.folders, &format!("{}{suffix}", base(family))).filter(|_| !has_other)
        })
    }

    fn run(
        &self,
        family: Family,
        suffix: &str,
        words: &[&str],
        input: &str,
    ) -> Result<Output, IptablesCommandError> {
        let name = self.name(family, suffix);
        let program = self.program(family, suffix);
        let program =
            program.ok_or_else(|| IptablesCommandError::Failed(format!("{name} is not installed")))?;
        run(&program, words, input).map_err(|error| IptablesCommandError::Failed(format!("{name}: {error}")))
    }
}

impl IptablesCommands for IptablesPrograms {
    fn flavour(&self) -> IptablesFlavour {
        self.flavour
    }

    fn families(&self) -> &[Family] {
        &self.families
    }

    fn save(&mut self, family: Family, table: IptablesTableName) -> Result<String, IptablesCommandError> {
        let output = self.run(family, "-save", &["-t", table.as_str()], "")?;
        match output.status {
            Some(0) => Ok(output.stdout),
            _ => Err(IptablesCommandError::Failed(output.failure(&self.name(family, "-save")))),
        }
    }

    fn restore(&mut self, family: Family, input: &str) -> Result<(), IptablesCommandError> {
        let words = ["-w", LOCK_SECONDS, "--noflush", "--counters"];
        let mut locked = String::new();
        for _ in 0..ATTEMPTS {
            let output = self.run(family, "-restore", &words, input)?;
            let failure = || output.failure(&self.name(family, "-restore"));
            match output.status {
                Some(0) => return Ok(()),
                Some(RESOURCE_PROBLEM) => locked = failure(),
                _ => return Err(IptablesCommandError::Refused(failure())),
            }
        }
        Err(IptablesCommandError::Locked(locked))
    }

    fn has_chain(
        &mut self,
        family: Family,
        table: IptablesTableName,
        chain: &str,
    ) -> Result<bool, IptablesCommandError> {
        let output = self.run(family, "", &["-w", LOCK_SECONDS, "-t", table.as_str(), "-S", chain], "")?;
        match output.status {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            Some(RESOURCE_PROBLEM) => {
                Err(IptablesCommandError::Locked(output.failure(&self.name(family, ""))))
            }
            _ => Err(IptablesCommandError::Failed(output.failure(&self.name(family, "")))),
        }
    }
}

fn folders() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(MORE_FOLDERS.map(PathBuf::from)).collect()
}

fn base(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

/// As iptables-wrappers does: the flavour in which the kubelet has its chains, else nft. Legacy is never given a table:
/// that would create it.
fn detect(folders: &[PathBuf]) -> IptablesFlavour {
    let has_kubelet = |program: &str, words: &[&str]| {
        let saved = find(folders, program).and_then(|program| run(&program, words, "").ok());
        saved.is_some_and(|saved| {
            saved.stdout.lines().any(|line| KUBELET_CHAINS.iter().any(|chain| line.starts_with(chain)))
        })
    };
    let any = |flavour: &str, words: &[&str]| {
        ["iptables", "ip6tables"].iter().any(|base| has_kubelet(&format!("{base}-{flavour}-save"), words))
    };
    if any("nft", &["-t", "mangle"]) {
        return IptablesFlavour::Nft;
    }
    if any("legacy", &[]) {
        return IptablesFlavour::Legacy;
    }
    if find(folders, "iptables-nft").is_some() {
        return IptablesFlavour::Nft;
    }
    let version = find(folders, "iptables").and_then(|program| run(&program, &["--version"], "").ok());
    let is_nft = version.is_none_or(|version| version.stdout.contains("nf_tables"));
    let has_legacy =
        !is_nft || find(folders, "iptables").is_none() && find(folders, "iptables-legacy").is_some();
    if has_legacy { IptablesFlavour::Legacy } else { IptablesFlavour::Nft }
}

fn find(folders: &[PathBuf], program: &str) -> Option<PathBuf> {
    folders.iter().map(|folder| folder.join(program)).find(|file| file.is_file())
}

struct Output {
    /// `None` after a signal.
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Output {
    fn failure(&self, program: &str) -> String {
        match self.stderr.trim() {
            "" => format!("{program} failed with status {:?}", self.status),
            text => format!("{program}: {text}"),
        }
    }
}

fn run(program: &Path, words: &[&str], input: &str) -> std::io::Result<Output> {
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends without reading tells why on its own. Its output is short until it has read everything.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    Ok(Output {
        status: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
