//! What the director says to the stage, and what comes back: one line of JSON each.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A request with the number that its answer will carry.
#[derive(Debug, Serialize, Deserialize)]
pub struct Numbered<T> {
    /// Counts requests.
    pub id: u64,
    /// What is asked or answered.
    pub body: T,
}

/// Something to do in the namespaces.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// A namespace for a node, connected with all others.
    AddNode {
        /// Its name.
        name: String,
        /// Its number, which gives its addresses.
        number: u8,
    },
    /// A process in the namespace of a node or pod; restarted when it ends, and ended with the stage.
    StartProcess {
        /// The node or pod.
        node: String,
        /// The words after `zoneward`.
        arguments: Vec<String>,
        /// Where its output goes.
        log: PathBuf,
    },
    /// A namespace for a pod, with a server that answers with its name, node and zone.
    AddPod {
        /// Its name.
        name: String,
        /// The node that it is on.
        node: String,
        /// The zone of that node.
        zone: String,
        /// Its number on that node.
        number: u8,
    },
    /// Takes a pod away.
    RemovePod {
        /// Its name.
        name: String,
    },
    /// Sends HTTP requests from a pod, one after the other, each by a connection of its own.
    Connect {
        /// The pod that connects.
        from: String,
        /// Where to.
        to: SocketAddr,
        /// How often.
        count: u32,
    },
    /// Connects until [`Request::StopLoop`].
    StartLoop {
        /// The pod that connects.
        from: String,
        /// Where to.
        to: SocketAddr,
    },
    /// Ends the loop of a pod, and answers with what it saw.
    StopLoop {
        /// The pod that connects.
        from: String,
    },
}

/// What became of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Done {
        /// The thread that lives in a new namespace, or the process that was started.
        task: Option<i32>,
    },
    /// Unsolicited: a process ended and was started again.
    Restarted(Restarted),
    /// What the connections met.
    Counted(Counts),
    /// It could not be done.
    Failed(String),
}

/// A process that ended although it should not have, and its successor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarted {
    /// The node or pod.
    pub place: String,
    /// How it ended, as `signal: 9 (SIGKILL)`.
    pub how: String,
    /// The new process.
    pub pid: i32,
}

/// What connections met.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// How often each pod answered.
    pub answers: BTreeMap<String, u64>,
    /// How often there was an icmp error or a reset instead of a connection.
    pub refused: u64,
    /// How often there was nothing, or half an answer.
    pub failed: u64,
}

impl Counts {
    /// All connections.
    pub fn total(&self) -> u64 {
        self.answers.values().sum::<u64>() + self.refused + self.failed
    }
}
