//! The world of the bench: a gateway with 10,000 routes, in one policy each or a thousand in each, for one host or for
//! as many. A route answers with a number by itself, so nothing but the proxy is measured.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use http::Request;
use kube::Client;
use serde_json::{Value, json};
use store::admission::service::ServiceRanges;
use store::api::{Api, ApiLimits};
use store::bootstrap::{BootstrapOptions, bootstrap};
use store::engine::{Engine, EngineOptions};
use tokio::task::JoinSet;

/// How many requests are under way while the world is made.
const WRITERS: usize = 64;
const COLLECTION: &str = "/apis/zoneward.dev/v1alpha1/namespaces/default";

/// How the routes are dealt out.
#[derive(Clone, Copy)]
pub struct Shape {
    pub policies: usize,
    pub rules: usize,
    pub hosts: usize,
}

/// How many routes there are: 10,000 by the design; fewer show what a change's cost grows with.
pub fn routes() -> usize {
    std::env::var("ZONEWARD_BENCH_ROUTES").ok().and_then(|count| count.parse().ok()).unwrap_or(10_000)
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in {} policies, {} hosts", self.policies, self.hosts)
    }
}

impl Shape {
    pub fn routes(&self) -> usize {
        self.policies * self.rules
    }

    pub fn policy_name(&self, route: usize) -> String {
        format!("policy-{}", route / self.rules)
    }

    pub fn host(&self, route: usize) -> String {
        format!("h{}.example.com", route % self.hosts)
    }

    pub fn path(&self, route: usize) -> String {
        format!("/route-{route}")
    }

    fn rule(&self, route: usize, answer: usize) -> Value {
        json!({"matches": [{"path": {"type": "Prefix", "value": self.path(route)}}], "default": {"filters": [
            {"type": "DirectResponse", "directResponse": {"status": 200, "body": {"inlineString": answer.to_string()}}}]}})
    }

    pub fn policy(&self, number: usize) -> Value {
        let first = number * self.rules;
        let rules: Vec<Value> = (first..first + self.rules).map(|route| self.rule(route, 0)).collect();
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGatewayHTTPRoute",
            "metadata": {"namespace": "default", "name": format!("policy-{number}")},
            "spec": {"targetRef": {"kind": "MeshGateway", "name": "edge"}, "hostnames": [self.host(first)], "rules": rules}})
    }

    /// A JSON patch of the policy that has the route.
    pub fn changed(&self, route: usize, answer: usize) -> Value {
        let path = format!("/spec/rules/{}", route % self.rules);
        json!([{"op": "replace", "path": path, "value": self.rule(route, answer)}])
    }
}

pub fn gateway(port: u16) -> Value {
    json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGateway",
        "metadata": {"namespace": "default", "name": "edge"},
        "spec": {"listeners": [{"name": "http", "port": port, "protocol": "HTTP"}]}})
}

pub async fn store() -> Api {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-mesh-{}", std::process::id()));
    let engine = Engine::open(&folder, EngineOptions::default()).unwrap();
    // Open files live on; nothing is left behind.
    std::fs::remove_dir_all(&folder).unwrap();
    let api = Api::new(Arc::new(engine), ServiceRanges::without_flags(), ApiLimits::default());
    let service_cidrs = vec!["10.96.0.0/12".parse().unwrap()];
    bootstrap(&api, BootstrapOptions { service_cidrs, listen: "127.0.0.1:6443".parse().unwrap() })
        .await
        .unwrap();
    api
}

pub async fn fill(client: &Client, shape: Shape, port: u16) {
    send(client, "POST", &format!("{COLLECTION}/meshgateways"), "application/json", &gateway(port)).await;
    let mut writers = JoinSet::new();
    for number in 0..shape.policies {
        if writers.len() == WRITERS {
            writers.join_next().await.unwrap().unwrap();
        }
        let client = client.clone();
        writers.spawn(async move {
            let path = format!("{COLLECTION}/meshgatewayhttproutes");
            send(&client, "POST", &path, "application/json", &shape.policy(number)).await;
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
}

pub async fn patch(client: &Client, name: &str, patch: &Value) {
    let path = format!("{COLLECTION}/meshgatewayhttproutes/{name}");
    send(client, "PATCH", &path, "application/json-patch+json", patch).await;
}

async fn send(client: &Client, method: &str, path: &str, kind: &str, body: &Value) {
    let request = Request::builder().method(method).uri(path).header("content-type", kind);
    let request = request.body(serde_json::to_vec(body).unwrap()).unwrap();
    // What a client makes of the answer is not ours to measure.
    client.request_text(request).await.unwrap();
}
