//! A Service with its pods, one node and stored slices, made of a few words each.

use std::fmt::Write;
use std::net::IpAddr;

use expect_test::Expect;
use model::{Interner, Object, parse};
use serde_json::{Value, json};

use super::super::*;

/// Everything that one plan sees. The Service is `shop/web`, the node `n1`.
pub(super) struct World {
    pub(super) service: Service,
    pub(super) pods: Vec<Pod>,
    pub(super) slices: Vec<Slice>,
    pub(super) trigger: TriggerTimes,
    pub(super) options: SliceOptions,
    pub(super) nodes: BTreeMap<Name, Node>,
}

/// Puts the fields of `over` onto `value`, however deep.
fn merge(value: &mut Value, over: Value) {
    match (value, over) {
        (Value::Object(fields), Value::Object(over)) => {
            for (key, over) in over {
                merge(fields.entry(key).or_insert(Value::Null), over);
            }
        }
        (value, over) => *value = over,
    }
}

fn parsed(value: Value) -> Object {
    let (object, notices) = parse::object(&value, &mut Interner::default());
    object.unwrap_or_else(|| panic!("{value}: {notices:?}"))
}

impl World {
    /// A Service with one port, changed by `spec`.
    pub(super) fn new(spec: Value) -> Self {
        let mut service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "shop", "name": "web", "uid": "web-uid"},
            "spec": {"selector": {"app": "web"}, "clusterIP": "10.96.0.1",
                "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}});
        merge(&mut service["spec"], spec);
        let Object::Service(service) = parsed(service) else { panic!("no Service") };
        let node = parsed(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}));
        let Object::Node(node) = node else { panic!("no Node") };
        Self {
            service: *service,
            pods: Vec::new(),
            slices: Vec::new(),
            trigger: TriggerTimes::default(),
            options: SliceOptions::WITHOUT_FLAGS,
            nodes: [(node.name.clone(), *node)].into(),
        }
    }

    /// Adds a ready pod on n1, changed by `over` and `status`.
    pub(super) fn pod(&mut self, name: &str, over: Value, status: Value) {
        let ip = format!("10.0.0.{}", self.pods.len() + 1);
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "shop", "name": name, "uid": format!("uid-{name}")},
            "spec": {"nodeName": "n1", "containers": []},
            "status": {"podIP": ip, "podIPs": [{"ip": ip}],
                "conditions": [{"type": "Ready", "status": "True"}]}});
        merge(&mut pod, over);
        merge(&mut pod["status"], status);
        let Object::Pod(pod) = parsed(pod) else { panic!("no Pod") };
        self.pods.push(*pod);
        self.pods.sort_by(|a, b| a.key.cmp(&b.key));
    }

    pub(super) fn input<'a>(&'a self, pods: &'a [&'a Pod]) -> SliceInput<'a> {
        SliceInput {
            service: &self.service,
            pods,
            nodes: &self.nodes,
            slices: &self.slices,
            trigger: &self.trigger,
        }
    }

    pub(super) fn plan(&self) -> SlicePlan {
        let pods: Vec<&Pod> = self.pods.iter().collect();
        plan(&self.input(&pods), &self.options, |_, _| {})
    }

    /// Plans a world without slices and stores what comes out as `web-1`, `web-2` and so on.
    pub(super) fn settle(&mut self) -> SlicePlan {
        assert_eq!(self.slices, []);
        let plan = self.plan();
        for (i, content) in plan.creates.iter().enumerate() {
            self.store(&format!("web-{}", i + 1), content.clone());
        }
        self.trigger = plan.trigger.clone();
        plan
    }

    pub(super) fn store(&mut self, name: &str, content: SliceContent) {
        self.slices.push(Slice { generation: 1, ..Slice::owned_by(&self.service, name, content) });
    }

    /// Compares the plan, as text.
    pub(super) fn check(&self, expect: Expect) {
        let plan = self.plan();
        let mut text = String::new();
        for content in &plan.creates {
            writeln!(text, "create {}", shown(content)).unwrap();
        }
        for (key, content) in &plan.updates {
            writeln!(text, "update {} {}", key.name, shown(content)).unwrap();
        }
        for key in &plan.deletes {
            writeln!(text, "delete {}", key.name).unwrap();
        }
        for key in &plan.unchanged {
            writeln!(text, "keep {}", key.name).unwrap();
        }
        for node in &plan.missing_nodes {
            writeln!(text, "missing node {node}").unwrap();
        }
        for notice in &plan.notices {
            writeln!(text, "{notice}").unwrap();
        }
        expect.assert_eq(&text);
    }
}

fn shown(content: &SliceContent) -> String {
    let ports = content.ports.iter().map(|p| {
        let name = p.name.as_ref().map_or("", Name::as_str);
        format!("{name}:{}/{}", p.port.unwrap_or_default(), p.protocol)
    });
    let endpoints = content.endpoints.iter().map(|e| {
        let pod = e.target().map_or("", |t| t.name.as_str());
        let node = e.node.as_ref().map_or("", Name::as_str);
        let addresses: Vec<String> = e.addresses.iter().map(|a: IpAddr| a.to_string()).collect();
        let conditions = [
            ("ready", e.conditions.ready),
            ("serving", e.conditions.serving),
            ("terminating", e.conditions.terminating),
        ];
        let on = conditions.iter().filter(|(_, value)| *value == Some(true)).map(|(name, _)| *name);
        let mut words = vec![format!("{pod}@{node}"), addresses.join("+")];
        words.extend(on.map(str::to_owned));
        words.join(" ")
    });
    let ports: Vec<String> = ports.collect();
    let endpoints: Vec<String> = endpoints.collect();
    format!("{} [{}] {}", content.address_type.as_str(), ports.join(" "), endpoints.join(", "))
        .trim_end()
        .to_owned()
}
