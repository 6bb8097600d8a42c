//! How often a request is sent again. Both proxies take the number from here, so that they agree.
//!
//! ```text
//! attempts of the rule, else of the policy for its backend, else of the proxy; at most the proxy's ceiling
//! ```

use std::borrow::Cow;
use std::time::Duration;

use crate::notice::Notice;
use crate::route::table::HttpRule;

/// Reason of the Notice about a rule with more retries than the ceiling.
pub(super) const RETRIES_REDUCED: &str = "RetriesReduced";

/// The retries of a rule. Connection errors and timeouts of a backend request are retried, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteRetry {
    /// The statuses of backends that are retried.
    pub codes: Box<[u16]>,
    /// Retries after the first request; `None`: those of the policy, else of the proxy.
    pub attempts: Option<u32>,
    /// The minimum wait before a retry.
    pub backoff: Option<Duration>,
}

impl RouteRetry {
    /// Envoy's base interval.
    pub const DEFAULT_BACKOFF: Duration = Duration::from_millis(25);

    pub fn backoff(&self) -> Duration {
        self.backoff.unwrap_or(Self::DEFAULT_BACKOFF)
    }

    /// The retries of a rule, else of the policy for its backend; a rule without `attempts` has those of the policy.
    pub fn resolve<'r>(rule: Option<&'r Self>, policy: Option<&'r Self>) -> Option<Cow<'r, Self>> {
        let (Some(own), Some(policy)) = (rule, policy) else { return rule.or(policy).map(Cow::Borrowed) };
        Some(match own.attempts.is_none() && policy.attempts.is_some() {
            true => Cow::Owned(Self { attempts: policy.attempts, ..own.clone() }),
            false => Cow::Borrowed(own),
        })
    }
}

/// The retries of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryLimits {
    /// Retries of a request whose rule and policy have no number.
    pub attempts: u32,
    /// The most retries of one request, whatever its rule says.
    pub max_per_request: u32,
}

impl Default for RetryLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl RetryLimits {
    pub const DEFAULT: Self = Self { attempts: 2, max_per_request: 10 };

    /// The retries of a request after its first try, for all reasons and endpoints together.
    pub fn of(&self, retry: Option<&RouteRetry>) -> u32 {
        let wanted = retry.and_then(|retry| retry.attempts).unwrap_or(self.attempts);
        wanted.min(self.max_per_request)
    }

    /// The Notice about a rule that asks for more than the ceiling.
    pub fn notice(&self, rule: &HttpRule) -> Option<Notice> {
        let attempts =
            rule.action.retry.as_ref()?.attempts.filter(|attempts| *attempts > self.max_per_request)?;
        let message = format!(
            "{}.retry.attempts: {attempts} is reduced to {}, the most retries of one request; lower it, or raise --max-retries-per-request of the proxy",
            rule.origin.field, self.max_per_request
        );
        Some(Notice::new(rule.origin.policy.clone()?, RETRIES_REDUCED, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notice::ObjectRef;
    use crate::route::action::{Responder, RuleAction, WeightedBackends};

    fn attempts(attempts: Option<u32>) -> RouteRetry {
        RouteRetry { attempts, ..RouteRetry::default() }
    }

    #[test]
    fn attempts_are_those_of_the_rule_else_of_the_policy_else_of_the_proxy_below_the_ceiling() {
        let limits = RetryLimits { attempts: 2, max_per_request: 10 };
        for (rule, policy, wanted) in [
            (None, None, 2),
            (Some(None), None, 2),
            (None, Some(Some(3)), 3),
            (Some(None), Some(Some(3)), 3),
            (Some(Some(0)), Some(Some(3)), 0),
            (Some(Some(5)), Some(Some(3)), 5),
            (Some(Some(1_000)), None, 10),
        ] {
            let (rule, policy) = (rule.map(attempts), policy.map(attempts));
            let resolved = RouteRetry::resolve(rule.as_ref(), policy.as_ref());
            assert_eq!(limits.of(resolved.as_deref()), wanted, "{rule:?} {policy:?}");
        }
    }

    #[test]
    fn a_rule_that_asks_for_more_than_the_ceiling_gets_a_notice() {
        let notice = |wanted| {
            let mut rule =
                HttpRule::catch_all(RuleAction::new(Responder::Forward(WeightedBackends::default())));
            rule.action.retry = Some(attempts(wanted));
            rule.origin.policy = Some(ObjectRef::new("HTTPRoute", "shop", "checkout"));
            rule.origin.field = "spec.rules[0]".to_owned();
            RetryLimits::DEFAULT.notice(&rule)
        };
        assert_eq!((notice(None), notice(Some(10))), (None, None));
        let notice = notice(Some(11)).expect("one more than the ceiling");
        assert_eq!((notice.reason, &*notice.object.name), (RETRIES_REDUCED, "checkout"));
        assert!(
            notice.message.starts_with("spec.rules[0].retry.attempts: 11 is reduced to 10"),
            "{notice:?}"
        );
    }

    #[test]
    fn codes_and_backoff_of_a_rule_stay_its_own() {
        let rule = RouteRetry { codes: [500].into(), ..RouteRetry::default() };
        let policy = RouteRetry { codes: [503].into(), attempts: Some(1), backoff: Some(Duration::ZERO) };
        let resolved = RouteRetry::resolve(Some(&rule), Some(&policy)).expect("the rule's");
        assert_eq!(*resolved, RouteRetry { attempts: Some(1), ..rule.clone() });
        assert_eq!(resolved.backoff(), RouteRetry::DEFAULT_BACKOFF);
    }
}
