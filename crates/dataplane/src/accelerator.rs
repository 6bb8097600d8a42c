//! The eBPF accelerator in front of nftables: TCP sockets that connect to a cluster IP are connected to an endpoint
//! instead, before there is a packet (`bpf/accelerator.c`).
//!
//! ```text
//! ForwardingTable -> render -> diff -> apply -> maps of the kernel, or of the fake
//!                                                |
//!                             socket -> connect: rewritten, or left to the rules of nftables
//! ```
//!
//! The rules of nftables stay complete. What the program does not see, or leaves, meets them: a failure costs time and
//! changes nothing else. Endpoints and their slots are those that nftables gets.

mod apply;
mod connect;
mod diff;
mod entries;
pub mod fake;
mod host;
mod kernel;
mod pinned;
mod render;

pub use apply::{AccelerateScope, Accelerator};
pub use connect::{ConnectOutcome, ConnectingSocket, LeftToRules, MapEntries};
pub use diff::MapChange;
pub use entries::{AcceleratorSettings, Chunk, ChunkKey, FrontendEntry};
pub use host::cgroup_root;
pub use kernel::{AcceleratorKernel, MapCapacity};
pub use pinned::{OBJECT, PIN_FOLDER, PinnedAccelerator, pinned_folder, remove_pins};
pub use render::{NotAccelerated, not_accelerated};
