//! The flags of leader election: Kubernetes' own names, and its own values where none are given.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::{ArgAction, Args};

use super::Settings;
use super::election::Timing;

/// Who of several leads.
#[derive(Clone, Debug, Args)]
pub struct LeaderArgs {
    /// Let only one of several controllers write, by a Lease
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub leader_elect: bool,
    /// How long others wait after the leader's last sign of life
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = model::duration::parse)]
    pub leader_elect_lease_duration: Duration,
    /// How long the leader tries to renew the Lease before it stops writing
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = model::duration::parse)]
    pub leader_elect_renew_deadline: Duration,
    /// How often the Lease is renewed, or asked for
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = model::duration::parse)]
    pub leader_elect_retry_period: Duration,
    /// The namespace of the Lease
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    pub leader_elect_resource_namespace: String,
    /// The name of the Lease
    #[arg(long, value_name = "NAME", default_value = "zoneward-controller")]
    pub leader_elect_resource_name: String,
}

impl LeaderArgs {
    /// The settings, or what is wrong with them. Nothing without `--leader-elect`.
    pub fn settings(&self) -> Result<Option<Settings>> {
        let timing = Timing {
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
        Ok(Some(Settings {
            namespace: self.leader_elect_resource_namespace.clone(),
            name: self.leader_elect_resource_name.clone(),
            identity: super::identity(),
            timing,
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

    fn settings(words: &[&str]) -> Result<Option<Settings>> {
        let words = ["x"].iter().chain(words).map(|word| (*word).to_owned());
        Line::try_parse_from(words).expect("the words are read").leader.settings()
    }

    #[test]
    fn times_that_could_make_two_leaders_are_refused() {
        let kubernetes = settings(&[]).expect("fine").expect("an election");
        assert_eq!(kubernetes.timing, Timing::default());
        assert!(settings(&["--leader-elect=false"]).expect("fine").is_none());
        assert!(settings(&["--leader-elect"]).expect("fine").is_some());
        let wrong = [
            vec!["--leader-elect-renew-deadline=15s"],
            vec!["--leader-elect-retry-period=6s"],
            vec!["--leader-elect-retry-period=0s"],
        ];
        for words in wrong {
            let error = settings(&words).expect_err("refused").to_string();
            assert!(error.contains("--leader-elect"), "{error}");
        }
    }
}
