//! The image of a real build, read by skopeo, umoci and containerd, and run by runc with the rights that the manifests in
//! deploy/ give to each role. The build takes minutes, so these are not part of the ordinary run:
//! `cargo xtask test --extended --only packages`. They need root, as a container runtime does.

mod container;
mod containerd;
mod iptables;
mod manifests;
mod node;
mod readers;
mod roles;

use crate::packages::build;
use std::path::PathBuf;

use dist::image::ImageVariant;

use build::{Scratch, packages, root, run};

/// An image of the build.
fn image(variant: ImageVariant) -> PathBuf {
    packages().join(variant.file_name(env!("CARGO_PKG_VERSION")))
}
