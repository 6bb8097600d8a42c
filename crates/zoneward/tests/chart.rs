//! The chart in deploy/chart and the plain manifests that are rendered from it, by the real helm and kubectl.

mod api;
mod helm;
mod install;
mod objects;
mod rights;
mod values;
