//! `zoneward simulate capture`: a snapshot of a cluster, reduced to what planning reads and optionally anonymized.

mod anonymize;
mod reduce;

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{CaptureFormat, SimulateCapture};
use anonymize::Anonymizer;
use cluster::input::Documents;
use output::{count, notices_text, print_text};

pub(super) fn run(args: &SimulateCapture) -> Result<bool> {
    if let Some(path) = args.file.as_deref().filter(|path| !args.force && path.exists()) {
        bail!("{} already exists: use another name, or overwrite it with --force", path.display());
    }
    let documents = Documents::read(&args.input)?;
    documents.check_namespace(&args.input)?;
    let namespace = args.input.namespace.as_deref();
    let wanted = documents.objects.iter().filter(|object| is_selected(object, namespace));
    let mut objects: Vec<Value> = wanted.filter_map(reduce::reduced).collect();
    if args.hash_names {
        let salt = match &args.salt {
            Some(salt) => salt.as_bytes().to_vec(),
            None => random_salt()?,
        };
        Anonymizer::new(&salt, &objects).apply(&mut objects);
    }
    let number = objects.len();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let text = match args.format {
        CaptureFormat::Yaml => serde_saphyr::to_string(&list).context("writing YAML")?,
        CaptureFormat::Json => serde_json::to_string(&list).context("writing JSON")? + "\n",
    };
    match &args.file {
        None => print_text(&text)?,
        Some(path) => {
            // Readable only by its owner: it describes a cluster.
            let mut options = fs::OpenOptions::new();
            options.write(true).mode(0o600);
            match args.force {
                true => options.create(true).truncate(true),
                false => options.create_new(true),
            };
            let mut file = options.open(path).with_context(|| format!("writing {}", path.display()))?;
            file.write_all(text.as_bytes()).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    eprintln!("zoneward: {} captured", count(number, "object"));
    eprint!("{}", notices_text(&documents.notices).trim_start());
    Ok(documents.notices.is_empty())
}

/// Objects of the namespace, the Namespace itself, and cluster-scoped objects.
fn is_selected(object: &Value, namespace: Option<&str>) -> bool {
    let Some(wanted) = namespace else { return true };
    let metadata = &object["metadata"];
    match object["kind"].as_str() {
        Some("Namespace") => metadata["name"] == wanted,
        Some("Node") => true,
        _ => metadata["namespace"].as_str().unwrap_or("default") == wanted,
    }
}

fn random_salt() -> Result<Vec<u8>> {
    let mut salt = vec![0; 32];
    getrandom::fill(&mut salt).context("generating a salt: use --salt")?;
    Ok(salt)
}
