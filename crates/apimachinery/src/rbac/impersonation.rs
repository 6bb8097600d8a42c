//! Impersonation: a request as another user, for those who may. The constrained modes are tried first, then the verb
//! `impersonate`.
//!
//! ```text
//! impersonate-on:MODE:VERB on what is requested, and impersonate:MODE on the user -> that user
//! impersonate on users, groups, serviceaccounts, uids, userextras                  -> that user
//! ```

use super::{
    ANONYMOUS, AUTHENTICATED, AccessAttributes, MASTERS, RbacPolicy, ResourceAttributes, UNAUTHENTICATED,
    UserInfo, authorize, forbidden_message, is_subdomain, split_service_account,
};

/// With this many checks of one kind, a constrained mode first asks for all at once.
const MANY: usize = 4;
const AUTHENTICATION: &str = "authentication.k8s.io";

/// The outcome of impersonation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impersonation {
    pub user: UserInfo,
    /// The verb of the constrained mode that allowed it.
    pub constraint: Option<String>,
}

/// The refusal of a check: the resource, the name, and the message of kube-apiserver.
type Refusal = (String, String, String);

/// The key of an `Impersonate-Extra-` header: lower case, percent-decoded if that gives text.
pub fn extra_key(header: &str) -> String {
    let lower = header.to_ascii_lowercase();
    let mut bytes = Vec::with_capacity(lower.len());
    let mut rest = lower.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |at: usize| tail.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else { return lower };
        bytes.push(u8::try_from(high * 16 + low).unwrap_or_default());
        rest = &tail[2..];
    }
    String::from_utf8(bytes).unwrap_or(lower)
}

/// The user that a request with this identity acts as, or the refusal: resource, name and message.
pub fn impersonate(
    policy: &RbacPolicy,
    requestor: &UserInfo,
    wanted: &UserInfo,
    request: &AccessAttributes<'_>,
) -> Result<Impersonation, (String, String, String)> {
    for mode in MODES {
        if !mode.applies(requestor, wanted) || !mode.may_act(policy, requestor, request) {
            continue;
        }
        let verb = format!("impersonate:{}", mode.name());
        let check = FieldChecks { policy, requestor, verb: &verb, constrained: Some(*mode) };
        if let Ok(user) = check.user(wanted) {
            return Ok(Impersonation { user, constraint: Some(verb) });
        }
    }
    let check = FieldChecks { policy, requestor, verb: "impersonate", constrained: None };
    check.user(wanted).map(|user| Impersonation { user, constraint: None })
}

/// A constrained mode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// A service account as the node of its Pod.
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    UserInfo,
}

const MODES: &[Mode] = &[Mode::AssociatedNode, Mode::ArbitraryNode, Mode::ServiceAccount, Mode::UserInfo];

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::AssociatedNode => "associated-node",
            Self::ArbitraryNode => "arbitrary-node",
            Self::ServiceAccount => "serviceaccount",
            Self::UserInfo => "user-info",
        }
    }

    fn applies(self, requestor: &UserInfo, wanted: &UserInfo) -> bool {
        let only_name = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        let (node, account) = (node_name(&wanted.name), split_service_account(&wanted.name));
        match self {
            Self::AssociatedNode => {
                let own = requestor.extra.get("authentication.kubernetes.io/node-name");
                let own = own.and_then(|values| <&[String; 1]>::try_from(values.as_slice()).ok());
                only_name
                    && split_service_account(&requestor.name).is_some()
                    && node.is_some_and(|node| own.is_some_and(|[own]| own == node))
            }
            Self::ArbitraryNode => only_name && node.is_some(),
            Self::ServiceAccount => only_name && account.is_some(),
            Self::UserInfo => node.is_none() && account.is_none(),
        }
    }

    /// Whether the requestor may do what is requested in this mode.
    fn may_act(self, policy: &RbacPolicy, requestor: &UserInfo, request: &AccessAttributes<'_>) -> bool {
        let verb = format!("impersonate-on:{}:{}", self.name(), request.verb());
        let attributes = match *request {
            AccessAttributes::Resource(wanted) => {
                AccessAttributes::Resource(ResourceAttributes { verb: &verb, ..wanted })
            }
            AccessAttributes::Path { path, .. } => AccessAttributes::Path { verb: &verb, path },
        };
        authorize(policy, requestor, &attributes).is_allowed()
    }
}

fn node_name(user: &str) -> Option<&str> {
    user.strip_prefix("system:node:").filter(|name| is_subdomain(name))
}

