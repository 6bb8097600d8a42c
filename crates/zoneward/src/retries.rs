//! Flags of the retries of requests, the same for the embedded proxy and for Envoys.

use clap::Args;
use model::route::RetryLimits;

#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Limits and timeouts")]
pub struct RetryArgs {
    /// Number of retries of a request without attempts in its rule or MeshLoadBalancing, and of a TCP connection
    #[arg(long, value_name = "N", default_value_t = RetryLimits::DEFAULT.attempts)]
    pub retries: u32,
    /// Maximum number of retries of a request; a rule with more attempts gets this number and a Notice
    #[arg(long, value_name = "N", default_value_t = RetryLimits::DEFAULT.max_per_request)]
    pub max_retries_per_request: u32,
}

impl RetryArgs {
    pub fn limits(&self) -> RetryLimits {
        RetryLimits { attempts: self.retries, max_per_request: self.max_retries_per_request }
    }
}
