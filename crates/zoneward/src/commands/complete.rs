//! `zoneward complete`, for completion scripts: names of nodes, namespaces, Services or demo clients at the cursor.
//!
//! The script passes the words of the command line up to the cursor, so that `--kubeconfig`, `-n` and `-f` apply. On
//! errors and timeouts there are no candidates.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Result;
use clap::{Command, CommandFactory};
use clock::Clock;
use kube::api::{Api, DynamicObject, ListParams};
use serde_json::Value;

use crate::cli::{Cli, InputArgs};
use cluster::ObjectKind;
use cluster::input::Documents;
use output::print_text;

/// A longer wait would feel like a hanging shell.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of names to list.
const MAX_NAMES: u32 = 500;

/// Prints the candidates, one per line. Never fails: a shell cannot show errors.
pub(super) fn run(words: &[String]) -> Result<bool> {
    if let Some(completion) = Completion::at_cursor(words, &Cli::command()) {
        let (sender, names) = mpsc::channel();
        #[allow(clippy::disallowed_methods, reason = "abandoned on timeout, when the process exits")]
        std::thread::spawn(move || sender.send(completion.candidates()));
        let names = names.recv_timeout(TIMEOUT).unwrap_or_default();
        print_text(&names.iter().map(|name| format!("{name}\n")).collect::<String>())?;
    }
    Ok(true)
}

/// What the word at the cursor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Candidates {
    Objects(ObjectKind),
    /// Zones, nodes and clients of the demo.
    DemoClients,
}

/// A word to complete, and the source of its candidates.
struct Completion {
    candidates: Candidates,
    prefix: String,
    input: InputArgs,
}

impl Completion {
    /// Parses the words after the program name; the last one is at the cursor and may be empty.
    fn at_cursor(words: &[String], cli: &Command) -> Option<Self> {
        let words = joined(words);
        let (last, before) = words.split_last()?;
        let mut command = cli;
        let mut input = InputArgs::default();
        // The flag that expects a value.
        let mut flag: Option<String> = None;
        for word in before {
            if let Some(name) = flag.take() {
                record(&mut input, &name, word);
            } else if word.starts_with('-') {
                input.all_namespaces |= matches!(word.as_str(), "-A" | "--all-namespaces");
                match word.split_once('=') {
                    Some((name, value)) => record(&mut input, name, value),
                    None => flag = takes_value(command, word).then(|| word.clone()),
                }
            } else if let Some(below) = command.find_subcommand(word) {
                command = below;
            }
        }
        let (flag, prefix) = match (flag, last.split_once('=')) {
            (None, Some((name, value))) if name.starts_with('-') => (Some(name.to_owned()), value),
            (flag, _) => (flag, last.as_str()),
        };
        let candidates = match flag {
            Some(flag) => flag_candidates(command, &flag)?,
            None if prefix.starts_with('-') => return None,
            None => Candidates::Objects(positional_kind(command)?),
        };
        Some(Self { candidates, prefix: prefix.to_owned(), input })
    }

    fn candidates(&self) -> Vec<String> {
        let (kind, _) = self.prefix.split_once('/').unwrap_or_default();
        let is_service = self.candidates == Candidates::Objects(ObjectKind::Service);
        let is_kind = matches!(kind, "svc" | "service" | "services") && is_service;
        let with_kind = |name: String| if is_kind { format!("{kind}/{name}") } else { name };
        let mut names: Vec<String> = self.names().unwrap_or_default().into_iter().map(with_kind).collect();
        names.retain(|name| name.starts_with(&self.prefix));
        names.sort();
        names.dedup();
        names
    }

    fn names(&self) -> Result<Vec<String>> {
        let Candidates::Objects(kind) = self.candidates else {
            return Ok(demo::client_names());
        };
        if !self.input.files.is_empty() {
            let documents = Documents::read(&self.input)?;
            return Ok(documents.objects.iter().filter_map(|object| self.name_in(kind, object)).collect());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.list_cluster(kind))
    }

