//! Traces one request through the routes of a proxy: the rule that it matches, why not the others, and what the backend
//! receives.

use std::net::IpAddr;

use model::Name;
use model::route::path::NormalizedPath;
use model::route::{
    Arrival, BackendFilters, BackendTarget, CorsRequest, DirectResponseBody, EdgeSettings, ForwardedHeaders,
    HeaderList, HttpRoutes, HttpRule, MatchEntry, MatchedRoute, PathMatch, RequestMirror, RequestOrigin,
    RequestView, Responder, RuleAction, UnmetCondition, ValueTest, WeightedBackend, error_text, hop_by_hop,
    is_forwarded_header, path, plain_host,
};

/// The request to trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracedRequest {
    pub method: String,
    /// May include a port.
    pub host: String,
    /// With the query.
    pub path: String,
    pub headers: Vec<(Name, Name)>,
    /// The client of a gateway; without one, it is not trusted, and no header has its address.
    pub client: Option<IpAddr>,
    /// The headers that a backend would respond with.
    pub response_headers: Vec<(Name, Name)>,
}

/// One step of an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceStep {
    /// The match or rule that was tested.
    pub rule: String,
    /// The result.
    pub detail: String,
}

/// The outcome of a request, and why.
#[derive(Clone, Debug)]
pub struct RequestTrace<'t> {
    pub hit: Option<MatchedRoute<'t>>,
    pub outcome: RequestOutcome,
    pub why: Vec<TraceStep>,
}

/// The outcome of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestOutcome {
    /// The status, if the proxy itself responds.
    pub status: Option<u16>,
    pub backends: Vec<WeightedBackend>,
    pub mirrors: Vec<RequestMirror>,
    /// The host that a backend receives; the request's own if the proxy itself responds.
    pub host: String,
    /// The path that a backend receives, with the query.
    pub path: String,
    /// The headers that a backend receives.
    pub headers: Vec<(Name, Name)>,
    pub response_headers: Vec<(Name, Name)>,
    /// The body, if the proxy itself responds.
    pub body: Option<DirectResponseBody>,
    /// The connection is closed without a response.
    pub is_closed: bool,
}

impl RequestOutcome {
    pub(crate) fn unchanged(incoming: &TracedRequest) -> Self {
        Self {
            host: incoming.host.clone(),
            path: incoming.path.clone(),
            headers: incoming.headers.clone(),
            ..Self::default()
        }
    }
}

/// How many failed matches are listed one by one.
const LISTED: usize = 100;

/// Traces a request through the routes of a destination or host; `None` if the host has none.
pub fn trace<'t>(
    routes: Option<&'t HttpRoutes>,
    incoming: &TracedRequest,
    at: &Arrival,
    edge: &EdgeSettings,
) -> RequestTrace<'t> {
    let mut why = Vec::new();
    let incoming = &TracedRequest { headers: received(incoming, at, edge, &mut why), ..incoming.clone() };
    let (given, query) = path::split(&incoming.path);
    let normal = match edge.path.normalize(given) {
        NormalizedPath::Matched(normal) => normal,
        NormalizedPath::Redirect(normal) => {
            let location = path::join(&normal, query);
            why.push(step("path", format!("{given} has escaped slashes: redirected to {location}")));
            let response_headers = vec![("location".into(), Name::new(&location))];
            let outcome =
                RequestOutcome { status: Some(307), response_headers, ..RequestOutcome::unchanged(incoming) };
            return RequestTrace { hit: None, outcome, why };
        }
        NormalizedPath::Rejected(reason) => {
            why.push(step("path", format!("{given} is rejected: {reason}: 400")));
            let body = Some(DirectResponseBody::Text(Name::new(reason)));
            let outcome = RequestOutcome { status: Some(400), body, ..RequestOutcome::unchanged(incoming) };
            return RequestTrace { hit: None, outcome, why };
        }
    };
    let headers = HeaderList(incoming.headers.clone());
    let request = RequestView {
        method: &incoming.method,
        host: &incoming.host,
        path: &normal,
        query,
        headers: &headers,
    };
    if normal != given {
        why.push(step("path", format!("{given} is normalised to {normal}")));
    }
    let Some(routes) = routes else {
        let host = plain_host(&incoming.host);
        why.push(step("host", format!("no listener with a route matches the host {host:?}: 404")));
        let outcome = no_route(incoming);
        return RequestTrace { hit: None, outcome, why };
    };
    let hit = routes.find(&request);
    explain_matches(routes, hit.as_ref(), &request, &mut why);
    let outcome = match &hit {
        Some(hit) => follow(&hit.rule.action, &hit.entry.path, incoming, &request, at, &mut why),
        None => no_route(incoming),
    };
    if hit.is_none() {
        why.push(step("no match", "no rule matches: 404"));
    }
    RequestTrace { hit, outcome, why }
}

