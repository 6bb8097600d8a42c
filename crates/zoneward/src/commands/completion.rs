//! `zoneward completion`: completion scripts. Commands and flags are generated from the command line itself; nodes,
//! namespaces and Services are asked of `zoneward complete`, which knows the cluster.

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::cli::Cli;
use output::print_text;

/// Prints the script for a shell.
pub(super) fn run(shell: Shell) -> Result<bool> {
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "zoneward", &mut script);
    print_text(&(String::from_utf8_lossy(&script) + names(shell)))?;
    Ok(true)
}

/// The part of the script that asks for names; what gives none is left to the generated part.
fn names(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => BASH,
        Shell::Zsh => ZSH,
        Shell::Fish => FISH,
        _ => "",
    }
}

const BASH: &str = r#"
_zoneward_names() {
    local IFS=$'\n'
    COMPREPLY=( $("$1" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null) )
    [[ ${#COMPREPLY[@]} -gt 0 ]] || { unset IFS; _zoneward "$@"; }
}
complete -F _zoneward_names -o nosort -o bashdefault -o default zoneward 2>/dev/null ||
    complete -F _zoneward_names -o bashdefault -o default zoneward
"#;

const ZSH: &str = r#"
_zoneward_names() {
    local -a names
    names=(${(f)"$("${words[1]}" complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ${#names} )); then
        compset -P '*='
        compadd -a names
    else
        _zoneward "$@"
    fi
}
compdef _zoneward_names zoneward
"#;

const FISH: &str = r#"
complete -c zoneward -a '(zoneward complete -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
"#;
