//! Tests of streams without I/O: a client that answers as Envoy does, and one that does not.

use std::collections::HashMap;

use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest,
};
use envoy_types::pb::google::rpc;

use super::*;
use crate::resource::XdsResource;

/// Resources as `(kind, name, content)`.
fn set(resources: &[(ResourceType, &str, &str)]) -> Arc<ResourceSet> {
    let mut set = ResourceSet::default();
    for (kind, name, content) in resources {
        set.put(*kind, XdsResource::new(name, content.as_bytes().to_vec()));
    }
    Arc::new(set)
}

const BASE: &[(ResourceType, &str, &str)] = &[
    (ResourceType::Cluster, "a", "1"),
    (ResourceType::Endpoints, "a", "1"),
    (ResourceType::Listener, "l", "1"),
    (ResourceType::Routes, "r", "1"),
];

/// A client that has a stream, and takes what it gets unless it is told to refuse.
#[derive(Default)]
struct Client {
    stream: DeltaStream,
    number: u64,
    held: BTreeMap<ResourceType, HashMap<String, String>>,
    /// What happened, in words.
    log: Vec<String>,
    /// Names that it refuses.
    refuses: Vec<&'static str>,
    /// Its words then.
    words: Option<&'static str>,
    heard: Vec<Reply>,
}

impl Client {
    fn connected(resources: &[(ResourceType, &str, &str)]) -> Self {
        let mut client = Self::default();
        client.set_target(resources);
        for kind in [ResourceType::Cluster, ResourceType::Listener] {
            client.ask(kind, &[], &[]);
        }
        client
    }

    fn set_target(&mut self, resources: &[(ResourceType, &str, &str)]) {
        self.number += 2;
        let mut published = PublishedResources::first(set(resources));
        published.number = self.number;
        self.stream.set_target(Arc::new(published));
    }

    fn ask(&mut self, kind: ResourceType, subscribe: &[&str], unsubscribe: &[&str]) {
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let request = DeltaDiscoveryRequest {
            type_url: kind.type_url().to_owned(),
            resource_names_subscribe: texts(subscribe),
            resource_names_unsubscribe: texts(unsubscribe),
            initial_resource_versions: self.held.get(&kind).cloned().unwrap_or_default(),
            ..DeltaDiscoveryRequest::default()
        };
        self.stream.handle_request(&request).unwrap();
    }

    /// Takes one response, answers it, and asks for what it names, as Envoy does.
    fn step(&mut self) -> bool {
        let Some(response) = self.stream.next_response() else { return false };
        let kind = ResourceType::of(&response.type_url).unwrap();
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
        self.heard.extend(self.stream.handle_request(&answer).unwrap());
        true
    }

