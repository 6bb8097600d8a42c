//! ZoneDrains: watched, decided with the slices' state, and their status written while leading.
//!
//! ```text
//! watch -> DrainReconciler -> Planner::drains -> slices of all Services
//!   ^             |
//!   +--- DrainStatusWriter
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::{InformerEvent, ObjectChange, ObjectKind, WatchCache, WatchedObject, api_outage};
use insight::ledger::{LedgerDemand, TrafficOwner};
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use model::{Name, ObjectKey, Timestamp};
use plan::drain::{DrainVerdict, DrainedService, ServiceLoad, ZoneDrain, ZoneDrains, check, is_refused};
use plan::work_queue::MonotonicTime;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use super::demand_loop::{DemandReconciler, ready_by_zone};
use super::slice_reconciler::SliceReconciler;
use insight::status_board::LedgerView;

/// Interval between decisions while there are ZoneDrains: steps, expiry and measured traffic follow the time.
const INTERVAL: Duration = Duration::from_secs(3);
/// Interval between statuses that differ in measured rates alone: nodes report at different times.
const RATES_INTERVAL: Duration = Duration::from_secs(60);
/// Services in a status; the condition counts all.
const MAX_SERVICES: usize = 50;
/// Names in a message.
const MAX_NAMES: usize = 5;

/// All ZoneDrains as watched, and when to decide on them.
#[derive(Debug, Default)]
pub(crate) struct DrainReconciler {
    /// Reads lists and events of ZoneDrains.
    cache: WatchCache,
    objects: BTreeMap<Name, Value>,
    /// Before that, absence of an object means nothing.
    is_listed: bool,
    is_changed: bool,
    due: MonotonicTime,
    rates_due: MonotonicTime,
}

impl DrainReconciler {
    pub(crate) fn observe(&mut self, event: InformerEvent) {
        for change in self.cache.read(event) {
            match change {
                ObjectChange::Other(_, object) => self.applied(&object),
                ObjectChange::Deleted(_, key) | ObjectChange::Unreadable(_, key, _) => {
                    self.is_changed |= self.objects.remove(&key.name).is_some();
                }
                ObjectChange::Listed(_, keys) => self.listed(&keys),
                ObjectChange::Applied(..) | ObjectChange::Failed(..) => {}
            }
        }
    }

    fn applied(&mut self, object: &WatchedObject) {
        match serde_json::from_str(object.text()) {
            Ok(value) => {
                self.is_changed = true;
                self.objects.insert(Name::new(object.name()), value);
            }
            Err(error) => debug!(zone_drain = object.name(), %error, "failed to parse a ZoneDrain"),
        }
    }

    /// A list is complete: others were deleted. Drains stay in force while it is read.
    fn listed(&mut self, keys: &BTreeSet<ObjectKey>) {
        self.objects.retain(|name, _| keys.iter().any(|key| key.name == *name));
        (self.is_listed, self.is_changed) = (true, true);
    }

    /// A new leader decides at once.
    pub(crate) fn decide_again(&mut self) {
        self.is_changed = true;
    }

    fn take_due(&mut self, now: MonotonicTime) -> bool {
        let is_due = self.is_changed || !self.objects.is_empty() && self.due <= now;
        if !self.is_listed || !is_due {
            return false;
        }
        self.is_changed = false;
        self.due = now.after(INTERVAL);
        true
    }
}

/// A status to write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DrainStatus {
    pub name: Name,
    /// Of the object that was decided on.
    pub uid: Value,
    pub status: Value,
}

impl DrainStatus {
    /// Another ZoneDrain of the same name refuses it with 409: it would take over a decision on another zone.
    fn patch(&self) -> Value {
        json!({"metadata": {"uid": self.uid}, "status": self.status})
    }
}

/// Writes statuses until it is dropped.
#[derive(Debug)]
pub(crate) struct DrainStatusWriter {
    statuses: mpsc::Sender<Vec<DrainStatus>>,
    _task: JoinSet<()>,
}

impl DrainStatusWriter {
    pub(crate) fn start(client: Client) -> Self {
        let (statuses, receiver) = mpsc::channel(1);
        let mut task = JoinSet::new();
        task.spawn(write_statuses(client, receiver));
        Self { statuses, _task: task }
    }

    /// Writes them, unless others are being written: the next decision has them again.
    pub(crate) fn write(&self, statuses: Vec<DrainStatus>) {
        if !statuses.is_empty() {
            let _ = self.statuses.try_send(statuses);
        }
    }
}