/// The headers that are matched: without hop-by-hop headers and, at a gateway, with its own forwarded headers.
fn received(
    incoming: &TracedRequest,
    at: &Arrival,
    edge: &EdgeSettings,
    why: &mut Vec<TraceStep>,
) -> Vec<(Name, Name)> {
    let connection = incoming.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("connection"));
    let named: Vec<&[u8]> =
        connection.flat_map(|(_, value)| hop_by_hop::named_by_connection(value.as_bytes())).collect();
    let is_upgrade = incoming.headers.iter().any(|(name, value)| {
        name.eq_ignore_ascii_case("connection")
            && hop_by_hop::elements(value.as_bytes()).any(|element| element.eq_ignore_ascii_case(b"upgrade"))
    });
    let origin = incoming.client.filter(|_| at.port.is_some()).map(|client| RequestOrigin {
        peer: (client, 0).into(),
        scheme: at.scheme,
        host: &incoming.host,
    });
    let forwarded = origin.map(|origin| {
        ForwardedHeaders::of(&origin, &edge.trusted_proxies, &HeaderList(incoming.headers.clone()))
    });
    let is_trusted = at.port.is_none() || forwarded.as_ref().is_some_and(|forwarded| forwarded.is_trusted);
    let mut headers = Vec::new();
    for (name, value) in &incoming.headers {
        let lower = name.to_ascii_lowercase();
        let is_named = named.iter().any(|named| named.eq_ignore_ascii_case(lower.as_bytes()));
        let is_kept = match lower.as_str() {
            "upgrade" => is_upgrade,
            "te" => hop_by_hop::elements(value.as_bytes()).any(|e| e.eq_ignore_ascii_case(b"trailers")),
            lower => !hop_by_hop::is_hop_by_hop(lower),
        };
        if is_named || !is_kept {
            why.push(step("headers", format!("{name} is hop-by-hop: neither matched nor forwarded")));
        } else if is_forwarded_header(&lower) && !is_trusted {
            why.push(step("headers", format!("{name} is removed: the client is not a trusted proxy")));
        } else if forwarded.as_ref().is_none_or(|f| !f.set.iter().any(|(set, _)| *set == lower)) {
            headers.push((name.clone(), value.clone()));
        }
    }
    let set = forwarded.into_iter().flat_map(|forwarded| forwarded.set);
    headers.extend(set.map(|(name, value)| (Name::new(name), Name::new(&value))));
    headers
}

fn no_route(incoming: &TracedRequest) -> RequestOutcome {
    RequestOutcome { status: Some(404), body: Some(own_text(404)), ..RequestOutcome::unchanged(incoming) }
}

fn own_text(status: u16) -> DirectResponseBody {
    DirectResponseBody::Text(Name::new(error_text(status)))
}

fn step(rule: impl Into<String>, detail: impl Into<String>) -> TraceStep {
    TraceStep { rule: rule.into(), detail: detail.into() }
}

