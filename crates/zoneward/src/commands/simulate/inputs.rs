//! Inputs of the simulator from a name or a file: what is bad is told and counted, and the rest is scored.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use sim::run::Source;
use sim::{Dataset, Input, Rejection, Zone};

/// What is to be scored.
pub(super) enum Inputs {
    /// A built-in set.
    Set(Dataset),
    /// Out of a file.
    Read(Vec<Input>, Vec<Rejection>),
}

impl Inputs {
    /// A set by its name, else a file.
    pub(super) fn read(path: &Path) -> Result<Self> {
        if let Some(set) = path.to_str().and_then(|name| name.parse().ok()) {
            return Ok(Self::Set(set));
        }
        let shown = path.display();
        let text = std::fs::read_to_string(path).with_context(|| {
            format!("--input {shown}: neither small, medium, large nor representative, nor a file that can be read")
        })?;
        let (inputs, rejections) = match path.extension().and_then(|e| e.to_str()) {
            Some("json") => from_json(&text).with_context(|| format!("reading {shown}"))?,
            Some("csv") => sim::input::csv::parse(&text),
            _ => bail!("--input {shown}: name the file .csv or .json, so that it is clear how to read it"),
        };
        Ok(Self::Read(inputs, rejections))
    }

    pub(super) fn source(&self) -> Source<'_> {
        match self {
            Self::Set(set) => Source::Set(*set),
            Self::Read(inputs, _) => Source::List(inputs),
        }
    }

    pub(super) fn rejections(&self) -> &[Rejection] {
        match self {
            Self::Set(_) => &[],
            Self::Read(_, rejections) => rejections,
        }
    }
}

/// `{"inputs": [{"id", "zones": [{"name", "nodes", "endpoints"}...]}...]}`; other fields are passed over.
fn from_json(text: &str) -> Result<(Vec<Input>, Vec<Rejection>)> {
    let value: Value = serde_json::from_str(text)?;
    let Some(list) = value["inputs"].as_array() else {
        bail!("there is no list \"inputs\": write {{\"inputs\": [{{\"id\", \"zones\": [...]}}...]}}");
    };
    let (mut inputs, mut rejections) = (Vec::new(), Vec::new());
    for (at, entry) in list.iter().enumerate() {
        match input(entry, at) {
            Ok(input) => inputs.push(input),
            Err(rejection) => rejections.push(rejection),
        }
    }
    Ok((inputs, rejections))
}

fn input(entry: &Value, at: usize) -> Result<Input, Rejection> {
    let id = match &entry["id"] {
        Value::String(id) => id.clone(),
        Value::Null => format!("inputs[{at}]"),
        other => other.to_string(),
    };
    let zones = entry["zones"].as_array().map_or(&[][..], Vec::as_slice);
    let zones: Result<Vec<Zone>, String> =
        zones.iter().enumerate().map(|(z, zone)| read_zone(z, zone)).collect();
    match zones {
        Ok(zones) => Input::new(&id, zones),
        Err(reason) => Err(Rejection { id, at: None, reason }),
    }
}

fn read_zone(at: usize, zone: &Value) -> Result<Zone, String> {
    let count = |field: &str| {
        let found = zone[field].as_u64();
        found.ok_or_else(|| format!("zones[{at}].{field} is {}: write a whole number from 0 on", zone[field]))
    };
    let Some(name) = zone["name"].as_str() else { return Err(format!("zones[{at}].name is missing")) };
    Ok(Zone { name: name.to_owned(), nodes: count("nodes")?, endpoints: count("endpoints")? })
}
