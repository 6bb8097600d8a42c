//! The protocol of the namespace host: one JSON line per request and response.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A request, or the response with the same id.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HostMessage<T> {
    pub id: u64,
    pub body: T,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum NamespaceRequest {
    /// Creates the namespace of a node and connects it with the others. The number determines its addresses.
    AddNode {
        name: String,
        number: u8,
    },
    /// Starts `zoneward`, this program or another one, in the namespace of a node or pod; restarted when it exits, stopped
    /// with the namespace host.
    StartProcess {
        namespace: String,
        program: Option<PathBuf>,
        arguments: Vec<String>,
        log: PathBuf,
    },
    /// Stops the process of a node or pod, and waits until it has drained its connections.
    StopProcess {
        namespace: String,
    },
    /// Creates the namespace of a pod, with a server that responds with its name, node and zone.
    AddPod {
        name: String,
        node: String,
        zone: String,
        number: u8,
    },
    RemovePod {
        name: String,
    },
    /// Sends HTTP requests from a pod, one after the other, each on a new connection.
    Connect {
        from: String,
        to: SocketAddr,
        count: u32,
    },
    /// Sends requests from a pod until [`NamespaceRequest::StopLoop`].
    StartLoop {
        from: String,
        to: SocketAddr,
    },
    /// Stops the loop of a pod and returns its counts.
    StopLoop {
        from: String,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum NamespaceResponse {
    /// The thread of a new namespace, or the pid of a new process.
    Done {
        task: Option<i32>,
    },
    /// Unsolicited: a process exited and was restarted.
    Restarted(ProcessRestart),
    Counted(ConnectionCounts),
    Failed(String),
}

/// A process that exited unexpectedly and was restarted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessRestart {
    /// The node or pod.
    pub namespace: String,
    /// Exit status, such as `signal: 9 (SIGKILL)`.
    pub status: String,
    /// The new process.
    pub pid: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConnectionCounts {
    /// Responses by pod.
    pub answers: BTreeMap<String, u64>,
    /// Connections that were reset or rejected by ICMP.
    pub refused: u64,
    /// Connections without a complete response.
    pub failed: u64,
}

impl ConnectionCounts {
    pub(crate) fn total(&self) -> u64 {
        self.answers.values().sum::<u64>() + self.refused + self.failed
    }
}
