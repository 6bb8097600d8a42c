//! The kind ZoneDrain as the API stores it.

use std::fmt;
use std::time::Duration;

use model::duration::GoDuration;
use model::{Name, Timestamp};
use serde_json::Value;

use crate::capacity::DrainWindow;

/// The default of `spec.over`.
const DEFAULT_OVER: Duration = Duration::from_secs(300);
const MAX_OVER: Duration = Duration::from_secs(86_400);

/// A ZoneDrain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneDrain {
    pub name: Name,
    pub zone: Name,
    pub window: DrainWindow,
    /// Checked and reported, and nothing is moved.
    pub dry_run: bool,
    /// Accepted although the other zones have not proved that they can take it.
    pub force: bool,
    /// What the status says: `None` before a controller has decided on this generation.
    pub accepted: Option<bool>,
}

/// Why a ZoneDrain cannot be used: its field, and what is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainSpecError {
    pub field: &'static str,
    pub problem: String,
}

impl fmt::Display for DrainSpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl std::error::Error for DrainSpecError {}

impl ZoneDrain {
    /// Starts when the object was created.
    pub fn parse(object: &Value) -> Result<Self, DrainSpecError> {
        let (metadata, spec) = (&object["metadata"], &object["spec"]);
        let (zone, until, over, percent) = (zone(spec)?, until(spec)?, over(spec)?, percent(spec)?);
        let start = seconds(&metadata["creationTimestamp"]).ok_or_else(|| {
            error("metadata.creationTimestamp", "the API sets it when the object is created")
        })?;
        let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        let is_current = |condition: &&Value| condition["observedGeneration"] == metadata["generation"];
        let accepted = conditions.into_iter().find(|condition| condition["type"] == "Accepted");
        let accepted = accepted.filter(is_current);
        Ok(Self {
            name: metadata["name"].as_str().unwrap_or_default().into(),
            zone: zone.into(),
            window: DrainWindow { percent, start, over_seconds: over.as_secs(), until },
            dry_run: spec["dryRun"].as_bool().unwrap_or(false),
            force: spec["force"].as_bool().unwrap_or(false),
            accepted: accepted.map(|condition| condition["status"] == "True"),
        })
    }

    /// All errors of the spec, for validation before there is a creation time.
    pub fn spec_errors(object: &Value) -> Vec<DrainSpecError> {
        let spec = &object["spec"];
        let fields = [zone(spec).err(), until(spec).err(), over(spec).err(), percent(spec).err()];
        let flags = [("spec.dryRun", &spec["dryRun"]), ("spec.force", &spec["force"])];
        let is_wrong = |value: &Value| !value.is_null() && !value.is_boolean();
        let flags = flags.into_iter().filter(|(_, value)| is_wrong(value));
        let flags = flags.map(|(field, _)| error(field, "expected true or false"));
        fields.into_iter().flatten().chain(flags).collect()
    }

    pub fn is_over(&self, now: Timestamp) -> bool {
        now.unix_seconds() >= self.window.until
    }
}

fn error(field: &'static str, problem: &str) -> DrainSpecError {
    DrainSpecError { field, problem: problem.to_owned() }
}

fn seconds(value: &Value) -> Option<i64> {
    value.as_str().and_then(Timestamp::parse).map(Timestamp::unix_seconds)
}

fn zone(spec: &Value) -> Result<&str, DrainSpecError> {
    match spec["zone"].as_str() {
        None | Some("") => Err(error("spec.zone", "expected the name of a zone")),
        Some(zone) if zone.contains([',', '=']) => {
            Err(error("spec.zone", "a zone has no comma and no equals sign in its name"))
        }
        Some(zone) => Ok(zone),
    }
}

fn until(spec: &Value) -> Result<i64, DrainSpecError> {
    let problem = "expected a time such as 2026-11-17T12:00:00Z, when the drain ends by itself";
    seconds(&spec["expiresAt"]).ok_or_else(|| error("spec.expiresAt", problem))
}

fn over(spec: &Value) -> Result<Duration, DrainSpecError> {
    if spec["over"].is_null() {
        return Ok(DEFAULT_OVER);
    }
    let over = spec["over"].as_str().and_then(|text| text.parse::<GoDuration>().ok()).map(|over| over.0);
    let over = over.filter(|over| *over <= MAX_OVER);
    over.ok_or_else(|| error("spec.over", "expected a duration up to 24h, such as 5m"))
}

fn percent(spec: &Value) -> Result<u32, DrainSpecError> {
    if spec["percent"].is_null() {
        return Ok(100);
    }
    let percent = spec["percent"].as_u64().filter(|percent| (1..=100).contains(percent));
    let percent = percent.and_then(|percent| u32::try_from(percent).ok());
    percent.ok_or_else(|| error("spec.percent", "expected a number from 1 to 100"))
}
