//! `zoneward plan routes`: the merged rules and load balancing, and the policy that each part comes from.

use anyhow::{Result, bail};
use model::gateway_api::RouteKind;
use model::route::{
    BackendTarget, EffectiveLoadBalancing, GatewayPort, Hostname, HttpRoutes, HttpRule, PathMatch, Responder,
    RouteTable, Routing, RuleAction, WeightedBackends, rule_value,
};
use model::{Notice, ObjectRef};
use serde_json::{Value, json};

use crate::cli::{Format, PlanRoutes, RoutesAs};
use crate::routes::{PlannedRoutes, PlannedScope};
use cluster::input::LoadedObjects;
use output::{notices_text, notices_value, print_text, print_value, render, table};

pub(crate) fn run(args: &PlanRoutes) -> Result<bool> {
    if args.form == RoutesAs::Envoy {
        return super::envoy::run(args);
    }
    if !args.diff.is_empty() || args.node.is_some() || args.zone.is_some() {
        bail!("--diff, --node and --zone require --as envoy");
    }
    let mut loaded = LoadedObjects::read(&args.routes.input(&args.input))?;
    let namespace = args.input.namespace.as_deref().unwrap_or("default");
    let mut routes = PlannedRoutes::plan(&args.routes, &loaded.snapshot, namespace)?;
    loaded.notices.append(&mut routes.notices);
    let parts = parts(&routes, args.host.as_deref());
    match args.output.format {
        Format::Table => {
            let text: Vec<String> = parts.iter().map(text).collect();
            let balancing = load_balancing_text(&routes.table);
            print_text(&(text.join("\n") + &balancing + &notices_text(&loaded.notices)))?;
        }
        format => {
            let mut answer = value(&parts, &loaded.notices);
            if !routes.table.all_load_balancing().is_empty() {
                answer["loadBalancing"] = load_balancing_value(&routes.table);
            }
            print_value(&answer, format)?;
        }
    }
    Ok(!loaded.unreadable)
}

/// The settings for each Service, with the policy that every field comes from.
fn load_balancing_value(table: &RouteTable) -> Value {
    let one = |(service, effective): (&model::ServiceKey, &std::sync::Arc<EffectiveLoadBalancing>)| {
        let mut value = json!({"service": service.to_string(), "settings": effective.settings.value()});
        for origin in &effective.origins {
            let place = format!("{}.{}", origin.place, origin.field);
            value["from"][origin.field] = json!({"policy": origin.policy.to_string(), "field": place});
        }
        value
    };
    table.all_load_balancing().iter().map(one).collect()
}

fn load_balancing_text(routes: &RouteTable) -> String {
    if routes.all_load_balancing().is_empty() {
        return String::new();
    }
    let mut rows = table(&["SERVICE", "FIELD", "VALUE", "FROM"]);
    for (service, effective) in routes.all_load_balancing() {
        let settings = effective.settings.value();
        for origin in &effective.origins {
            let from = format!("{} {}", origin.policy, origin.place);
            let value = settings[origin.field].to_string();
            rows.add_row([service.to_string(), origin.field.to_owned(), value, from]);
        }
    }
    format!("\nload balancing\n{}", render(&rows))
}

/// The routes of one destination or one host.
struct RouteSection<'r> {
    title: String,
    host: Option<String>,
    routing: Option<&'r Routing>,
}

