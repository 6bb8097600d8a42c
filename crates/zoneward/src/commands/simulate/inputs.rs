//! Inputs of the simulator: a data set or a file. Malformed inputs are reported, and the rest is scored.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use sim::scoring::InputSource;
use sim::{Dataset, InputError, SimulationInput, Zone};

pub(super) enum Inputs {
    Set(Dataset),
    File(Vec<SimulationInput>, Vec<InputError>),
}

impl Inputs {
    pub(super) fn read(path: &Path) -> Result<Self> {
        if let Some(set) = path.to_str().and_then(|name| name.parse().ok()) {
            return Ok(Self::Set(set));
        }
        let shown = path.display();
        let text = std::fs::read_to_string(path).with_context(|| {
            format!("--input {shown}: neither small, medium, large nor representative, nor a readable file")
        })?;
        let (inputs, errors) = match path.extension().and_then(|e| e.to_str()) {
            Some("json") => from_json(&text).with_context(|| format!("reading {shown}"))?,
            Some("csv") => sim::input::csv::parse(&text),
            _ => bail!("--input {shown}: the extension must be .csv or .json"),
        };
        Ok(Self::File(inputs, errors))
    }

    pub(super) fn source(&self) -> InputSource<'_> {
        match self {
            Self::Set(set) => InputSource::Set(*set),
            Self::File(inputs, _) => InputSource::List(inputs),
        }
    }

    pub(super) fn errors(&self) -> &[InputError] {
        match self {
            Self::Set(_) => &[],
            Self::File(_, errors) => errors,
        }
    }
}

/// `{"inputs": [{"id", "zones": [{"name", "nodes", "endpoints"}...]}...]}`; other fields are ignored.
fn from_json(text: &str) -> Result<(Vec<SimulationInput>, Vec<InputError>)> {
    let value: Value = serde_json::from_str(text)?;
    let Some(list) = value["inputs"].as_array() else {
        bail!("no list \"inputs\": expected {{\"inputs\": [{{\"id\", \"zones\": [...]}}...]}}");
    };
    let (mut inputs, mut errors) = (Vec::new(), Vec::new());
    for (at, entry) in list.iter().enumerate() {
        match input(entry, at) {
            Ok(input) => inputs.push(input),
            Err(error) => errors.push(error),
        }
    }
    Ok((inputs, errors))
}

fn input(entry: &Value, at: usize) -> Result<SimulationInput, InputError> {
    let id = match &entry["id"] {
        Value::String(id) => id.clone(),
        Value::Null => format!("inputs[{at}]"),
        other => other.to_string(),
    };
    let zones = entry["zones"].as_array().map_or(&[][..], Vec::as_slice);
    let zones: Result<Vec<Zone>, String> =
        zones.iter().enumerate().map(|(z, zone)| read_zone(z, zone)).collect();
    match zones {
        Ok(zones) => SimulationInput::new(&id, zones),
        Err(reason) => Err(InputError { id, at: None, reason }),
    }
}

fn read_zone(at: usize, zone: &Value) -> Result<Zone, String> {
    let count = |field: &str| {
        let found = zone[field].as_u64();
        found.ok_or_else(|| {
            format!("zones[{at}].{field} is {}: expected a non-negative whole number", zone[field])
        })
    };
    let Some(name) = zone["name"].as_str() else { return Err(format!("zones[{at}].name is missing")) };
    Ok(Zone { name: name.into(), nodes: count("nodes")?, endpoints: count("endpoints")? })
}
