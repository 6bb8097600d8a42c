//! What becomes of one request, in words: which rule it hits, why not the others, and what arrives where.

use model::Name;
use model::route::{
    Action, Arrival, Body, End, Entry, HeaderList, Hit, HttpRoutes, HttpRule, Leg, Mirror, Miss, PathMatch,
    Request, ValueTest, error_text, path, plain_host,
};

/// A request as it comes in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Incoming {
    /// The method.
    pub method: String,
    /// The host, with or without a port.
    pub host: String,
    /// The path with its query.
    pub path: String,
    /// The headers.
    pub headers: Vec<(Name, Name)>,
    /// What a backend would answer with.
    pub response_headers: Vec<(Name, Name)>,
}

/// One reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What was asked.
    pub rule: String,
    /// What it did here.
    pub detail: String,
}

/// What becomes of a request, and why.
#[derive(Clone, Debug)]
pub struct Trace<'t> {
    /// The rule that it hits.
    pub hit: Option<Hit<'t>>,
    /// What then happens.
    pub outcome: Outcome,
    /// Why.
    pub why: Vec<Step>,
}

/// What becomes of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The status, if the proxy answers by itself.
    pub status: Option<u16>,
    /// Where it may go.
    pub legs: Vec<Leg>,
    /// Where copies go.
    pub mirrors: Vec<Mirror>,
    /// The host that a backend sees; what came in, where the proxy answers by itself.
    pub host: String,
    /// The path that a backend sees, with its query.
    pub path: String,
    /// The headers that a backend sees.
    pub headers: Vec<(Name, Name)>,
    /// The headers of the answer.
    pub response_headers: Vec<(Name, Name)>,
    /// The body of the answer, if the proxy gives it.
    pub body: Option<Body>,
}

impl Outcome {
    fn unchanged(incoming: &Incoming) -> Self {
        Self {
            host: incoming.host.clone(),
            path: incoming.path.clone(),
            headers: incoming.headers.clone(),
            ..Self::default()
        }
    }
}

/// How many matches that do not hold are told one by one.
const TOLD: usize = 100;

/// Sends a request through the routes of a destination or host. `None`: there are none for this host.
pub fn trace<'t>(routes: Option<&'t HttpRoutes>, incoming: &Incoming, at: &Arrival) -> Trace<'t> {
    let (given, query) = path::split(&incoming.path);
    let normal = path::normalize(given);
    let headers = HeaderList(incoming.headers.clone());
    let request =
        Request { method: &incoming.method, host: &incoming.host, path: &normal, query, headers: &headers };
    let mut why = Vec::new();
    if normal != given {
        why.push(step("path", format!("{given} is read as {normal}")));
    }
    let Some(routes) = routes else {
        let host = plain_host(&incoming.host);
        why.push(step(
            "host",
            format!("no listener and route of this gateway is for the host {host:?}: 404"),
        ));
        let outcome = no_route(incoming);
        return Trace { hit: None, outcome, why };
    };
    let hit = routes.find(&request);
    explain_matches(routes, hit.as_ref(), &request, &mut why);
    let outcome = match &hit {
        Some(hit) => follow(&hit.rule.action, &hit.entry.path, incoming, &request, at, &mut why),
        None => no_route(incoming),
    };
    if hit.is_none() {
        why.push(step("no match", "no rule holds, and a gateway has nothing behind its rules: 404"));
    }
    Trace { hit, outcome, why }
}

fn no_route(incoming: &Incoming) -> Outcome {
    Outcome { status: Some(404), body: Some(own_text(404)), ..Outcome::unchanged(incoming) }
}

fn own_text(status: u16) -> Body {
    Body::Text(Name::new(error_text(status)))
}

fn step(rule: impl Into<String>, detail: impl Into<String>) -> Step {
    Step { rule: rule.into(), detail: detail.into() }
}

/// Every match before the one that holds, with the first condition that it misses.
fn explain_matches(routes: &HttpRoutes, hit: Option<&Hit<'_>>, request: &Request<'_>, why: &mut Vec<Step>) {
    let is_hit = |other: &Hit<'_>| hit.is_some_and(|hit| std::ptr::eq(hit.entry, other.entry));
    let (mut passed, mut later) = (0, 0);
    let mut found = false;
    for other in routes.entries() {
        if is_hit(&other) {
            found = true;
            let (missed, detail) = (passed - passed.min(TOLD), holds(other.entry, request));
            if missed > 0 {
                why.push(step("passed over", format!("{missed} more matches do not hold")));
            }
            why.push(step(place(other.rule, other.entry), detail));
        } else if found {
            later += 1;
        } else {
            passed += 1;
            if passed <= TOLD {
                why.push(step(place(other.rule, other.entry), misses(other.entry, request)));
            }
        }
    }
    if later > 0 {
        let what = if later == 1 { "1 match is".to_owned() } else { format!("{later} matches are") };
        why.push(step("later", format!("{what} of lower precedence: not asked, the first that holds wins")));
    }
}

/// Where a match stands, as `MeshHTTPRoute default/owner spec.to[0].rules[1].matches[0]`.
fn place(rule: &HttpRule, entry: &Entry) -> String {
    match &rule.origin.policy {
        Some(policy) => format!("{policy} {}.matches[{}]", rule.origin.field, entry.alternative),
        None => "original destination".to_owned(),
    }
}

