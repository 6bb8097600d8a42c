//! Flags for slices by zone, which the controllers, `plan slices` and `simulate replay` share.

use clap::Args;
use plan::subsetting::{DEFAULT_SUBSET_FROM, SubsetOptions};

/// Flags for slices by zone.
#[derive(Clone, Copy, Debug, Args)]
pub struct SubsetArgs {
    /// Write the EndpointSlices of large Services by zone, with the label zoneward.dev/for-zone, for node proxies with
    /// --watch-own-zone
    #[arg(long)]
    pub subset_slices: bool,
    /// Ready endpoints from which on a Service has slices by zone; below 70 % of it, it has them no longer
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SUBSET_FROM, value_parser = clap::value_parser!(u32).range(1..))]
    pub subset_from: u32,
}

impl SubsetArgs {
    pub fn options(self) -> Option<SubsetOptions> {
        let from = usize::try_from(self.subset_from).unwrap_or(usize::MAX);
        self.subset_slices.then_some(SubsetOptions { from })
    }
}