/// Checks each field of the wanted user with one verb.
struct FieldChecks<'a> {
    policy: &'a RbacPolicy,
    requestor: &'a UserInfo,
    verb: &'a str,
    constrained: Option<Mode>,
}

impl FieldChecks<'_> {
    fn user(&self, wanted: &UserInfo) -> Result<UserInfo, Refusal> {
        let mut user = wanted.clone();
        self.name(wanted, &mut user)?;
        if !wanted.uid.is_empty() {
            self.check(AUTHENTICATION, "uids", "", "", &wanted.uid)?;
        }
        self.groups(&wanted.groups)?;
        self.extra(wanted)?;
        let ensure = |user: &mut UserInfo, group: &str| {
            if !user.groups.iter().any(|own| own == group) {
                user.groups.push(group.to_owned());
            }
        };
        if user.name == ANONYMOUS {
            ensure(&mut user, UNAUTHENTICATED);
        } else if !user.groups.iter().any(|group| group == UNAUTHENTICATED) {
            ensure(&mut user, AUTHENTICATED);
        }
        Ok(user)
    }

    /// The group of users and groups; the verb `impersonate` has them in the core group.
    fn group(&self) -> &'static str {
        if self.constrained.is_some() { AUTHENTICATION } else { "" }
    }

    fn name(&self, wanted: &UserInfo, user: &mut UserInfo) -> Result<(), Refusal> {
        if let (Some(mode), Some(node)) = (self.constrained, node_name(&wanted.name)) {
            user.groups = vec!["system:nodes".to_owned()];
            let name = if mode == Mode::AssociatedNode { "*" } else { node };
            return self.check(self.group(), "nodes", "", "", name);
        }
        if let Some((namespace, name)) = split_service_account(&wanted.name) {
            if wanted.groups.is_empty() {
                user.groups = UserInfo::service_account(namespace, name, "").groups;
                user.groups.retain(|group| group != AUTHENTICATED);
            }
            return self.check(self.group(), "serviceaccounts", "", namespace, name);
        }
        self.check(self.group(), "users", "", "", &wanted.name)
    }

    fn groups(&self, groups: &[String]) -> Result<(), Refusal> {
        if self.constrained.is_some() {
            if let Some(group) = groups.iter().find(|group| group.is_empty() || *group == MASTERS) {
                let why = format!("impersonating the group {group:?} is not allowed");
                return Err(("groups".to_owned(), group.clone(), why));
            }
            if groups.len() >= MANY && self.check(self.group(), "groups", "", "", "*").is_ok() {
                return Ok(());
            }
        }
        groups.iter().try_for_each(|group| self.check(self.group(), "groups", "", "", group))
    }

    fn extra(&self, wanted: &UserInfo) -> Result<(), Refusal> {
        let extra = &wanted.extra;
        if self.constrained.is_some() && !extra.is_empty() {
            for (key, values) in extra {
                let valid = is_extra_key(key) && !values.is_empty() && !values.iter().any(String::is_empty);
                if !valid {
                    let why = format!("impersonating the extra key {key:?} with these values is not allowed");
                    return Err(("userextras".to_owned(), String::new(), why));
                }
            }
            let many = extra.len() >= MANY || extra.values().map(Vec::len).sum::<usize>() >= MANY;
            if many && self.check(AUTHENTICATION, "userextras", "*", "", "*").is_ok() {
                return Ok(());
            }
        }
        for (key, values) in extra {
            for value in values {
                self.check(AUTHENTICATION, "userextras", key, "", value)?;
            }
        }
        Ok(())
    }

    fn check(
        &self,
        group: &str,
        resource: &str,
        subresource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<(), Refusal> {
        let attributes =
            ResourceAttributes { verb: self.verb, group, resource, subresource, namespace, name };
        let attributes = AccessAttributes::Resource(attributes);
        let decision = authorize(self.policy, self.requestor, &attributes);
        if decision.is_allowed() {
            return Ok(());
        }
        let (mut message, reason) = (forbidden_message(self.requestor, &attributes), decision.reason());
        if !reason.is_empty() {
            message = format!("{message}: {reason}");
        }
        let qualified = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        Err((qualified, name.to_owned(), message))
    }
}

/// `DOMAIN/PATH`, in lower case.
fn is_extra_key(key: &str) -> bool {
    let lower = !key.bytes().any(|byte| byte.is_ascii_uppercase());
    lower && key.split_once('/').is_some_and(|(domain, path)| is_subdomain(domain) && !path.is_empty())
}
