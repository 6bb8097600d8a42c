//! The one binary, as a library: `main.rs` only calls it, so that tests and benches reach its parts.
//!
//! Commands parse their flags, read the world through [`input`] or [`cluster`], ask the brain (`plan`) and print
//! through [`output`]. Nothing is decided here.

#![allow(missing_docs, reason = "fields and methods whose names say it all")]

pub mod addresses;
pub mod children;
pub mod cli;
pub mod cluster;
pub mod commands;
pub mod controller;
pub mod demo;
pub mod events;
pub mod input;
pub mod leader;
pub mod log;
pub mod mesh;
pub mod node;
pub mod object_name;
pub mod output;
pub mod oversight;
pub mod routes;
pub mod serve;
pub mod signals;
