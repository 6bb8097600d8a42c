//! Tests of streams without I/O: a client that answers as Envoy does, and one that does not.

use std::collections::HashMap;

use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest,
};
use envoy_types::pb::google::rpc;

use super::*;
use crate::resource::Resource;

/// Resources as `(kind, name, content)`.
fn set(resources: &[(Kind, &str, &str)]) -> Arc<ResourceSet> {
    let mut set = ResourceSet::default();
    for (kind, name, content) in resources {
        set.put(*kind, Resource::new(name, content.as_bytes().to_vec()));
    }
    Arc::new(set)
}

const BASE: &[(Kind, &str, &str)] = &[
    (Kind::Cluster, "a", "1"),
    (Kind::Endpoints, "a", "1"),
    (Kind::Listener, "l", "1"),
    (Kind::Routes, "r", "1"),
];

/// A client that has a stream, and takes what it gets unless it is told to refuse.
#[derive(Default)]
struct Client {
    stream: Delta,
    number: u64,
    held: BTreeMap<Kind, HashMap<String, String>>,
    /// What happened, in words.
    log: Vec<String>,
    /// Names that it refuses.
    refuses: Vec<&'static str>,
    /// Its words then.
    words: Option<&'static str>,
    heard: Vec<Heard>,
}

impl Client {
    fn connected(resources: &[(Kind, &str, &str)]) -> Self {
        let mut client = Self::default();
        client.aim(resources);
        for kind in [Kind::Cluster, Kind::Listener] {
            client.ask(kind, &[], &[]);
        }
        client
    }

    fn aim(&mut self, resources: &[(Kind, &str, &str)]) {
        self.number += 2;
        let mut published = Published::first(set(resources));
        published.number = self.number;
        self.stream.aim(Arc::new(published));
    }

    fn ask(&mut self, kind: Kind, subscribe: &[&str], unsubscribe: &[&str]) {
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let request = DeltaDiscoveryRequest {
            type_url: kind.type_url().to_owned(),
            resource_names_subscribe: texts(subscribe),
            resource_names_unsubscribe: texts(unsubscribe),
            initial_resource_versions: self.held.get(&kind).cloned().unwrap_or_default(),
            ..DeltaDiscoveryRequest::default()
        };
        self.stream.hear(&request).unwrap();
    }

    /// Takes one response, answers it, and asks for what it names, as Envoy does.
    fn step(&mut self) -> bool {
        let Some(response) = self.stream.speak() else { return false };
        let kind = Kind::of(&response.type_url).unwrap();
        let names: Vec<String> = response.resources.iter().map(|r| r.name.clone()).collect();
        let mut line = format!("{kind}");
        line += &names.iter().map(|name| format!(" +{name}")).collect::<String>();
        line += &response.removed_resources.iter().map(|name| format!(" -{name}")).collect::<String>();
        let refused = names.iter().any(|name| self.refuses.contains(&name.as_str()));
        self.log.push(if refused { format!("{line} refused") } else { line });
        if !refused {
            self.take(kind, &response);
        }
        let error = refused.then(|| rpc::Status {
            message: self.words.unwrap_or("no good").to_owned(),
            ..rpc::Status::default()
        });
        let answer = DeltaDiscoveryRequest {
            type_url: response.type_url,
            response_nonce: response.nonce,
            error_detail: error,
            ..DeltaDiscoveryRequest::default()
        };
        self.heard.extend(self.stream.hear(&answer).unwrap());
        true
    }

    fn take(&mut self, kind: Kind, response: &DeltaDiscoveryResponse) {
        for resource in &response.resources {
            let before =
                self.held.entry(kind).or_default().insert(resource.name.clone(), resource.version.clone());
            match kind {
                Kind::Cluster if before.is_none() => self.ask(Kind::Endpoints, &[&resource.name], &[]),
                Kind::Listener if before.is_none() => self.ask(Kind::Routes, &["r"], &[]),
                _ => {}
            }
        }
        for name in &response.removed_resources {
            self.held.entry(kind).or_default().remove(name);
        }
    }

    fn settle(&mut self) -> String {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 100, "it never ends: {:?}", self.log);
        }
        std::mem::take(&mut self.log).join("; ")
    }
}