/// Every match before the one that was hit, with the first condition that the request does not meet.
fn explain_matches(
    routes: &HttpRoutes,
    hit: Option<&MatchedRoute<'_>>,
    request: &RequestView<'_>,
    why: &mut Vec<TraceStep>,
) {
    let is_hit = |other: &MatchedRoute<'_>| hit.is_some_and(|hit| std::ptr::eq(hit.entry, other.entry));
    let (mut passed, mut later) = (0, 0);
    let mut found = false;
    for other in routes.entries() {
        if is_hit(&other) {
            found = true;
            let (missed, detail) = (passed - passed.min(LISTED), matched(other.entry, request));
            if missed > 0 {
                why.push(step("passed over", format!("{missed} more entries do not match")));
            }
            why.push(step(place(other.rule, other.entry), detail));
        } else if found {
            later += 1;
        } else {
            passed += 1;
            if passed <= LISTED {
                why.push(step(place(other.rule, other.entry), not_matched(other.entry, request)));
            }
        }
    }
    if later > 0 {
        let what = if later == 1 { "1 entry has".to_owned() } else { format!("{later} entries have") };
        why.push(step("later", format!("{what} lower precedence: not tested, the first match wins")));
    }
}

/// The field of a match, e.g. `MeshHTTPRoute default/owner spec.to[0].rules[1].matches[0]`.
fn place(rule: &HttpRule, entry: &MatchEntry) -> String {
    match &rule.origin.policy {
        Some(policy) => format!("{policy} {}.matches[{}]", rule.origin.field, entry.alternative),
        None => "original destination".to_owned(),
    }
}

fn matched(entry: &MatchEntry, request: &RequestView<'_>) -> String {
    let conditions = &entry.conditions;
    let mut parts = vec![match &entry.path {
        PathMatch::Exact(_) => format!("the path is {}", request.path),
        PathMatch::Prefix(prefix) => format!("{} is at or below {prefix}", request.path),
        PathMatch::Regex(pattern) => format!("{} matches {}", request.path, pattern.as_str()),
    }];
    parts.extend(conditions.method.iter().map(|method| format!("the method is {method}")));
    parts.extend(conditions.headers.iter().map(|h| format!("header {} {}", h.name, condition(&h.test))));
    parts.extend(
        conditions.query.iter().map(|q| format!("query parameter {} {}", q.name, condition(&q.test))),
    );
    format!("matches: {}", parts.join(", "))
}

fn not_matched(entry: &MatchEntry, request: &RequestView<'_>) -> String {
    if !entry.path.matches(request.path) {
        let path = request.path;
        return match &entry.path {
            PathMatch::Exact(value) => format!("no match: {path} is not {value}"),
            PathMatch::Prefix(prefix) => format!("no match: {path} is not at or below {prefix}"),
            PathMatch::Regex(pattern) => format!("no match: {path} does not match {}", pattern.as_str()),
        };
    }
    match entry.conditions.first_miss(request) {
        Some(UnmetCondition::Method(method)) => {
            format!("no match: the method is {}, not {method}", request.method)
        }
        Some(UnmetCondition::Header(header)) => {
            format!("no match: required: header {} {}", header.name, condition(&header.test))
        }
        Some(UnmetCondition::Query(query)) => {
            format!("no match: required: query parameter {} {}", query.name, condition(&query.test))
        }
        None => "matches".to_owned(),
    }
}

fn condition(test: &ValueTest) -> String {
    match test {
        ValueTest::Exact(value) => format!("is {:?}", value.as_str()),
        ValueTest::Prefix(value) => format!("starts with {:?}", value.as_str()),
        ValueTest::Regex(pattern) => format!("matches {}", pattern.as_str()),
        ValueTest::Present => "is present".to_owned(),
        ValueTest::Absent => "is absent".to_owned(),
    }
}