fn holds(entry: &Entry, request: &Request<'_>) -> String {
    let conditions = &entry.conditions;
    let mut parts = vec![match &entry.path {
        PathMatch::Exact(_) => format!("the path is {}", request.path),
        PathMatch::Prefix(prefix) => format!("{} is at or below {prefix}", request.path),
        PathMatch::Regex(pattern) => format!("{} matches {}", request.path, pattern.as_str()),
    }];
    parts.extend(conditions.method.iter().map(|method| format!("the method is {method}")));
    parts.extend(conditions.headers.iter().map(|h| format!("header {} {}", h.name, wanted(&h.test))));
    parts.extend(conditions.query.iter().map(|q| format!("query parameter {} {}", q.name, wanted(&q.test))));
    format!("holds: {}", parts.join(", "))
}

fn misses(entry: &Entry, request: &Request<'_>) -> String {
    if !entry.path.matches(request.path) {
        let path = request.path;
        return match &entry.path {
            PathMatch::Exact(value) => format!("does not hold: {path} is not {value}"),
            PathMatch::Prefix(prefix) => format!("does not hold: {path} is not at or below {prefix}"),
            PathMatch::Regex(pattern) => format!("does not hold: {path} does not match {}", pattern.as_str()),
        };
    }
    match entry.conditions.first_miss(request) {
        Some(Miss::Method(method)) => {
            format!("does not hold: the method is {}, not {method}", request.method)
        }
        Some(Miss::Header(header)) => {
            format!("does not hold: it is not so that header {} {}", header.name, wanted(&header.test))
        }
        Some(Miss::Query(query)) => {
            format!("does not hold: it is not so that query parameter {} {}", query.name, wanted(&query.test))
        }
        None => "holds".to_owned(),
    }
}

fn wanted(test: &ValueTest) -> String {
    match test {
        ValueTest::Exact(value) => format!("is {:?}", value.as_str()),
        ValueTest::Prefix(value) => format!("begins with {:?}", value.as_str()),
        ValueTest::Regex(pattern) => format!("matches {}", pattern.as_str()),
        ValueTest::Present => "is there".to_owned(),
        ValueTest::Absent => "is absent".to_owned(),
    }
}

fn follow(
    action: &Action,
    matched: &PathMatch,
    incoming: &Incoming,
    request: &Request<'_>,
    at: &Arrival,
    why: &mut Vec<Step>,
) -> Outcome {
    let mut outcome = Outcome::unchanged(incoming);
    match &action.end {
        End::Forward(split) => {
            forward(action, matched, incoming, request, &mut outcome);
            outcome.status = split.failure();
            outcome.body = outcome.status.map(own_text);
            outcome.legs = split.legs().to_vec();
            outcome.mirrors = if outcome.status.is_none() { action.mirrors.to_vec() } else { Vec::new() };
            outcome.response_headers =
                if outcome.status.is_none() { incoming.response_headers.clone() } else { Vec::new() };
            explain_forward(action, incoming, &outcome, why);
        }
        End::Redirect(redirect) => {
            let location = redirect.location(request, matched, at);
            why.push(step("redirect", format!("answered with {} and {location}", redirect.status)));
            outcome.status = Some(redirect.status);
            outcome.response_headers.push(("location".into(), Name::new(&location)));
        }
        End::Respond(response) => {
            why.push(step(
                "direct response",
                format!("answered with {} by the proxy itself", response.status),
            ));
            outcome.status = Some(response.status);
            outcome.body = response.body.clone();
        }
    }
    action.response_headers.apply(&mut outcome.response_headers);
    outcome
}

fn forward(
    action: &Action,
    matched: &PathMatch,
    incoming: &Incoming,
    request: &Request<'_>,
    outcome: &mut Outcome,
) {
    let host = action.rewrite.hostname.as_deref();
    outcome.host = host.unwrap_or(&incoming.host).to_owned();
    let path = action.rewrite.path.as_ref().map(|change| change.apply(request.path, matched));
    outcome.path = path::join(path.as_deref().unwrap_or(request.path), request.query);
    action.request_headers.apply(&mut outcome.headers);
}

fn explain_forward(action: &Action, incoming: &Incoming, outcome: &Outcome, why: &mut Vec<Step>) {
    if outcome.path != incoming.path && action.rewrite.path.is_some() {
        why.push(step("rewrite", format!("the path becomes {}", outcome.path)));
    }
    if let Some(host) = &action.rewrite.hostname {
        why.push(step("rewrite", format!("the host becomes {host}")));
    }
    let total: u64 = outcome.legs.iter().map(|leg| leg.weight).sum();
    for leg in &outcome.legs {
        let share = leg.weight as f64 * 100.0 / total as f64;
        let detail = match &leg.to {
            model::route::LegTarget::Backend(id) => format!("{share:.1} % of such requests go to {id}"),
            model::route::LegTarget::Error(status) => {
                format!("{share:.1} % of such requests get {status}: a backend cannot be resolved")
            }
        };
        why.push(step("backend", detail));
    }
    if outcome.legs.is_empty() {
        why.push(step("backend", "no backend has a weight above zero: 500"));
    }
    for mirror in &outcome.mirrors {
        why.push(step("mirror", format!("a copy of {} % goes to {}", mirror.share.as_f64(), mirror.to)));
    }
}