#[test]
fn a_new_client_gets_everything_in_order_and_nothing_twice() {
    let mut client = Client::connected(BASE);
    assert_eq!(client.settle(), "cluster +a; endpoints +a; listener +l; routes +r");
    client.aim(BASE);
    assert_eq!(client.settle(), "", "the same content is no change");
    let accepted = client.heard.iter().filter(|heard| matches!(heard, Heard::Accepted { .. })).count();
    assert_eq!(accepted, 4);
}

#[test]
fn a_changed_endpoint_costs_one_resource() {
    let mut client = Client::connected(BASE);
    client.settle();
    let mut next = BASE.to_vec();
    next[1].2 = "2";
    client.aim(&next);
    assert_eq!(client.settle(), "endpoints +a");
}

#[test]
fn additions_go_first_and_removals_the_other_way_round() {
    let mut client = Client::connected(BASE);
    client.settle();
    let next = [
        (Kind::Cluster, "b", "1"),
        (Kind::Endpoints, "b", "1"),
        (Kind::Listener, "m", "1"),
        (Kind::Routes, "r", "2"),
    ];
    client.aim(&next);
    assert_eq!(
        client.settle(),
        "cluster +b; endpoints +b; listener +m; routes +r; listener -l; endpoints -a; cluster -a",
        "semantics, xDS 3"
    );
}

#[test]
fn routes_wait_until_new_clusters_have_their_endpoints() {
    let mut client = Client::connected(BASE);
    client.settle();
    let mut next = BASE.to_vec();
    next[3].2 = "2";
    next.extend([(Kind::Cluster, "b", "1"), (Kind::Endpoints, "b", "1")]);
    client.aim(&next);
    // The cluster goes; a client that does not ask for its endpoints gets no routes.
    let response = client.stream.speak().unwrap();
    let answer = DeltaDiscoveryRequest {
        type_url: response.type_url,
        response_nonce: response.nonce,
        ..DeltaDiscoveryRequest::default()
    };
    client.stream.hear(&answer).unwrap();
    assert!(client.stream.speak().is_none());
    assert!(client.stream.is_waiting());
    client.stream.wait_no_longer();
    assert_eq!(client.settle(), "routes +r", "not for ever");
}

#[test]
fn endpoints_follow_a_new_cluster_before_it_is_acknowledged() {
    let mut client = Client::connected(BASE);
    client.settle();
    let mut next = BASE.to_vec();
    next[3].2 = "2";
    next.extend([(Kind::Cluster, "b", "1"), (Kind::Endpoints, "b", "1")]);
    client.aim(&next);
    let cluster = client.stream.speak().unwrap();
    assert!(client.stream.speak().is_none(), "routes wait");
    // Envoy keeps its answer back until the cluster has its endpoints.
    client.ask(Kind::Endpoints, &["b"], &[]);
    let endpoints = client.stream.speak().unwrap();
    assert_eq!(endpoints.resources[0].name, "b");
    assert!(client.stream.speak().is_none(), "routes still wait");
    for response in [endpoints, cluster] {
        let answer = DeltaDiscoveryRequest {
            type_url: response.type_url,
            response_nonce: response.nonce,
            ..DeltaDiscoveryRequest::default()
        };
        client.stream.hear(&answer).unwrap();
    }
    assert_eq!(client.settle(), "routes +r");
}

#[test]
fn a_cluster_that_changes_gets_its_endpoints_again() {
    let mut client = Client::connected(BASE);
    client.settle();
    let mut next = BASE.to_vec();
    next[0].2 = "2";
    client.aim(&next);
    assert_eq!(client.settle(), "cluster +a; endpoints +a", "semantics, xDS 3: warming waits for them");
}

#[test]
fn after_a_reconnect_nothing_unchanged_is_sent() {
    let mut client = Client::connected(BASE);
    client.settle();
    let mut again = Client { held: client.held.clone(), ..Client::default() };
    let mut next = BASE.to_vec();
    next[3].2 = "2";
    next.push((Kind::Listener, "n", "1"));
    again.aim(&next);
    again.ask(Kind::Cluster, &[], &[]);
    again.ask(Kind::Endpoints, &["a"], &[]);
    again.ask(Kind::Listener, &[], &[]);
    again.ask(Kind::Routes, &["r"], &[]);
    assert_eq!(again.settle(), "listener +n; routes +r");
    let mut gone = Client { held: client.held.clone(), ..Client::default() };
    gone.aim(&BASE[..3]);
    gone.ask(Kind::Cluster, &["*"], &[]);
    gone.ask(Kind::Listener, &[], &[]);
    gone.ask(Kind::Routes, &["r"], &[]);
    assert_eq!(gone.settle(), "routes -r", "what went meanwhile is told");
}

