//! `cargo xtask dist`: packages of Zoneward, the same bytes from the same commit. A crate of its own, because xtask has no
//! dependencies and archives need some.

pub mod image;
pub mod source_date;