async fn write_statuses(client: Client, mut statuses: mpsc::Receiver<Vec<DrainStatus>>) {
    let api: Api<DynamicObject> = Api::all_with(client, &ObjectKind::ZoneDrain.resource());
    while let Some(statuses) = statuses.recv().await {
        for status in statuses {
            let (name, patch) = (&status.name, Patch::Merge(status.patch()));
            match api.patch_status(name, &PatchParams::default(), &patch).await {
                // It was deleted meanwhile, and maybe created again.
                Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
                Err(error) if !api_outage::is_api_unreachable() => {
                    warn!(zone_drain = %name, %error, "failed to write the status of a ZoneDrain; retrying");
                }
                _ => {}
            }
        }
    }
}

impl DrainReconciler {
    /// Decides which drains are in force after a change and at intervals, and returns statuses to write.
    pub(crate) fn decide(
        &mut self,
        slices: &mut SliceReconciler,
        demands: &DemandReconciler,
        traffic: &LedgerView,
        now: MonotonicTime,
        time: Timestamp,
    ) -> Vec<DrainStatus> {
        if !slices.plans() || !self.take_due(now) {
            return Vec::new();
        }
        let demand = if self.objects.is_empty() { None } else { traffic.demand() };
        let facts = DrainFacts { slices, demands, demand: demand.as_ref(), time };
        let mut in_force = Vec::new();
        let mut statuses = Vec::new();
        let (are_rates_due, mut has_new_rates) = (self.rates_due <= now, false);
        for (name, object) in &self.objects {
            let status = match ZoneDrain::parse(object) {
                Ok(drain) => {
                    let (status, is_in_force) = facts.decide(&drain, object);
                    if is_in_force {
                        in_force.push((drain.zone, drain.window));
                    }
                    status
                }
                Err(error) => status(object, false, "Invalid", error.to_string(), time),
            };
            let is_decided = is_same_decision(&object["status"], &status);
            let is_new_rate = is_decided && are_rates_due && !has_near_rates(&object["status"], &status);
            has_new_rates |= is_new_rate;
            if !is_decided || is_new_rate {
                let uid = object["metadata"]["uid"].clone();
                statuses.push(DrainStatus { name: name.clone(), uid, status });
            }
        }
        if has_new_rates {
            self.rates_due = now.after(RATES_INTERVAL);
        }
        let drains = Some(ZoneDrains::new(in_force));
        if slices.planner().drains != drains {
            let zones = drains.as_ref().map_or(0, |drains| drains.zones().len());
            info!(zones, "zones that are drained changed");
            slices.set_drains(drains, now);
        }
        statuses
    }
}

/// What a decision depends on.
struct DrainFacts<'a> {
    slices: &'a SliceReconciler,
    demands: &'a DemandReconciler,
    demand: Option<&'a LedgerDemand>,
    time: Timestamp,
}

impl DrainFacts<'_> {
    /// The status, and whether the drain is in force.
    fn decide(&self, drain: &ZoneDrain, object: &Value) -> (Value, bool) {
        let time = self.time;
        if drain.is_over(time) {
            let message = "spec.expiresAt has passed: traffic is as before";
            return (status(object, false, "Expired", message.to_owned(), time), false);
        }
        // A rehearsal reports what a drain would break.
        let services = self.check_services(&drain.zone, 100);
        let is_possible = || match drain.window.percent {
            100 => !is_refused(&services),
            percent => !is_refused(&self.check_services(&drain.zone, percent)),
        };
        // A decision stands: a load that grows while a zone is drained does not return traffic by itself.
        let is_accepted = drain.accepted.unwrap_or_else(|| drain.force || is_possible());
        let (reason, message) = match is_accepted {
            true => ("Accepted", accepted_message(drain, &services)),
            false => ("NotEnoughCapacity", refused_message(&services)),
        };
        let mut status = status(object, is_accepted, reason, message, time);
        let moved = if is_accepted && !drain.dry_run { drain.window.share_at(time).0 / 10 } else { 0 };
        status["movedPercent"] = moved.into();
        status["services"] = services.iter().take(MAX_SERVICES).map(service_status).collect();
        (status, is_accepted && !drain.dry_run)
    }

    fn check_services(&self, zone: &Name, percent: u32) -> Vec<DrainedService> {
        let snapshot = self.slices.snapshot();
        let rows: BTreeMap<&TrafficOwner, &[insight::ledger::ZoneDemandRow]> = self
            .demand
            .into_iter()
            .flat_map(|demand| &demand.services)
            .map(|service| (&service.owner, service.zones.as_slice()))
            .collect();
        let checked = snapshot.services().filter(|(service, _)| plan::select::not_proxied(service).is_none());
        let checked = checked.filter_map(|(service, slices)| {
            let mut rate_by_target: BTreeMap<Name, f64> = BTreeMap::new();
            let owner = TrafficOwner::from(&service.key);
            let rows = rows.get(&owner).copied().unwrap_or_default();
            for (to, rate) in rows.iter().flat_map(|row| &row.rate_by_target) {
                *rate_by_target.entry(Name::new(to)).or_default() += rate;
            }
            let load = ServiceLoad {
                service,
                mechanism: self.slices.mechanism(&service.key),
                capacity_by_zone: ready_by_zone(slices, false).0,
                rate_by_target,
                proved: self.demands.proved(&service.key),
            };
            check(&load, zone, percent)
        });
        checked.collect()
    }
}