#[test]
fn a_name_that_is_asked_for_again_is_sent_again() {
    let mut client = Client::connected(BASE);
    client.settle();
    client.ask(Kind::Endpoints, &["a"], &[]);
    assert_eq!(client.settle(), "endpoints +a", "semantics, xDS 4");
    client.ask(Kind::Endpoints, &[], &["a"]);
    let mut next = BASE.to_vec();
    next[1].2 = "2";
    client.aim(&next);
    assert_eq!(client.settle(), "", "nobody asks for it any more");
}

#[test]
fn a_name_that_does_not_exist_is_told_once_and_sent_when_it_comes() {
    let mut client = Client::connected(BASE);
    client.settle();
    client.ask(Kind::Routes, &["later"], &[]);
    assert_eq!(client.settle(), "routes -later");
    let mut next = BASE.to_vec();
    next.push((Kind::Routes, "later", "1"));
    client.aim(&next);
    assert_eq!(client.settle(), "routes +later");
}

#[test]
fn what_is_refused_is_found_among_others_kept_in_words_and_not_sent_again() {
    let mut resources = BASE.to_vec();
    let names = ["c", "d", "e", "f"];
    resources.extend(names.map(|name| (Kind::Listener, name, "1")));
    let mut client = Client::connected(&resources);
    client.refuses = vec!["e"];
    let log = client.settle();
    assert!(log.contains("listener +c +d +e +f +l refused"), "{log}");
    assert!(log.ends_with("listener +e refused; listener +f +l; routes +r"), "{log}");
    let refusals: Vec<&Refusal> = client
        .heard
        .iter()
        .filter_map(|heard| if let Heard::Refused(refusal) = heard { Some(refusal) } else { None })
        .collect();
    let last = refusals.last().unwrap();
    assert_eq!((last.resource.as_deref(), last.message.as_str()), (Some("e"), "no good"));
    assert!(["c", "d", "f", "l"].iter().all(|name| client.held[&Kind::Listener].contains_key(*name)));
    client.aim(&resources);
    assert_eq!(client.settle(), "", "semantics, xDS 2: no hot loop");
    let refused: Vec<_> = client.stream.refused().map(|(kind, name)| format!("{kind} {name}")).collect();
    assert_eq!(refused, ["listener e"]);
    client.refuses.clear();
    if let Some(resource) = resources.iter_mut().find(|r| r.1 == "e") {
        resource.2 = "2";
    }
    client.aim(&resources);
    assert_eq!(client.settle(), "listener +e; routes +r", "another version is another try");
    assert_eq!(client.stream.refused().count(), 0);
}

#[test]
fn a_listener_whose_port_is_taken_is_tried_again_when_told_and_nothing_else_is() {
    let mut client = Client::connected(BASE);
    client.settle();
    client.refuses = vec!["m", "a"];
    client.words =
        Some("Error adding/updating listener(s) m: cannot bind '127.0.0.1:80': Address already in use");
    let mut next = BASE.to_vec();
    next.push((Kind::Listener, "m", "1"));
    next[1].2 = "2";
    client.aim(&next);
    assert_eq!(client.settle(), "endpoints +a refused; listener +m refused");
    let passing: Vec<bool> = client
        .heard
        .iter()
        .filter_map(|h| if let Heard::Refused(r) = h { Some(r.may_pass) } else { None })
        .collect();
    assert_eq!(passing, [false, true]);
    assert_eq!(client.settle(), "", "not by itself");
    assert!(client.stream.may_try_again());
    client.stream.try_again();
    assert_eq!(client.settle(), "listener +m refused", "the endpoints are as bad as before");
    client.refuses.clear();
    client.stream.try_again();
    assert_eq!(client.settle(), "listener +m; routes +r");
    assert!(!client.stream.may_try_again());
    client.stream.try_again();
    assert_eq!(client.settle(), "");
}