fn parts<'r>(routes: &'r PlannedRoutes, host: Option<&str>) -> Vec<RouteSection<'r>> {
    match &routes.scope {
        PlannedScope::Outbound(service, port) => {
            let outbound = routes.table.outbound(service, *port);
            let spoken = outbound.map_or("", |outbound| outbound.protocol.as_str());
            let title = format!("to {service}:{port} ({spoken})");
            vec![RouteSection { title, host: None, routing: outbound.map(|outbound| &outbound.routing) }]
        }
        PlannedScope::MeshGateway(..) | PlannedScope::Gateway(..) if host.is_some() => {
            let host = host.unwrap_or_default();
            let title = format!("for {host}");
            vec![RouteSection { title, host: Some(host.to_owned()), routing: routes.routing(host).0 }]
        }
        PlannedScope::MeshGateway(_, listener) | PlannedScope::Gateway(_, listener) => {
            let mut parts = Vec::new();
            for port in
                routes.table.ports().filter(|port| routes.port.is_none_or(|number| number == port.number))
            {
                let wanted =
                    port.listeners.iter().filter(|l| listener.as_ref().is_none_or(|name| l.name == *name));
                for listener in wanted {
                    let hosts = listener.hosts.iter();
                    parts.extend(
                        hosts.map(|(host, routing)| at_listener(port, &listener.name, &host, routing)),
                    );
                }
            }
            let udp =
                routes.udp.iter().filter(|(number, _)| routes.port.is_none_or(|wanted| wanted == *number));
            parts.extend(udp.map(|(number, routing)| {
                let title = format!("UDP port {number}");
                RouteSection { title, host: None, routing: Some(routing) }
            }));
            parts
        }
    }
}

fn at_listener<'r>(
    port: &GatewayPort,
    listener: &str,
    host: &Hostname,
    routing: &'r Routing,
) -> RouteSection<'r> {
    let title = format!("listener {listener}, {} port {}, for {host}", port.protocol.as_str(), port.number);
    RouteSection { title, host: Some(host.to_string()), routing: Some(routing) }
}

