//! Versions side by side. `fixtures/VERSION` holds what a version wrote: the objects of its controller and node proxy,
//! its nftables rules, and its store as `kill -9` left it. The program of this build reads all of it, in both orders of
//! an upgrade, and writes what those versions need to read.
//!
//! `UPDATE_FIXTURES=1 cargo nextest run -p zoneward older_version_reads_what_this_one_writes` writes the
//! folder of this version anew: at each release, never for a version that is out. `FIXTURE_PROGRAM` and `FIXTURE_NAME`
//! make the folder of another build.

mod objects;
mod orders;
mod stores;
mod world;

use crate::namespace;
