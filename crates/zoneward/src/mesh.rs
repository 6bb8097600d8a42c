//! The L7 side: the same routes and endpoints for the embedded proxy and for Envoy, kept up as the world changes.
//!
//! ```text
//! watches or files -> State: Mirror (Snapshot) -> what a change touches -> a View for each consumer
//!    View: RouteTable + BackendTable + certificates -> the embedded proxy, or xDS
//! ```

pub mod accepted;
pub mod consumer;
pub mod control;
pub mod doors;
pub mod redirect;
pub mod run;
pub mod secret;
pub mod secrets;
pub mod source;
pub mod state;
mod touch;
mod view;

pub use consumer::{Consumer, Role};
pub use state::{State, Tables, Turned, Update};