fn status(object: &Value, is_accepted: bool, reason: &str, message: String, time: Timestamp) -> Value {
    let word = if is_accepted { "True" } else { "False" };
    let known = object["status"]["conditions"].as_array().into_iter().flatten();
    let known =
        known.into_iter().find(|condition| condition["type"] == "Accepted" && condition["status"] == word);
    let since = known.map_or_else(
        || json!(Timestamp::from_seconds(time.unix_seconds()).to_string()),
        |condition| condition["lastTransitionTime"].clone(),
    );
    json!({
        "observedGeneration": object["metadata"]["generation"],
        "conditions": [{"type": "Accepted", "status": word, "reason": reason, "message": message,
            "lastTransitionTime": since, "observedGeneration": object["metadata"]["generation"]}],
        "movedPercent": 0,
        "services": [],
    })
}

fn is_same_decision(stored: &Value, new: &Value) -> bool {
    let words = |status: &Value| {
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let conditions = conditions.map(|c| (c["status"].clone(), c["reason"].clone())).collect::<Vec<_>>();
        let services = status["services"].as_array().into_iter().flatten();
        let verdicts = services.map(|s| (s["namespace"].clone(), s["name"].clone(), s["verdict"].clone()));
        (conditions, status["movedPercent"].clone(), verdicts.collect::<Vec<_>>())
    };
    // The decision on a generation stands once its status says so.
    stored["observedGeneration"] == new["observedGeneration"] && words(stored) == words(new)
}

/// Rates vary all the time: only what changes by a twentieth is written.
fn has_near_rates(stored: &Value, new: &Value) -> bool {
    let left = |status: &Value| -> Vec<i64> {
        let services = status["services"].as_array().into_iter().flatten();
        services.map(|service| service["percentInZone"].as_i64().unwrap_or(-1)).collect()
    };
    let is_near = |(a, b): (&i64, &i64)| (a < &0) == (b < &0) && a.abs_diff(*b) < 5;
    let (before, after) = (left(stored), left(new));
    before.len() == after.len() && before.iter().zip(&after).all(is_near)
}

fn service_status(service: &DrainedService) -> Value {
    let (verdict, message) = match &service.verdict {
        DrainVerdict::Moves => ("Moves", String::new()),
        DrainVerdict::Unproved => ("MovesUnproved", "what its endpoints can carry is not proved".to_owned()),
        DrainVerdict::Stays(why) => ("Stays", why.clone()),
        DrainVerdict::Refused(why) => ("Refused", why.clone()),
    };
    let mut row = json!({
        "namespace": service.service.namespace.as_str(), "name": service.service.name.as_str(),
        "verdict": verdict, "message": message,
    });
    if let Some(share) = service.share_in_zone {
        row["connectionsPerSecond"] = json!(service.rate.round() as i64);
        row["percentInZone"] = json!((share * 100.0).round() as i64);
    }
    row
}

fn accepted_message(drain: &ZoneDrain, services: &[DrainedService]) -> String {
    let count = |wanted: fn(&DrainVerdict) -> bool| services.iter().filter(|s| wanted(&s.verdict)).count();
    let moves = count(|verdict| matches!(verdict, DrainVerdict::Moves | DrainVerdict::Unproved));
    let unproved = count(|verdict| *verdict == DrainVerdict::Unproved);
    let stays = count(|verdict| matches!(verdict, DrainVerdict::Stays(_)));
    let refused = count(|verdict| matches!(verdict, DrainVerdict::Refused(_)));
    let mut text = format!(
        "Zone {}: traffic of {moves} Services moves, {unproved} of them without a proof; that of {stays} must stay",
        drain.zone
    );
    if refused > 0 && drain.force {
        text +=
            &format!("; that of {refused} is more than the other zones have carried, and spec.force is set");
    }
    text
}

fn refused_message(services: &[DrainedService]) -> String {
    let refused = services.iter().filter_map(|service| match &service.verdict {
        DrainVerdict::Refused(why) => Some(format!("{}: {why}", service.service)),
        _ => None,
    });
    let refused: Vec<String> = refused.collect();
    let more = match refused.len().saturating_sub(MAX_NAMES) {
        0 => String::new(),
        more => format!("; {more} more"),
    };
    let named = refused.iter().take(MAX_NAMES).cloned().collect::<Vec<_>>().join("; ");
    format!(
        "The other zones cannot take the traffic, so none was moved: {named}{more}. spec.force drains anyway"
    )
}

#[cfg(test)]
mod tests;
