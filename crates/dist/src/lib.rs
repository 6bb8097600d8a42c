//! `cargo xtask dist`: packages of Zoneward, the same bytes from the same commit. A crate of its own, because xtask has no
//! dependencies and archives need some.
//!
//! ```text
//! compile ---> program --+--> contents --> tar.gz, deb, image --+
//! dependencies --> sbom, licences --^      debian --> image ----+--> checksums --> signature
//! deploy/chart -------------------------> chart ----------------+
//! ```

pub mod archive;
pub mod chart;
pub mod checksums;
pub mod compile;
pub mod contents;
pub mod deb;
pub mod debian;
pub mod dependencies;
pub mod image;
pub mod licences;
pub mod sbom;
pub mod source_date;
pub mod target;