fn follow(
    action: &RuleAction,
    matched: &PathMatch,
    incoming: &TracedRequest,
    request: &RequestView<'_>,
    at: &Arrival,
    why: &mut Vec<TraceStep>,
) -> RequestOutcome {
    let mut outcome = RequestOutcome::unchanged(incoming);
    let cors = action.cors.as_ref().map(|cors| (cors, cors_request(incoming)));
    if let Some((cors, request)) = &cors
        && request.is_preflight()
    {
        why.push(step("cors", "the proxy responds to a preflight request with 204"));
        outcome.status = Some(204);
        outcome.response_headers = cors.response_headers(request);
        return outcome;
    }
    match &action.responder {
        Responder::Forward(split) => {
            forward(action, matched, incoming, request, &mut outcome);
            outcome.status = split.failure();
            outcome.body = outcome.status.map(own_text);
            outcome.backends = split.entries().to_vec();
            outcome.mirrors = if outcome.status.is_none() { action.mirrors.to_vec() } else { Vec::new() };
            outcome.response_headers =
                if outcome.status.is_none() { incoming.response_headers.clone() } else { Vec::new() };
            explain_forward(action, incoming, &outcome, why);
        }
        Responder::Redirect(redirect) => {
            let location = redirect.location(request, matched, at);
            why.push(step("redirect", format!("the proxy responds with {} to {location}", redirect.status)));
            outcome.status = Some(redirect.status);
            outcome.response_headers.push(("location".into(), Name::new(&location)));
        }
        Responder::Respond(response) => {
            why.push(step("direct response", format!("the proxy responds with {}", response.status)));
            outcome.status = Some(response.status);
            outcome.body = response.body.clone();
        }
    }
    if let Some((cors, request)) = &cors {
        // The policy of the route replaces that of the backend.
        let is_cors = |name: &str| name.to_ascii_lowercase().starts_with("access-control-");
        outcome.response_headers.retain(|(name, _)| !is_cors(name));
        outcome.response_headers.extend(cors.response_headers(request));
    }
    action.response_headers.apply(&mut outcome.response_headers);
    // Filters of the only backend; with several, each backend has its own request.
    if let [WeightedBackend { filters: Some(filters), .. }] = &*outcome.backends.clone() {
        backend_changes(filters, matched, request, &mut outcome);
    }
    outcome
}

/// Applies the filters of a backendRef after those of the rule.
fn backend_changes(
    filters: &BackendFilters,
    matched: &PathMatch,
    request: &RequestView<'_>,
    outcome: &mut RequestOutcome,
) {
    if let Some(host) = &filters.rewrite.hostname {
        outcome.host = host.to_string();
    }
    if let Some(change) = &filters.rewrite.path {
        outcome.path = path::join(&change.apply(request.path, matched), request.query);
    }
    filters.request_headers.apply(&mut outcome.headers);
    filters.response_headers.apply(&mut outcome.response_headers);
}

fn cors_request(incoming: &TracedRequest) -> CorsRequest<'_> {
    let header = |name: &str| {
        let found = incoming.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    };
    CorsRequest {
        method: &incoming.method,
        origin: header("origin"),
        request_method: header("access-control-request-method"),
        request_headers: header("access-control-request-headers"),
    }
}

fn forward(
    action: &RuleAction,
    matched: &PathMatch,
    incoming: &TracedRequest,
    request: &RequestView<'_>,
    outcome: &mut RequestOutcome,
) {
    let host = action.rewrite.hostname.as_deref();
    outcome.host = host.unwrap_or(&incoming.host).to_owned();
    let path = action.rewrite.path.as_ref().map(|change| change.apply(request.path, matched));
    outcome.path = path::join(path.as_deref().unwrap_or(request.path), request.query);
    action.request_headers.apply(&mut outcome.headers);
}

fn explain_forward(
    action: &RuleAction,
    incoming: &TracedRequest,
    outcome: &RequestOutcome,
    why: &mut Vec<TraceStep>,
) {
    if outcome.path != incoming.path && action.rewrite.path.is_some() {
        why.push(step("rewrite", format!("the path becomes {}", outcome.path)));
    }
    if let Some(host) = &action.rewrite.hostname {
        why.push(step("rewrite", format!("the host becomes {host}")));
    }
    let total: u64 = outcome.backends.iter().map(|backend| backend.weight).sum();
    for backend in &outcome.backends {
        let share = backend.weight as f64 * 100.0 / total as f64;
        let detail = match &backend.to {
            BackendTarget::Backend(id) => format!("{share:.1} % of requests go to {id}"),
            BackendTarget::Error(status) => {
                format!("{share:.1} % of requests get {status}: a backend cannot be resolved")
            }
        };
        why.push(step("backend", detail));
    }
    if outcome.backends.is_empty() {
        why.push(step("backend", "no backend has a weight above zero: 500"));
    }
    for mirror in &outcome.mirrors {
        why.push(step(
            "mirror",
            format!("{} % of requests are mirrored to {}", mirror.share.as_f64(), mirror.to),
        ));
    }
}
