//! The columns that `kubectl get` shows, as its users know them. Wide ones have a priority above zero.

use serde_json::Value;

use super::{cells, printed};

/// One column of a table.
#[derive(Debug)]
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// `string`, `integer` or `date`.
    pub kind: &'static str,
    /// 0 is always shown, 1 only with `-o wide`.
    pub priority: i32,
    /// What stands in it.
    pub cell: Cell,
}

/// Where the content of a cell comes from.
#[derive(Debug)]
pub enum Cell {
    /// The value at a path, `<none>` where there is none.
    Field(&'static str),
    /// The time since the object was made.
    Age,
    /// Worked out of several fields.
    Computed(fn(&Value, i64) -> Value),
    /// The value at a path of a definition, nothing where there is none.
    Path(&'static printed::JsonPath),
}

const fn field(name: &'static str, path: &'static str) -> Column {
    Column { name, kind: "string", priority: 0, cell: Cell::Field(path) }
}

const fn computed(name: &'static str, cell: fn(&Value, i64) -> Value) -> Column {
    Column { name, kind: "string", priority: 0, cell: Cell::Computed(cell) }
}

const fn wide(column: Column) -> Column {
    Column { priority: 1, ..column }
}

pub(super) const NAME: Column = field("Name", "metadata.name");
const AGE: Column = Column { name: "Age", kind: "string", priority: 0, cell: Cell::Age };

pub(super) const OTHER: &[Column] = &[NAME, AGE];

pub(super) const CONFIG_MAP: &[Column] = &[NAME, computed("Data", cells::data_count), AGE];

pub(super) const SECRET: &[Column] = &[NAME, field("Type", "type"), computed("Data", cells::data_count), AGE];

pub(super) const NAMESPACE: &[Column] = &[NAME, field("Status", "status.phase"), AGE];

pub(super) const SERVICE: &[Column] = &[
    NAME,
    field("Type", "spec.type"),
    field("Cluster-IP", "spec.clusterIP"),
    computed("External-IP", cells::external_ip),
    computed("Port(s)", cells::service_ports),
    AGE,
    wide(computed("Selector", cells::selector)),
];

pub(super) const ENDPOINT_SLICE: &[Column] = &[
    NAME,
    field("AddressType", "addressType"),
    computed("Ports", cells::slice_ports),
    computed("Endpoints", cells::endpoints),
    AGE,
];

pub(super) const POD: &[Column] = &[
    NAME,
    computed("Ready", cells::pod_ready),
    computed("Status", cells::pod_status),
    computed("Restarts", cells::pod_restarts),
    AGE,
    wide(computed("IP", cells::pod_ip)),
    wide(field("Node", "spec.nodeName")),
    wide(field("Nominated Node", "status.nominatedNodeName")),
    wide(computed("Readiness Gates", cells::readiness_gates)),
];

pub(super) const NODE: &[Column] = &[
    NAME,
    computed("Status", cells::node_status),
    computed("Roles", cells::node_roles),
    AGE,
    computed("Version", cells::node_version),
    wide(computed("Internal-IP", cells::internal_ip)),
    wide(computed("External-IP", cells::node_external_ip)),
    wide(computed("OS-Image", cells::os_image)),
    wide(computed("Kernel-Version", cells::kernel_version)),
    wide(computed("Container-Runtime", cells::container_runtime)),
];

pub(super) const SERVICE_CIDR: &[Column] = &[NAME, computed("CIDRs", cells::cidrs), AGE];

pub(super) const IP_ADDRESS: &[Column] = &[NAME, computed("ParentRef", cells::parent_ref), AGE];

pub(super) const LEASE: &[Column] = &[NAME, field("Holder", "spec.holderIdentity"), AGE];

pub(super) const EVENT: &[Column] = &[
    computed("Last Seen", cells::last_seen),
    field("Type", "type"),
    field("Reason", "reason"),
    computed("Object", cells::event_object),
    wide(field("Subobject", "involvedObject.fieldPath")),
    wide(computed("Source", cells::event_source)),
    field("Message", "message"),
    wide(computed("First Seen", cells::first_seen)),
    wide(computed("Count", cells::event_count)),
    wide(NAME),
];

pub(super) const POLICY: &[Column] =
    &[NAME, computed("Validations", cells::validations), computed("ParamKind", cells::param_kind), AGE];

pub(super) const POLICY_BINDING: &[Column] =
    &[NAME, field("PolicyName", "spec.policyName"), computed("ParamRef", cells::param_ref), AGE];
