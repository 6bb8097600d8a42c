//! `zoneward complete`, for completion scripts: the nodes, namespaces or Services that could stand where the cursor is.
//!
//! The script passes the words of the command line up to the cursor, so that `--kubeconfig`, `-n` and `-f` count. What
//! cannot be said within a second, or at all, is not said: the script goes on with what it knows by itself.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Result;
use clap::{Command, CommandFactory};
use clock::Clock;
use kube::api::{Api, DynamicObject, ListParams};
use serde_json::Value;

use crate::cli::{Cli, InputArgs};
use cluster::ResourceKind;
use cluster::input::Documents;
use output::print_text;

/// A shell that waits longer for its user's key is felt to hang.
const PATIENCE: Duration = Duration::from_secs(1);
/// More names than this are not looked through.
const MOST: u32 = 500;

/// Prints the candidates, one in a line. Never an error: a shell has no place to show it.
pub fn run(words: &[String]) -> Result<bool> {
    if let Some(wanted) = Wanted::at_cursor(words, &Cli::command()) {
        let (sender, names) = mpsc::channel();
        std::thread::spawn(move || sender.send(wanted.candidates()));
        let names = names.recv_timeout(PATIENCE).unwrap_or_default();
        print_text(&names.iter().map(|name| format!("{name}\n")).collect::<String>())?;
    }
    Ok(true)
}

/// What the word at the cursor names, and where such names come from.
struct Wanted {
    kind: ResourceKind,
    /// What is there already.
    begun: String,
    input: InputArgs,
}

impl Wanted {
    /// Reads the words behind the program's name; the last one is at the cursor and may be empty.
    fn at_cursor(words: &[String], cli: &Command) -> Option<Self> {
        let words = joined(words);
        let (begun, before) = words.split_last()?;
        let mut command = cli;
        let mut input = InputArgs::default();
        // The flag whose value comes next.
        let mut flag: Option<String> = None;
        for word in before {
            if let Some(name) = flag.take() {
                note(&mut input, &name, word);
            } else if word.starts_with('-') {
                input.all_namespaces |= matches!(word.as_str(), "-A" | "--all-namespaces");
                match word.split_once('=') {
                    Some((name, value)) => note(&mut input, name, value),
                    None => flag = takes_value(command, word).then(|| word.clone()),
                }
            } else if let Some(below) = command.find_subcommand(word) {
                command = below;
            }
        }
        let (flag, begun) = match (flag, begun.split_once('=')) {
            (None, Some((name, value))) if name.starts_with('-') => (Some(name.to_owned()), value),
            (flag, _) => (flag, begun.as_str()),
        };
        let kind = match flag {
            Some(flag) => flag_kind(&flag)?,
            None if begun.starts_with('-') => return None,
            None => positional_kind(command)?,
        };
        Some(Self { kind, begun: begun.to_owned(), input })
    }

    fn candidates(&self) -> Vec<String> {
        let (prefix, _) = self.begun.split_once('/').map_or(("", ""), |(kind, name)| (kind, name));
        let is_kind = matches!(prefix, "svc" | "service" | "services") && self.kind == ResourceKind::Service;
        let shown = |name: String| if is_kind { format!("{prefix}/{name}") } else { name };
        let mut names: Vec<String> = self.names().unwrap_or_default().into_iter().map(shown).collect();
        names.retain(|name| name.starts_with(&self.begun));
        names.sort();
        names.dedup();
        names
    }

    fn names(&self) -> Result<Vec<String>> {
        if !self.input.files.is_empty() {
            let documents = Documents::read(&self.input)?;
            return Ok(documents.objects.iter().filter_map(|object| self.name_in(object)).collect());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.list_cluster())
    }

    /// The name that an object of a file stands for.
    fn name_in(&self, object: &Value) -> Option<String> {
        let metadata = &object["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap_or("default");
        let name = match self.kind {
            ResourceKind::Namespace if object["kind"] == "Service" => namespace,
            kind if object["kind"] == kind.as_str() => metadata["name"].as_str()?,
            _ => return None,
        };
        let wanted = self.input.namespace.as_deref().filter(|_| self.kind == ResourceKind::Service);
        wanted.is_none_or(|wanted| wanted == namespace).then(|| name.to_owned())
    }

    async fn list_cluster(&self) -> Result<Vec<String>> {
        let client = cluster::connect(&self.input.connection, &Clock::system()).await?;
        let resource = self.kind.resource();
        let namespace = self.input.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        let api: Api<DynamicObject> = match self.kind.is_namespaced() && !self.input.all_namespaces {
            true => Api::namespaced_with(client, &namespace, &resource),
            false => Api::all_with(client, &resource),
        };
        let list = api.list_metadata(&ListParams::default().limit(MOST)).await?;
        Ok(list.items.into_iter().filter_map(|object| object.metadata.name).collect())
    }
}

/// bash takes `--node=a` apart at the sign: put together again.
fn joined(words: &[String]) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    for word in words {
        match joined.last_mut() {
            Some(last) if word == "=" && last.starts_with('-') => last.push('='),
            Some(last) if last.starts_with('-') && last.ends_with('=') => last.push_str(word),
            _ => joined.push(word.clone()),
        }
    }
    joined
}

