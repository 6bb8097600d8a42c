//! What the conformance cases of the Gateway API ask of statuses.

use model::ObjectKey;
use model::gateway_api::CONTROLLER;
use serde_json::Value;

pub fn items(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("a text: {value}"))
}

pub fn key(name: &str) -> ObjectKey {
    let (namespace, name) = name.split_once('/').expect("namespace and name");
    ObjectKey { namespace: namespace.into(), name: name.into() }
}

/// Whether the status of an object is as a case asks.
pub fn check_object(status: &Value, wanted: &Value, generation: i64) -> Result<(), String> {
    let (kind, name) = (text(&wanted["kind"]), text(&wanted["name"]));
    match kind {
        "Gateway" | "ListenerSet" => check_listeners(status, wanted, generation),
        "BackendTLSPolicy" => {
            let ancestors = items(&status["ancestors"]);
            let of = |entry: &&Value| ref_key(&entry["ancestorRef"], "") == key(text(&wanted["ancestor"]));
            let ancestor = ancestors.iter().find(of).ok_or_else(|| format!("no ancestor: {status}"))?;
            has_conditions(&ancestor["conditions"], &wanted["conditions"], generation)
        }
        _ => check_parents(status, wanted, name, generation),
    }
}

fn has_conditions(found: &Value, wanted: &Value, generation: i64) -> Result<(), String> {
    for wanted in items(wanted) {
        let own = items(found).into_iter().find(|own| own["type"] == wanted["type"]);
        let is_good = own.as_ref().is_some_and(|own| {
            own["status"] == wanted["status"]
                && (wanted["reason"].is_null() || own["reason"] == wanted["reason"])
        });
        if !is_good {
            return Err(format!("{wanted}, but {}", own.unwrap_or_default()));
        }
    }
    let is_current = |own: &Value| {
        own["observedGeneration"] == generation && own["reason"].as_str().is_some_and(|r| !r.is_empty())
    };
    if items(found).iter().all(is_current) { Ok(()) } else { Err(format!("generation: {found}")) }
}

fn ref_key(reference: &Value, namespace: &str) -> ObjectKey {
    let namespace = reference["namespace"].as_str().unwrap_or(namespace);
    ObjectKey { namespace: namespace.into(), name: text(&reference["name"]).into() }
}

fn check_parents(status: &Value, wanted: &Value, name: &str, generation: i64) -> Result<(), String> {
    let parents = items(&status["parents"]);
    if wanted["noAcceptedParents"] == true {
        let is_accepted = |entry: &Value| {
            items(&entry["conditions"]).iter().any(|c| c["type"] == "Accepted" && c["status"] == "True")
        };
        return if parents.iter().any(is_accepted) { Err(status.to_string()) } else { Ok(()) };
    }
    let kind = wanted["parentKind"].as_str().unwrap_or("Gateway");
    let of = |entry: &&Value| {
        let parent = &entry["parentRef"];
        parent["group"].is_string()
            && parent["kind"] == kind
            && entry["controllerName"] == CONTROLLER
            && wanted["parent"]
                .as_str()
                .is_none_or(|wanted| ref_key(parent, &key(name).namespace) == key(wanted))
    };
    let results: Vec<_> = parents
        .iter()
        .filter(of)
        .map(|entry| has_conditions(&entry["conditions"], &wanted["conditions"], generation))
        .collect();
    match results.iter().find(|result| result.is_ok()) {
        Some(_) => Ok(()),
        None => Err(format!("{results:?}: {status}")),
    }
}

fn check_listeners(status: &Value, wanted: &Value, generation: i64) -> Result<(), String> {
    has_conditions(&status["conditions"], &wanted["conditions"], generation)?;
    let listeners = items(&status["listeners"]);
    let named = |name: &Value| {
        let found = listeners.iter().find(|own| own["name"] == *name);
        found.ok_or_else(|| format!("no listener {name}"))
    };
    for own in &listeners {
        has_conditions(&own["conditions"], &wanted["everyListener"], generation)?;
    }
    for some in items(&wanted["someListeners"]) {
        has_conditions(&named(&some["name"])?["conditions"], &some["conditions"], generation)?;
    }
    if wanted["listeners"].is_array() && items(&wanted["listeners"]).len() != listeners.len() {
        return Err(format!("listeners: {status}"));
    }
    for exact in items(&wanted["listeners"]) {
        let own = named(&exact["name"])?;
        has_conditions(&own["conditions"], &exact["conditions"], generation)?;
        if !exact["attachedRoutes"].is_null() && own["attachedRoutes"] != exact["attachedRoutes"] {
            return Err(format!("attachedRoutes: {own}"));
        }
        let kinds: Vec<Value> =
            items(&own["supportedKinds"]).into_iter().map(|kind| kind["kind"].clone()).collect();
        if exact["supportedKinds"].is_array() {
            let asked = items(&exact["supportedKinds"]);
            if asked.iter().any(|kind| !kinds.contains(kind)) || (asked.is_empty() && !kinds.is_empty()) {
                return Err(format!("supportedKinds: {own}"));
            }
        }
    }
    if wanted["zeroRoutes"] == true && listeners.iter().any(|own| own["attachedRoutes"] != 0) {
        return Err(format!("attachedRoutes: {status}"));
    }
    if wanted["hasAddress"] == true && items(&status["addresses"]).is_empty() {
        return Err(format!("no address: {status}"));
    }
    for field in ["addresses", "attachedListenerSets"] {
        if !wanted[field].is_null() && wanted[field] != status[field] {
            return Err(format!("{field}: {status}"));
        }
    }
    Ok(())
}
