//! The configuration of decisions for commands that predict: that of the controller that leads, where they read its cluster.

use anyhow::{Context, Result};
use clock::Clock;
use cluster::input::InputArgs;
use model::{Notice, ObjectRef};
use plan::PlanningConfig;

use super::status::leader::StatusServer;

/// What holds where flags say nothing. A controller that leads and does not answer is named in a Notice.
pub(super) fn base(input: &InputArgs, notices: &mut Vec<Notice>) -> PlanningConfig {
    if !input.files.is_empty() {
        return PlanningConfig::without_flags();
    }
    let known = of_leader(input).unwrap_or_else(|error| {
        let message = format!(
            "the flags of the running controller are not known ({}): these are used instead, or their defaults",
            cluster::failure::text(&error)
        );
        notices.push(Notice::new(ObjectRef::new("Lease", "", "zoneward-controller"), "FlagsUnknown", message));
        None
    });
    known.unwrap_or_else(PlanningConfig::without_flags)
}

fn of_leader(input: &InputArgs) -> Result<Option<PlanningConfig>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting")?;
    runtime.block_on(async {
        let client = cluster::connect(&input.connection, &Clock::system()).await?;
        StatusServer::of_leader(client).planning().await
    })
}
