//! The flags of leader election, with the names and defaults of kube-controller-manager.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::{ArgAction, Args};
use clock::Clock;
use model::random::Random;

use super::LeaderElectionConfig;
use super::election::ElectionTiming;

#[derive(Clone, Debug, Args)]
pub struct LeaderArgs {
    /// Use a Lease to elect one of several controllers as leader; only the leader writes
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub leader_elect: bool,
    /// How long candidates wait after the last renewal before they acquire the lease
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = model::duration::parse)]
    pub leader_elect_lease_duration: Duration,
    /// How long the leader retries a renewal before it gives up leadership
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = model::duration::parse)]
    pub leader_elect_renew_deadline: Duration,
    /// Interval between attempts to acquire or renew the lease
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = model::duration::parse)]
    pub leader_elect_retry_period: Duration,
    /// Namespace of the Lease
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    pub leader_elect_resource_namespace: String,
    /// Name of the Lease
    #[arg(long, value_name = "NAME", default_value = "zoneward-controller")]
    pub leader_elect_resource_name: String,
}

impl LeaderArgs {
    /// The validated config; `None` with `--leader-elect=false`. The identity comes from `random`.
    pub fn config(&self, clock: &Clock, random: &mut Random) -> Result<Option<LeaderElectionConfig>> {
        let timing = ElectionTiming {
            lease_duration: self.leader_elect_lease_duration,
            renew_deadline: self.leader_elect_renew_deadline,
            retry_period: self.leader_elect_retry_period,
        };
        if !self.leader_elect {
            return Ok(None);
        }
        if timing.lease_duration <= timing.renew_deadline {
            bail!("--leader-elect-lease-duration must be longer than --leader-elect-renew-deadline");
        }
        if timing.renew_deadline < timing.retry_period * 2 {
            bail!("--leader-elect-renew-deadline must be at least twice --leader-elect-retry-period");
        }
        if timing.lease_duration < Duration::from_secs(1) || timing.retry_period.is_zero() {
            bail!(
                "--leader-elect-lease-duration must be at least 1s, and --leader-elect-retry-period not zero"
            );
        }
        Ok(Some(LeaderElectionConfig {
            namespace: self.leader_elect_resource_namespace.clone(),
            name: self.leader_elect_resource_name.clone(),
            identity: super::identity(random),
            annotations: Default::default(),
            timing,
            clock: clock.clone(),
            random: random.split(),
            ledger_address: super::LedgerAddressSource::default(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        leader: LeaderArgs,
    }

    fn config(words: &[&str]) -> Result<Option<LeaderElectionConfig>> {
        let words = ["x"].iter().chain(words).map(|word| (*word).to_owned());
        Line::try_parse_from(words)
            .expect("valid flags")
            .leader
            .config(&Clock::system(), &mut Random::seeded(1))
    }

    #[test]
    fn timing_that_allows_two_leaders_is_rejected() {
        let kubernetes = config(&[]).expect("fine").expect("an election");
        assert_eq!(kubernetes.timing, ElectionTiming::default());
        assert!(config(&["--leader-elect=false"]).expect("fine").is_none());
        assert!(config(&["--leader-elect"]).expect("fine").is_some());
        let wrong = [
            vec!["--leader-elect-renew-deadline=15s"],
            vec!["--leader-elect-retry-period=6s"],
            vec!["--leader-elect-retry-period=0s"],
        ];
        for words in wrong {
            let error = config(&words).expect_err("rejected").to_string();
            assert!(error.contains("--leader-elect"), "{error}");
        }
    }
}