    /// The candidate that an object of a file provides.
    fn name_in(&self, kind: ObjectKind, object: &Value) -> Option<String> {
        let metadata = &object["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap_or("default");
        let name = match kind {
            ObjectKind::Namespace if object["kind"] == "Service" => namespace,
            kind if object["kind"] == kind.as_str() => metadata["name"].as_str()?,
            _ => return None,
        };
        let wanted = self.input.namespace.as_deref().filter(|_| kind == ObjectKind::Service);
        wanted.is_none_or(|wanted| wanted == namespace).then(|| name.to_owned())
    }

    async fn list_cluster(&self, kind: ObjectKind) -> Result<Vec<String>> {
        let client = cluster::connect(&self.input.connection, &Clock::system()).await?;
        let resource = kind.resource();
        let namespace = self.input.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        let api: Api<DynamicObject> = match kind.is_namespaced() && !self.input.all_namespaces {
            true => Api::namespaced_with(client, &namespace, &resource),
            false => Api::all_with(client, &resource),
        };
        let list = api.list_metadata(&ListParams::default().limit(MAX_NAMES)).await?;
        Ok(list.items.into_iter().filter_map(|object| object.metadata.name).collect())
    }
}

/// bash splits `--node=a` at the sign.
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

/// Records flags that select the source of names.
fn record(input: &mut InputArgs, flag: &str, value: &str) {
    match flag {
        // Standard input is the terminal.
        "-f" | "--filename" if value == "-" => {}
        "-f" | "--filename" => input.files.push(path(value)),
        "-n" | "--namespace" => input.namespace = Some(value.to_owned()),
        "--kubeconfig" => input.connection.kubeconfig = Some(path(value)),
        "--context" => input.connection.context = Some(value.to_owned()),
        "--api-socket" => input.connection.api_socket = Some(path(value)),
        _ => {}
    }
}

/// The shell has not expanded the tilde yet.
fn path(text: &str) -> PathBuf {
    match (text.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(text),
    }
}

fn flag_candidates(command: &Command, flag: &str) -> Option<Candidates> {
    let kind = match flag {
        "--from" if command.get_name() == "traffic" => return Some(Candidates::DemoClients),
        // A mode of kube-proxy.
        "--from" if command.get_name() == "check" => return None,
        "--node" => ObjectKind::Node,
        "-n" | "--namespace" => ObjectKind::Namespace,
        "--from" | "--to" => ObjectKind::Service,
        _ => return None,
    };
    Some(Candidates::Objects(kind))
}

fn positional_kind(command: &Command) -> Option<ObjectKind> {
    matches!(command.get_name(), "select" | "what-if" | "expose" | "status" | "top" | "observe")
        .then_some(ObjectKind::Service)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(line: &str) -> Option<Completion> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Completion::at_cursor(&words, &Cli::command())
    }

    #[test]
    fn the_word_at_the_cursor_decides_what_is_looked_for() {
        for (line, kind, prefix) in [
            ("trace select --node ", Some(ObjectKind::Node), ""),
            ("trace select --node node-", Some(ObjectKind::Node), "node-"),
            ("trace select --node=no", Some(ObjectKind::Node), "no"),
            ("trace select --node = no", Some(ObjectKind::Node), "no"),
            ("plan node -n sh", Some(ObjectKind::Namespace), "sh"),
            ("trace select --node a ca", Some(ObjectKind::Service), "ca"),
            ("simulate what-if -A svc/c", Some(ObjectKind::Service), "svc/c"),
            ("expose ", Some(ObjectKind::Service), ""),
            ("plan routes --from fr", Some(ObjectKind::Service), "fr"),
            ("plan slices ", None, ""),
            ("trace select --no", None, ""),
            ("plan node --config ", None, ""),
            ("trace packet --packet ", None, ""),
        ] {
            let found = completion(line);
            assert_eq!(found.as_ref().map(|found| found.candidates), kind.map(Candidates::Objects), "{line}");
            assert_eq!(found.map(|found| found.prefix).unwrap_or_default(), prefix, "{line}");
        }
    }

    #[test]
    fn demo_traffic_completes_zones_nodes_and_clients_of_the_demo() {
        let from =
            |prefix: &str| completion(&format!("demo traffic web --from {prefix}")).unwrap().candidates();
        assert_eq!(from("zone-"), ["zone-a", "zone-b", "zone-c"]);
        assert_eq!(from("client-c"), ["client-c1", "client-c2"]);
        assert!(from("node-b1").contains(&"node-b1".to_owned()) && from("fr").is_empty());
    }

    #[test]
    fn flags_before_the_cursor_say_where_names_come_from() {
        let input = completion("trace select -n shop --kubeconfig=k.yaml -f a.yaml --node ").unwrap().input;
        assert_eq!(input.namespace.as_deref(), Some("shop"));
        assert_eq!(input.connection.kubeconfig, Some(PathBuf::from("k.yaml")));
        assert_eq!(input.files, [PathBuf::from("a.yaml")]);
    }
}
