//! For tests: an API over a new store in a folder of its own, asked without a network.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fixtures::eventually_async;
use http::{Request, Response};
use http_body_util::BodyExt;
use ipnet::IpNet;
use model::random::Random;
use serde_json::{Value, json};
use store::admission::service::ServiceRanges;
use store::api::{Api, ApiLimits, Caller, ResponseBody};
use store::bootstrap::{BootstrapOptions, bootstrap};
use store::engine::{Engine, EngineOptions};

pub struct World {
    pub api: Api,
    folder: PathBuf,
}

/// A folder that no other test has.
pub fn folder() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("api-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

impl World {
    pub async fn new() -> Self {
        Self::with(ServiceRanges::without_flags()).await
    }

    pub async fn with(ranges: ServiceRanges) -> Self {
        Self::on(ranges, EngineOptions::default()).await
    }

    pub async fn on(ranges: ServiceRanges, options: EngineOptions) -> Self {
        let service_cidrs = vec!["10.96.0.0/16".parse().unwrap(), "fd00:10:96::/112".parse().unwrap()];
        Self::begun(ranges, options, service_cidrs).await
    }

    /// With other ranges of cluster IPs.
    pub async fn ranged(service_cidrs: Vec<IpNet>) -> Self {
        Self::begun(ServiceRanges::without_flags(), EngineOptions::default(), service_cidrs).await
    }

    async fn begun(ranges: ServiceRanges, options: EngineOptions, service_cidrs: Vec<IpNet>) -> Self {
        Self::bootstrapped(ranges, options, service_cidrs, |api| api).await
    }

    /// With names and uids from a seed.
    pub async fn seeded(ranges: ServiceRanges, options: EngineOptions, random: Random) -> Self {
        let service_cidrs = vec!["10.96.0.0/16".parse().unwrap()];
        Self::bootstrapped(ranges, options, service_cidrs, |api| api.with_random(random)).await
    }

    async fn bootstrapped(
        ranges: ServiceRanges,
        options: EngineOptions,
        service_cidrs: Vec<IpNet>,
        configure: impl FnOnce(Api) -> Api,
    ) -> Self {
        let folder = folder();
        let engine = Engine::open(&folder, options).unwrap();
        let api = configure(Api::new(Arc::new(engine), ranges, ApiLimits::default()));
        let listen = "127.0.0.1:6443".parse().unwrap();
        bootstrap(&api, BootstrapOptions { service_cidrs, listen }).await.unwrap();
        Self { api, folder }
    }

    /// With another configuration of the API.
    pub fn map_api(mut self, configure: impl FnOnce(Api) -> Api) -> Self {
        self.api = configure(self.api.clone());
        self
    }

    pub async fn send(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Response<ResponseBody> {
        let request = Request::builder().method(method).uri(path).header("content-type", content_type);
        self.api.answer(request.body(body.into()).unwrap(), &Caller::own()).await
    }

    pub async fn json(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let content = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        read(self.send(method, path, "application/json", content).await).await
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.json("GET", path, &Value::Null).await
    }

    pub async fn patch(&self, path: &str, kind: &str, body: &Value) -> (u16, Value) {
        let content_type = format!("application/{kind}+json");
        read(self.send("PATCH", path, &content_type, body.to_string().into_bytes()).await).await
    }

    pub async fn delete(&self, path: &str, options: &Value) -> (u16, Value) {
        self.json("DELETE", path, options).await
    }

    /// Creates a Service in `default` and returns it.
    pub async fn service(&self, name: &str, spec: Value) -> Value {
        let (code, object) = self.json("POST", SERVICES, &service(name, spec)).await;
        assert_eq!(code, 201, "{object:#}");
        object
    }

    pub async fn config_map(&self, name: &str, metadata: Value) -> Value {
        let mut object = json!({"metadata": metadata});
        object["metadata"]["name"] = name.into();
        let (code, object) = self.json("POST", CONFIG_MAPS, &object).await;
        assert_eq!(code, 201, "{object:#}");
        object
    }

    /// Waits until a path is gone.
    pub async fn wait_gone(&self, path: &str) {
        eventually_async(&format!("the end of {path}"), async || match self.get(path).await {
            (404, _) => Ok(()),
            (_, object) => Err(object),
        })
        .await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub const SERVICES: &str = "/api/v1/namespaces/default/services";
pub const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

pub fn service(name: &str, spec: Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
    if object["spec"]["ports"].is_null() && object["spec"]["type"] != "ExternalName" {
        object["spec"]["ports"] = json!([{"port": 80}]);
    }
    object
}

pub async fn read(response: Response<ResponseBody>) -> (u16, Value) {
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

/// The lines of a watch as they come.
pub struct Lines {
    body: ResponseBody,
    buffer: Vec<u8>,
}

impl Lines {
    pub fn new(response: Response<ResponseBody>) -> Self {
        assert_eq!(response.status(), 200);
        Self { body: response.into_body(), buffer: Vec::new() }
    }

    /// The next event: its type, and its object. `None` at the end of the watch.
    pub async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let mut event: Value = serde_json::from_slice(&line).unwrap();
                return Some((event["type"].as_str().unwrap().to_owned(), event["object"].take()));
            }
            let frame = tokio::time::timeout(Duration::from_secs(60), self.body.frame()).await;
            let bytes = frame.expect("a watch has news within a minute")?.unwrap().into_data().unwrap();
            self.buffer.extend_from_slice(&bytes);
        }
    }

    /// The next event as `TYPE name`.
    pub async fn next_name(&mut self) -> String {
        let (word, object) = self.next().await.expect("the watch goes on");
        format!("{word} {}", object["metadata"]["name"].as_str().unwrap_or("-"))
    }
}