fn value(parts: &[RouteSection<'_>], notices: &[Notice]) -> Value {
    let mut answer = match parts {
        [part] => part_value(part),
        // The rules of all hosts of a gateway are also in one list, named by host.
        parts => {
            let hosts: Vec<Value> = parts.iter().map(part_value).collect();
            let rules = hosts.iter().flat_map(|host| host["rules"].as_array().cloned().unwrap_or_default());
            json!({"rules": rules.collect::<Vec<_>>(), "hosts": hosts})
        }
    };
    answer["notices"] = notices_value(notices);
    answer
}

fn part_value(part: &RouteSection<'_>) -> Value {
    let mut answer = match part.routing {
        Some(Routing::Http(routes)) => http_value(routes),
        Some(Routing::Tcp(split)) => json!({"rules": [], "tcp": weighted_backends_value(split)}),
        None => json!({"rules": []}),
    };
    if let Some(host) = &part.host {
        answer["host"] = host.as_str().into();
    }
    answer
}

fn http_value(routes: &HttpRoutes) -> Value {
    let own: Vec<Value> = routes.rules().filter(|rule| rule.origin.policy.is_some()).map(one_value).collect();
    let order: Vec<Value> = routes.entries().map(|hit| place(hit.rule, hit.entry.alternative)).collect();
    let otherwise = routes.rules().find(|rule| rule.origin.policy.is_none());
    let otherwise = otherwise.map(|rule| match &rule.action.responder {
        Responder::Forward(split) => weighted_backends_value(split),
        _ => Value::Null,
    });
    json!({"rules": own, "order": order, "otherwise": otherwise})
}

fn one_value(rule: &HttpRule) -> Value {
    let mut value = rule_value(&rule.rule);
    let name = |object: &Option<ObjectRef>| object.as_ref().map(ObjectRef::to_string);
    let origin = &rule.origin;
    let mut from = json!({"matches": name(&origin.policy)});
    for (field, policy) in [("filters", &origin.filters), ("backendRefs", &origin.backends)] {
        if policy.is_some() {
            from[field] = name(policy).into();
        }
    }
    for (field, policy) in [("filters", &origin.filters_override), ("backendRefs", &origin.backends_override)]
    {
        if policy.is_some() {
            from["override"][field] = name(policy).into();
        }
    }
    if !origin.merged.is_empty() {
        let mut policies: Vec<String> = origin.merged.iter().map(ObjectRef::to_string).collect();
        policies.dedup();
        from["merge"] = policies.into();
    }
    from["field"] = origin.field.as_str().into();
    value["from"] = from;
    if origin.policy.as_ref().is_some_and(|policy| RouteKind::parse(&policy.kind).is_some()) {
        use_standard_words(&mut value["matches"]);
    }
    value
}

/// The Gateway API calls a prefix PathPrefix.
fn use_standard_words(matches: &mut Value) {
    for on in matches.as_array_mut().into_iter().flatten() {
        if on["path"]["type"] == "Prefix" {
            on["path"]["type"] = "PathPrefix".into();
        }
    }
}

fn place(rule: &HttpRule, alternative: usize) -> Value {
    match &rule.origin.policy {
        Some(policy) => {
            json!({"policy": policy.to_string(), "field": format!("{}.matches[{alternative}]", rule.origin.field)})
        }
        None => json!({"policy": null, "field": null}),
    }
}

fn weighted_backends_value(split: &WeightedBackends) -> Value {
    split
        .entries()
        .iter()
        .map(|backend| crate::commands::trace::http::weighted_backend_value(&backend.to, backend.weight))
        .collect()
}

fn text(part: &RouteSection<'_>) -> String {
    let mut text = part.title.clone() + "\n";
    match part.routing {
        None => text += "  no routes: 404\n",
        Some(Routing::Tcp(split)) => text += &format!("  connections go to {}\n", weighted_backends(split)),
        Some(Routing::Http(routes)) => {
            let mut rows = table(&["#", "MATCH", "THEN", "FROM"]);
            for (i, hit) in routes.entries().enumerate() {
                let entry = hit.entry;
                let from = match &hit.rule.origin.policy {
                    Some(policy) => format!("{policy} {}", hit.rule.origin.field),
                    None => "(no match)".to_owned(),
                };
                rows.add_row([(i + 1).to_string(), match_text(entry), then(&hit.rule.action), from]);
            }
            text += &render(&rows);
        }
    }
    text
}

fn match_text(entry: &model::route::MatchEntry) -> String {
    let mut parts = vec![match &entry.path {
        PathMatch::Exact(path) => format!("= {path}"),
        PathMatch::Prefix(path) => format!("{path}{}", if path.ends_with('/') { "*" } else { "/*" }),
        PathMatch::Regex(pattern) => format!("~ {}", pattern.as_str()),
    }];
    let conditions = &entry.conditions;
    parts.extend(conditions.method.iter().map(|method| method.to_string()));
    parts.extend(conditions.headers.iter().map(|header| format!("[{}]", header.name)));
    parts.extend(conditions.query.iter().map(|query| format!("?{}", query.name)));
    parts.join(" ")
}

fn then(action: &RuleAction) -> String {
    let mut parts = Vec::new();
    match &action.responder {
        Responder::Forward(split) => parts.push(weighted_backends(split)),
        Responder::Redirect(redirect) => parts.push(format!("redirect {}", redirect.status)),
        Responder::Respond(response) => parts.push(format!("answer {}", response.status)),
    }
    if !action.request_headers.is_empty() || !action.response_headers.is_empty() {
        parts.push("headers".to_owned());
    }
    if action.rewrite.path.is_some() || action.rewrite.hostname.is_some() {
        parts.push("rewrite".to_owned());
    }
    parts.extend(action.mirrors.iter().map(|mirror| format!("copy to {}", mirror.to)));
    parts.join(", ")
}

fn weighted_backends(split: &WeightedBackends) -> String {
    let one = |(backend, share): (&model::route::WeightedBackend, f64)| {
        let share = share * 100.0;
        match &backend.to {
            BackendTarget::Backend(id) => format!("{id} {share:.0} %"),
            BackendTarget::Error(status) => format!("error {status} {share:.0} %"),
        }
    };
    if split.entries().is_empty() {
        return "no backends (500)".to_owned();
    }
    split.shares().map(one).collect::<Vec<_>>().join(" + ")
}
