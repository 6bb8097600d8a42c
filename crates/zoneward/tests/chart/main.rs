//! The chart in deploy/chart and the plain manifests that are rendered from it, by the real helm and kubectl.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

mod api;
mod helm;
mod install;
mod objects;
mod rights;
mod values;
