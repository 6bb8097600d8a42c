//! The interface of a backend: what the node proxy, `trace packet` and `cleanup` use of it.
//!
//! A backend owns the way to its kernel interface. Over a fake kernel it is the same type, so that tests and
//! `trace packet` run the code that programs a node.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use model::forward::{FirstPacket, Frontend};
use model::{Family, ForwardingTable, ServiceKey};

/// Old and new frontends of one Service.
pub type FrontendChange<'a> = (&'a [Frontend], &'a [Frontend]);

/// Programs a kernel with a ForwardingTable and keeps it so.
pub trait NodeBackend {
    /// Programs the table: everything into an empty kernel, else the difference to what the kernel holds. Resets what
    /// the backend remembers of earlier calls. A refusal names the Services to leave out where that is known; until
    /// they are, each Service in the kernel is either old or new.
    fn load(&mut self, table: &ForwardingTable) -> Result<Reconciled, BackendError>;

    /// Applies the change of some Services, whose new frontends `table` has. One transaction, unless it exceeds the
    /// send buffer; then each transaction leaves every Service either old or new.
    fn change(
        &mut self,
        table: &ForwardingTable,
        services: &[FrontendChange<'_>],
    ) -> Result<(), BackendError>;

    /// Compares the kernel with the table and repairs differences. Free if no transaction but our own happened since
    /// the last call.
    fn reconcile(&mut self, table: &ForwardingTable) -> Result<Reconciled, BackendError>;

    /// One step of the work that is put off after a change, such as deleting unused chains. Returns whether more is
    /// left.
    fn maintain(&mut self) -> Result<bool, BackendError>;

    /// Whether the kernel holds rules of any Service.
    fn has_services(&mut self) -> Result<bool, BackendError>;

    /// Traces packets through the rules that the kernel holds. `addresses` are the node's own.
    fn trace(
        &mut self,
        packets: &[FirstPacket],
        addresses: &[IpAddr],
    ) -> Result<Vec<PacketTrace>, BackendError>;

    /// Deletes everything that node proxies left in this kernel interface; with `dry_run` only lists it.
    fn cleanup(&mut self, scope: CleanupScope, dry_run: bool) -> Result<Vec<CleanupItem>, BackendError>;

    /// Named counters of the kernel; none where a backend has none.
    fn packet_counts(&mut self) -> Vec<PacketCount> {
        Vec::new()
    }

    /// The rules of each table; none where a backend has no rules per Service.
    fn rule_counts(&self) -> Vec<RuleCount> {
        Vec::new()
    }
}

/// What the node proxy left in the kernel when it ran in another mode.
pub trait PreviousMode {
    /// Removes it, now that the rules of the new mode are in force. Returns `None` while open connections need some of it.
    fn retire(&mut self) -> Result<Option<Vec<CleanupItem>>, BackendError>;
}

/// Connections do not need the rules that they were opened by.
impl<B: NodeBackend> PreviousMode for B {
    fn retire(&mut self) -> Result<Option<Vec<CleanupItem>>, BackendError> {
        self.cleanup(CleanupScope::NodeProxy, false).map(Some)
    }
}

/// Packets that a named counter of the kernel has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketCount {
    pub counter: &'static str,
    pub packets: u64,
}

/// Rules in one table of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleCount {
    pub family: Family,
    pub table: &'static str,
    /// Rules that the kernel holds.
    pub total: usize,
    /// Rules that the last sync wrote.
    pub last: usize,
}

/// Result of [`NodeBackend::load`] and [`NodeBackend::reconcile`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// The kernel held nothing of ours.
    pub is_initial: bool,
    /// Transactions that were needed; 0 if the kernel held what it should.
    pub transactions: usize,
    /// Foreign objects within our tables.
    pub problems: Vec<String>,
}

/// What happens to the first packet of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TracedVerdict {
    /// Forwarded to an endpoint.
    Dnat,
    /// Dropped, and the sender is notified.
    Reject,
    /// Dropped.
    Drop,
    /// Accepted by a rule, without DNAT.
    Accept,
    /// No rule matched.
    Untouched,
}

/// The way of one packet through the rules.
#[derive(Clone, Debug, PartialEq)]
pub struct PacketTrace {
    /// The most likely verdict.
    pub verdict: TracedVerdict,
    /// Endpoints with their probabilities, sorted by address.
    pub endpoints: Vec<(SocketAddr, f64)>,
    /// The source is replaced by an address of the node.
    pub masquerade: bool,
    /// Session affinity timeout in milliseconds.
    pub affinity: Option<u64>,
    /// The rules that matched on the most likely path.
    pub steps: Vec<PacketTraceStep>,
}

/// One rule that matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketTraceStep {
    /// Where the rule is, in the backend's terms.
    pub rule: String,
    /// What the rule looked up and did.
    pub detail: String,
}

/// Whose rules [`NodeBackend::cleanup`] deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanupScope {
    /// Those of Zoneward's node proxy, as after a change of the mode.
    NodeProxy,
    /// Zoneward's, with those of its sidecars.
    Zoneward,
    /// Zoneward's and kube-proxy's.
    AllProxies,
}

/// An object that [`NodeBackend::cleanup`] deleted, or would delete.
#[derive(Debug)]
pub struct CleanupItem {
    /// Such as `nftables table`.
    pub kind: &'static str,
    pub name: String,
    /// Why it could not be deleted.
    pub error: Option<BackendError>,
}

/// Why the kernel does not hold what it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendError {
    message: String,
    is_refusal: bool,
    services: BTreeSet<ServiceKey>,
}

impl BackendError {
    /// The kernel validated the changes and refused one of them.
    pub fn refused(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_refusal: true, services: BTreeSet::new() }
    }

    /// The kernel refused the rules of these Services.
    pub fn refused_services(message: impl Into<String>, services: BTreeSet<ServiceKey>) -> Self {
        Self { message: message.into(), is_refusal: true, services }
    }

    /// Any other failure.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_refusal: false, services: BTreeSet::new() }
    }

    /// Whether other changes may still succeed.
    pub fn is_refusal(&self) -> bool {
        self.is_refusal
    }

    /// The Services without which the rest may succeed, as far as known.
    pub fn services(&self) -> &BTreeSet<ServiceKey> {
        &self.services
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BackendError {}