    fn take(&mut self, kind: ResourceType, response: &DeltaDiscoveryResponse) {
        for resource in &response.resources {
            let before =
                self.held.entry(kind).or_default().insert(resource.name.clone(), resource.version.clone());
            match kind {
                ResourceType::Cluster if before.is_none() => {
                    self.ask(ResourceType::Endpoints, &[&resource.name], &[])
                }
                ResourceType::Listener if before.is_none() => self.ask(ResourceType::Routes, &["r"], &[]),
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
    client.set_target(BASE);
    assert_eq!(client.settle(), "", "the same content is no change");
    let accepted = client.heard.iter().filter(|heard| matches!(heard, Reply::Ack { .. })).count();
    assert_eq!(accepted, 4);
}

#[test]
fn a_changed_endpoint_costs_one_resource() {
    let mut client = Client::connected(BASE);
    client.settle();
    let mut next = BASE.to_vec();
    next[1].2 = "2";
    client.set_target(&next);
    assert_eq!(client.settle(), "endpoints +a");
}

#[test]
fn additions_go_first_and_removals_the_other_way_round() {
    let mut client = Client::connected(BASE);
    client.settle();
    let next = [
        (ResourceType::Cluster, "b", "1"),
        (ResourceType::Endpoints, "b", "1"),
        (ResourceType::Listener, "m", "1"),
        (ResourceType::Routes, "r", "2"),
    ];
    client.set_target(&next);
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
    next.extend([(ResourceType::Cluster, "b", "1"), (ResourceType::Endpoints, "b", "1")]);
    client.set_target(&next);
    // The cluster goes; a client that does not ask for its endpoints gets no routes.
    let response = client.stream.next_response().unwrap();
    let answer = DeltaDiscoveryRequest {
        type_url: response.type_url,
        response_nonce: response.nonce,
        ..DeltaDiscoveryRequest::default()
    };
    client.stream.handle_request(&answer).unwrap();
    assert!(client.stream.next_response().is_none());
    assert!(client.stream.is_pending());
    client.stream.stop_waiting();
    assert_eq!(client.settle(), "routes +r", "not for ever");
}

#[test]
fn endpoints_follow_a_new_cluster_before_it_is_acknowledged() {
    let mut client = Client::connected(BASE);
    client.settle();
    let mut next = BASE.to_vec();
    next[3].2 = "2";
    next.extend([(ResourceType::Cluster, "b", "1"), (ResourceType::Endpoints, "b", "1")]);
    client.set_target(&next);
    let cluster = client.stream.next_response().unwrap();
    assert!(client.stream.next_response().is_none(), "routes wait");
    // Envoy keeps its answer back until the cluster has its endpoints.
    client.ask(ResourceType::Endpoints, &["b"], &[]);
    let endpoints = client.stream.next_response().unwrap();
    assert_eq!(endpoints.resources[0].name, "b");
    assert!(client.stream.next_response().is_none(), "routes still wait");
    for response in [endpoints, cluster] {
        let answer = DeltaDiscoveryRequest {
            type_url: response.type_url,
            response_nonce: response.nonce,
            ..DeltaDiscoveryRequest::default()
        };
        client.stream.handle_request(&answer).unwrap();
    }
    assert_eq!(client.settle(), "routes +r");
}

#[test]
fn a_cluster_that_changes_gets_its_endpoints_again() {
    let mut client = Client::connected(BASE);
    client.settle();
    let mut next = BASE.to_vec();
    next[0].2 = "2";
    client.set_target(&next);
    assert_eq!(client.settle(), "cluster +a; endpoints +a", "semantics, xDS 3: warming waits for them");
}

#[test]
fn after_a_reconnect_nothing_unchanged_is_sent() {
    let mut client = Client::connected(BASE);
    client.settle();
    let mut again = Client { held: client.held.clone(), ..Client::default() };
    let mut next = BASE.to_vec();
    next[3].2 = "2";
    next.push((ResourceType::Listener, "n", "1"));
    again.set_target(&next);
    again.ask(ResourceType::Cluster, &[], &[]);
    again.ask(ResourceType::Endpoints, &["a"], &[]);
    again.ask(ResourceType::Listener, &[], &[]);
    again.ask(ResourceType::Routes, &["r"], &[]);
    assert_eq!(again.settle(), "listener +n; routes +r");
    let mut gone = Client { held: client.held.clone(), ..Client::default() };
    gone.set_target(&BASE[..3]);
    gone.ask(ResourceType::Cluster, &["*"], &[]);
    gone.ask(ResourceType::Listener, &[], &[]);
    gone.ask(ResourceType::Routes, &["r"], &[]);
    assert_eq!(gone.settle(), "routes -r", "what went meanwhile is told");
}

#[test]
fn a_name_that_is_asked_for_again_is_sent_again() {
    let mut client = Client::connected(BASE);
    client.settle();
    client.ask(ResourceType::Endpoints, &["a"], &[]);
    assert_eq!(client.settle(), "endpoints +a", "semantics, xDS 4");
    client.ask(ResourceType::Endpoints, &[], &["a"]);
    let mut next = BASE.to_vec();
    next[1].2 = "2";
    client.set_target(&next);
    assert_eq!(client.settle(), "", "nobody asks for it any more");
}

#[test]
fn a_name_that_does_not_exist_is_told_once_and_sent_when_it_comes() {
    let mut client = Client::connected(BASE);
    client.settle();
    client.ask(ResourceType::Routes, &["later"], &[]);
    assert_eq!(client.settle(), "routes -later");
    let mut next = BASE.to_vec();
    next.push((ResourceType::Routes, "later", "1"));
    client.set_target(&next);
    assert_eq!(client.settle(), "routes +later");
}

#[test]
fn what_is_refused_is_found_among_others_kept_in_words_and_not_sent_again() {
    let mut resources = BASE.to_vec();
    let names = ["c", "d", "e", "f"];
    resources.extend(names.map(|name| (ResourceType::Listener, name, "1")));
    let mut client = Client::connected(&resources);
    client.refuses = vec!["e"];
    let log = client.settle();
    assert!(log.contains("listener +c +d +e +f +l refused"), "{log}");
    assert!(log.ends_with("listener +e refused; listener +f +l; routes +r"), "{log}");
    let refusals: Vec<&Nack> = client
        .heard
        .iter()
        .filter_map(|heard| if let Reply::Nack(refusal) = heard { Some(refusal) } else { None })
        .collect();
    let last = refusals.last().unwrap();
    assert_eq!((last.resource.as_deref(), last.message.as_str()), (Some("e"), "no good"));
    assert!(["c", "d", "f", "l"].iter().all(|name| client.held[&ResourceType::Listener].contains_key(*name)));
    client.set_target(&resources);
    assert_eq!(client.settle(), "", "semantics, xDS 2: no hot loop");
    let refused: Vec<_> = client.stream.rejected().map(|(kind, name)| format!("{kind} {name}")).collect();
    assert_eq!(refused, ["listener e"]);
    client.refuses.clear();
    if let Some(resource) = resources.iter_mut().find(|r| r.1 == "e") {
        resource.2 = "2";
    }
    client.set_target(&resources);
    assert_eq!(client.settle(), "listener +e; routes +r", "another version is another try");
    assert_eq!(client.stream.rejected().count(), 0);
}

#[test]
fn a_listener_whose_port_is_taken_is_tried_again_when_told_and_nothing_else_is() {
    let mut client = Client::connected(BASE);
    client.settle();
    client.refuses = vec!["m", "a"];
    client.words =
        Some("Error adding/updating listener(s) m: cannot bind '127.0.0.1:80': Address already in use");
    let mut next = BASE.to_vec();
    next.push((ResourceType::Listener, "m", "1"));
    next[1].2 = "2";
    client.set_target(&next);
    assert_eq!(client.settle(), "endpoints +a refused; listener +m refused");
    let passing: Vec<bool> = client
        .heard
        .iter()
        .filter_map(|h| if let Reply::Nack(r) = h { Some(r.is_retryable) } else { None })
        .collect();
    assert_eq!(passing, [false, true]);
    assert_eq!(client.settle(), "", "not by itself");
    assert!(client.stream.has_retryable());
    client.stream.retry_rejected();
    assert_eq!(client.settle(), "listener +m refused", "the endpoints are as bad as before");
    client.refuses.clear();
    client.stream.retry_rejected();
    assert_eq!(client.settle(), "listener +m; routes +r");
    assert!(!client.stream.has_retryable());
    client.stream.retry_rejected();
    assert_eq!(client.settle(), "");
}

#[test]
fn a_refusal_is_over_when_nobody_wants_the_refused_version_any_more() {
    let mut client = Client::connected(BASE);
    client.settle();
    client.refuses = vec!["r", "m"];
    let mut next = BASE.to_vec();
    next[3].2 = "bad";
    next.push((ResourceType::Listener, "m", "bad"));
    client.set_target(&next);
    assert_eq!(client.settle(), "listener +m refused; routes +r refused");
    assert_eq!(client.stream.rejected().count(), 2);
    client.set_target(BASE);
    assert_eq!(client.settle(), "", "it has what it is to have");
    assert_eq!(client.stream.rejected().count(), 0);
}

#[test]
fn answers_to_older_responses_and_kinds_that_are_not_served_change_nothing() {
    let mut client = Client::connected(BASE);
    client.settle();
    let mut next = BASE.to_vec();
    next[2].2 = "2";
    client.set_target(&next);
    let response = client.stream.next_response().unwrap();
    let stale = DeltaDiscoveryRequest {
        type_url: response.type_url.clone(),
        response_nonce: "1".to_owned(),
        ..DeltaDiscoveryRequest::default()
    };
    assert_eq!(client.stream.handle_request(&stale).unwrap(), []);
    assert!(client.stream.is_pending());
    let other = DeltaDiscoveryRequest { type_url: "other".to_owned(), ..DeltaDiscoveryRequest::default() };
    assert_eq!(client.stream.handle_request(&other).unwrap(), []);
}

#[test]
fn a_large_set_goes_in_several_responses() {
    let body = "x".repeat(1 << 20);
    let names: Vec<String> = (0..40).map(|i| format!("c{i:02}")).collect();
    let resources: Vec<(ResourceType, &str, &str)> =
        names.iter().map(|name| (ResourceType::Cluster, name.as_str(), body.as_str())).collect();
    let mut client = Client::connected(&resources);
    let log = client.settle();
    assert_eq!(log.matches("cluster ").count(), 3, "{log}");
    assert_eq!(client.held[&ResourceType::Cluster].len(), 40);
}

#[test]
fn the_older_protocol_sends_a_kind_whole_and_only_when_something_in_it_changed() {
    let mut stream = SotwStream::default();
    let published = |number, resources: &[(ResourceType, &str, &str)]| {
        Arc::new(PublishedResources { number, ..PublishedResources::first(set(resources)) })
    };
    stream.set_target(published(1, BASE));
    let ask =
        |stream: &mut SotwStream, kind: ResourceType, nonce: &str, names: &[&str], error: Option<&str>| {
            let request = DiscoveryRequest {
                type_url: kind.type_url().to_owned(),
                response_nonce: nonce.to_owned(),
                resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
                error_detail: error.map(|m| rpc::Status { message: m.to_owned(), ..rpc::Status::default() }),
                ..DiscoveryRequest::default()
            };
            stream.handle_request(&request).unwrap()
        };
    ask(&mut stream, ResourceType::Cluster, "", &[], None);
    let first = stream.next_response().unwrap();
    assert_eq!((first.resources.len(), ResourceType::of(&first.type_url)), (1, Some(ResourceType::Cluster)));
    assert!(stream.next_response().is_none(), "one at a time");
    ask(&mut stream, ResourceType::Cluster, &first.nonce, &[], None);
    ask(&mut stream, ResourceType::Endpoints, "", &["a"], None);
    let endpoints = stream.next_response().unwrap();
    let heard = ask(&mut stream, ResourceType::Endpoints, &endpoints.nonce, &["a"], Some("no good"));
    assert!(matches!(&heard[..], [Reply::Nack(refusal)] if refusal.message == "no good"));
    assert!(stream.next_response().is_none(), "what was refused is not sent again");
    ask(&mut stream, ResourceType::Listener, "", &[], None);
    let listeners = stream.next_response().unwrap();
    ask(&mut stream, ResourceType::Listener, &listeners.nonce, &[], Some("l: cannot bind '0.0.0.0:80'"));
    assert!(stream.next_response().is_none() && stream.has_retryable());
    stream.retry_rejected();
    let listeners = stream.next_response().unwrap();
    ask(&mut stream, ResourceType::Listener, &listeners.nonce, &[], None);
    assert!(stream.next_response().is_none() && !stream.has_retryable());
    let mut next = BASE.to_vec();
    next[1].2 = "2";
    stream.set_target(published(2, &next));
    let again = stream.next_response().unwrap();
    assert_eq!(ResourceType::of(&again.type_url), Some(ResourceType::Endpoints), "clusters did not change");
}