#[test]
fn a_refusal_is_over_when_nobody_wants_the_refused_version_any_more() {
    let mut client = Client::connected(BASE);
    client.settle();
    client.refuses = vec!["r", "m"];
    let mut next = BASE.to_vec();
    next[3].2 = "bad";
    next.push((Kind::Listener, "m", "bad"));
    client.aim(&next);
    assert_eq!(client.settle(), "listener +m refused; routes +r refused");
    assert_eq!(client.stream.refused().count(), 2);
    client.aim(BASE);
    assert_eq!(client.settle(), "", "it has what it is to have");
    assert_eq!(client.stream.refused().count(), 0);
}

#[test]
fn answers_to_older_responses_and_kinds_that_are_not_served_change_nothing() {
    let mut client = Client::connected(BASE);
    client.settle();
    let mut next = BASE.to_vec();
    next[2].2 = "2";
    client.aim(&next);
    let response = client.stream.speak().unwrap();
    let stale = DeltaDiscoveryRequest {
        type_url: response.type_url.clone(),
        response_nonce: "1".to_owned(),
        ..DeltaDiscoveryRequest::default()
    };
    assert_eq!(client.stream.hear(&stale).unwrap(), []);
    assert!(client.stream.is_waiting());
    let other = DeltaDiscoveryRequest { type_url: "other".to_owned(), ..DeltaDiscoveryRequest::default() };
    assert_eq!(client.stream.hear(&other).unwrap(), []);
}

#[test]
fn a_large_set_goes_in_several_responses() {
    let body = "x".repeat(1 << 20);
    let names: Vec<String> = (0..40).map(|i| format!("c{i:02}")).collect();
    let resources: Vec<(Kind, &str, &str)> =
        names.iter().map(|name| (Kind::Cluster, name.as_str(), body.as_str())).collect();
    let mut client = Client::connected(&resources);
    let log = client.settle();
    assert_eq!(log.matches("cluster ").count(), 3, "{log}");
    assert_eq!(client.held[&Kind::Cluster].len(), 40);
}

#[test]
fn the_older_protocol_sends_a_kind_whole_and_only_when_something_in_it_changed() {
    let mut stream = Whole::default();
    let published = |number, resources: &[(Kind, &str, &str)]| {
        Arc::new(Published { number, ..Published::first(set(resources)) })
    };
    stream.aim(published(1, BASE));
    let ask = |stream: &mut Whole, kind: Kind, nonce: &str, names: &[&str], error: Option<&str>| {
        let request = DiscoveryRequest {
            type_url: kind.type_url().to_owned(),
            response_nonce: nonce.to_owned(),
            resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
            error_detail: error.map(|m| rpc::Status { message: m.to_owned(), ..rpc::Status::default() }),
            ..DiscoveryRequest::default()
        };
        stream.hear(&request).unwrap()
    };
    ask(&mut stream, Kind::Cluster, "", &[], None);
    let first = stream.speak().unwrap();
    assert_eq!((first.resources.len(), Kind::of(&first.type_url)), (1, Some(Kind::Cluster)));
    assert!(stream.speak().is_none(), "one at a time");
    ask(&mut stream, Kind::Cluster, &first.nonce, &[], None);
    ask(&mut stream, Kind::Endpoints, "", &["a"], None);
    let endpoints = stream.speak().unwrap();
    let heard = ask(&mut stream, Kind::Endpoints, &endpoints.nonce, &["a"], Some("no good"));
    assert!(matches!(&heard[..], [Heard::Refused(refusal)] if refusal.message == "no good"));
    assert!(stream.speak().is_none(), "what was refused is not sent again");
    ask(&mut stream, Kind::Listener, "", &[], None);
    let listeners = stream.speak().unwrap();
    ask(&mut stream, Kind::Listener, &listeners.nonce, &[], Some("l: cannot bind '0.0.0.0:80'"));
    assert!(stream.speak().is_none() && stream.may_try_again());
    stream.try_again();
    let listeners = stream.speak().unwrap();
    ask(&mut stream, Kind::Listener, &listeners.nonce, &[], None);
    assert!(stream.speak().is_none() && !stream.may_try_again());
    let mut next = BASE.to_vec();
    next[1].2 = "2";
    stream.aim(published(2, &next));
    let again = stream.speak().unwrap();
    assert_eq!(Kind::of(&again.type_url), Some(Kind::Endpoints), "clusters did not change");
}
