//! The print columns of `kubectl get`, as in Kubernetes. Columns of `-o wide` have a priority above zero.

use serde_json::Value;

use super::{crd_columns, print_cells};

/// One column of a table.
#[derive(Debug)]
pub(crate) struct Column {
    pub name: &'static str,
    /// `string`, `integer` or `date`.
    pub kind: &'static str,
    /// 0 is always shown, 1 only with `-o wide`.
    pub priority: i32,
    pub cell: Cell,
}

/// The content of a column.
#[derive(Debug)]
pub(crate) enum Cell {
    /// The value at a path; `<none>` if missing.
    Field(&'static str),
    /// The time since creation.
    Age,
    /// Computed from the object and the time.
    Computed(fn(&Value, i64) -> Value),
    /// The value at a JSON path of a CustomResourceDefinition; null if missing.
    Path(&'static crd_columns::JsonPath),
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

pub(super) const CONFIG_MAP: &[Column] = &[NAME, computed("Data", print_cells::data_count), AGE];

pub(super) const SECRET: &[Column] =
    &[NAME, field("Type", "type"), computed("Data", print_cells::data_count), AGE];

pub(super) const SERVICE_ACCOUNT: &[Column] = &[NAME, computed("Secrets", print_cells::secrets_count), AGE];

pub(super) const ROLE: &[Column] = &[NAME, field("Created At", "metadata.creationTimestamp")];

pub(super) const ROLE_BINDING: &[Column] = &[
    NAME,
    computed("Role", print_cells::role_reference),
    AGE,
    wide(computed("Users", print_cells::user_subjects)),
    wide(computed("Groups", print_cells::group_subjects)),
    wide(computed("ServiceAccounts", print_cells::service_account_subjects)),
];

pub(super) const NAMESPACE: &[Column] = &[NAME, field("Status", "status.phase"), AGE];

pub(super) const SERVICE: &[Column] = &[
    NAME,
    field("Type", "spec.type"),
    field("Cluster-IP", "spec.clusterIP"),
    computed("External-IP", print_cells::external_ip),
    computed("Port(s)", print_cells::service_ports),
    AGE,
    wide(computed("Selector", print_cells::selector)),
];

pub(super) const ENDPOINT_SLICE: &[Column] = &[
    NAME,
    field("AddressType", "addressType"),
    computed("Ports", print_cells::slice_ports),
    computed("Endpoints", print_cells::endpoints),
    AGE,
];

pub(super) const POD: &[Column] = &[
    NAME,
    computed("Ready", print_cells::pod_ready),
    computed("Status", print_cells::pod_status),
    computed("Restarts", print_cells::pod_restarts),
    AGE,
    wide(computed("IP", print_cells::pod_ip)),
    wide(field("Node", "spec.nodeName")),
    wide(field("Nominated Node", "status.nominatedNodeName")),
    wide(computed("Readiness Gates", print_cells::readiness_gates)),
];

pub(super) const NODE: &[Column] = &[
    NAME,
    computed("Status", print_cells::node_status),
    computed("Roles", print_cells::node_roles),
    AGE,
    computed("Version", print_cells::node_version),
    wide(computed("Internal-IP", print_cells::internal_ip)),
    wide(computed("External-IP", print_cells::node_external_ip)),
    wide(computed("OS-Image", print_cells::os_image)),
    wide(computed("Kernel-Version", print_cells::kernel_version)),
    wide(computed("Container-Runtime", print_cells::container_runtime)),
];

pub(super) const SERVICE_CIDR: &[Column] = &[NAME, computed("CIDRs", print_cells::cidrs), AGE];

pub(super) const IP_ADDRESS: &[Column] = &[NAME, computed("ParentRef", print_cells::parent_ref), AGE];

pub(super) const LEASE: &[Column] = &[NAME, field("Holder", "spec.holderIdentity"), AGE];

pub(super) const EVENT: &[Column] = &[
    computed("Last Seen", print_cells::last_seen),
    field("Type", "type"),
    field("Reason", "reason"),
    computed("Object", print_cells::event_object),
    wide(field("Subobject", "involvedObject.fieldPath")),
    wide(computed("Source", print_cells::event_source)),
    field("Message", "message"),
    wide(computed("First Seen", print_cells::first_seen)),
    wide(computed("Count", print_cells::event_count)),
    wide(NAME),
];

pub(super) const POLICY: &[Column] = &[
    NAME,
    computed("Validations", print_cells::validations),
    computed("ParamKind", print_cells::param_kind),
    AGE,
];

pub(super) const POLICY_BINDING: &[Column] =
    &[NAME, field("PolicyName", "spec.policyName"), computed("ParamRef", print_cells::param_ref), AGE];
