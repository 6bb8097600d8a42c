//! The embedded HTTP and TCP proxy: obeys a RouteTable and a BackendTable.
//!
//! ```text
//! connection (stream, sniff, original) -> exchange: the rule (state, rules) -> forward: a backend by weight (slot),
//!   the less loaded of two endpoints (balance, peer), a connection (pool) -> answer (body, piece), account (ticket)
//!            \\-> tcp: carried whole (tunnel)
//! ```
//!
//! What is chosen has been chosen by the tables. The only own choice is by load among the endpoints that the brain
//! weighted, and to leave out for a while one that fails.

mod access;
mod balance;
mod body;
mod certificate;
mod connection;
mod counts;
mod edits;
mod exchange;
mod forward;
mod metrics;
mod mirror;
mod original;
mod peer;
mod piece;
mod pool;
mod proxy;
mod random;
mod registry;
mod reply;
mod request;
mod rules;
mod settings;
mod slot;
mod sniff;
mod state;
mod stream;
mod tcp;
mod ticket;
mod tunnel;
mod upgrade;

pub use access::AccessLog;
pub use certificate::{KeyPair, KeyPairError};
pub use proxy::{Entrance, Proxy, Tables};
pub use settings::{Health, Limits, Readable, Settings, Timeouts};
