//! The embedded HTTP and TCP proxy: obeys a RouteTable and a BackendTable.
//!
//! ```text
//! listener -> Entrance: which routes -> rule -> leg by weight -> the less loaded of two endpoints -> dialed or pooled
//! ```
//!
//! What is chosen has been chosen by the tables. The only own choice is by load among the endpoints that the brain
//! weighted, and to leave out for a while one that fails.

mod access;
mod certificate;
mod proxy;
mod settings;

pub use access::AccessLog;
pub use certificate::{KeyPair, KeyPairError};
pub use proxy::{Entrance, Proxy, Tables};
pub use settings::{Health, Limits, Readable, Settings, Timeouts};
