//! The overload manager: what is shed, in which order, when a bound is reached.
//!
//! Every bound is shared fairly between clients (`listener::FairShares`): one client may use all of it until another one
//! needs a part. docs/security.md lists the bounds with the order of shedding.
//!
//! ```text
//! requests in flight, requests of a backend -> request_slots: the oldest request of the client that has most
//! body bytes, descriptors, connections      -> open_connections: connections of the client that holds most
//! ```
//!
//! Without pressure a request costs two counters, and a body chunk one more than without shares. The shares of clients are
//! counted once half of a limit is used; those of connections are computed when one must close.

pub(crate) mod descriptors;
pub(crate) mod eviction;
pub(crate) mod open_connections;
pub(crate) mod request_slots;
