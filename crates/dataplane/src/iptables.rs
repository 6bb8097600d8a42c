//! Rules in iptables' own text format.
//!
//! ```text
//! iptables-save text, iptables-restore text -> ruleset -> trace a packet, or print as iptables-save does
//! ```

pub mod ruleset;