/// Whether a flag of the command is followed by its value.
fn takes_value(command: &Command, flag: &str) -> bool {
    let long = flag.strip_prefix("--");
    let short = flag.strip_prefix('-').and_then(|rest| rest.chars().next()).filter(|_| flag.len() == 2);
    let is_it = |arg: &&clap::Arg| match long {
        Some(long) => arg.get_long() == Some(long),
        None => arg.get_short().is_some() && arg.get_short() == short,
    };
    command.get_arguments().find(is_it).is_some_and(|arg| arg.get_action().takes_values())
}

/// Keeps what says where names come from.
fn note(input: &mut InputArgs, flag: &str, value: &str) {
    match flag {
        // Standard input is the terminal on which the line is being written.
        "-f" | "--filename" if value == "-" => {}
        "-f" | "--filename" => input.files.push(path(value)),
        "-n" | "--namespace" => input.namespace = Some(value.to_owned()),
        "--kubeconfig" => input.connection.kubeconfig = Some(path(value)),
        "--context" => input.connection.context = Some(value.to_owned()),
        "--api-socket" => input.connection.api_socket = Some(path(value)),
        _ => {}
    }
}

/// The shell has not replaced the tilde of a line that is still being written.
fn path(text: &str) -> PathBuf {
    match (text.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(text),
    }
}

fn flag_kind(flag: &str) -> Option<ResourceKind> {
    match flag {
        "--node" => Some(ResourceKind::Node),
        "-n" | "--namespace" => Some(ResourceKind::Namespace),
        "--from" | "--to" => Some(ResourceKind::Service),
        _ => None,
    }
}

/// What a command takes without a flag.
fn positional_kind(command: &Command) -> Option<ResourceKind> {
    matches!(command.get_name(), "select" | "what-if" | "expose").then_some(ResourceKind::Service)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(line: &str) -> Option<(ResourceKind, String, InputArgs)> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let found = Wanted::at_cursor(&words, &Cli::command())?;
        Some((found.kind, found.begun, found.input))
    }

    #[test]
    fn the_word_at_the_cursor_decides_what_is_looked_for() {
        for (line, kind, begun) in [
            ("trace select --node ", Some(ResourceKind::Node), ""),
            ("trace select --node node-", Some(ResourceKind::Node), "node-"),
            ("trace select --node=no", Some(ResourceKind::Node), "no"),
            ("trace select --node = no", Some(ResourceKind::Node), "no"),
            ("plan node -n sh", Some(ResourceKind::Namespace), "sh"),
            ("trace select --node a ca", Some(ResourceKind::Service), "ca"),
            ("simulate what-if -A svc/c", Some(ResourceKind::Service), "svc/c"),
            ("expose ", Some(ResourceKind::Service), ""),
            ("plan routes --from fr", Some(ResourceKind::Service), "fr"),
            ("plan slices ", None, ""),
            ("trace select --no", None, ""),
            ("plan node --config ", None, ""),
            ("trace packet --packet ", None, ""),
        ] {
            let found = wanted(line);
            assert_eq!(found.as_ref().map(|(kind, ..)| *kind), kind, "{line}");
            assert_eq!(found.map(|(_, begun, _)| begun).unwrap_or_default(), begun, "{line}");
        }
    }

    #[test]
    fn flags_before_the_cursor_say_where_names_come_from() {
        let (_, _, input) = wanted("trace select -n shop --kubeconfig=k.yaml -f a.yaml --node ").unwrap();
        assert_eq!(input.namespace.as_deref(), Some("shop"));
        assert_eq!(input.connection.kubeconfig, Some(PathBuf::from("k.yaml")));
        assert_eq!(input.files, [PathBuf::from("a.yaml")]);
    }
}
