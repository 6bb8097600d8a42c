//! The smallest use of the crate: one listener, one backend, from the command line.
//!
//! `cargo run -p proxy --example forward -- 127.0.0.1:8080 127.0.0.1:9000 [ROUTES [http|http2 [LOG-FILE]]]` forwards
//! to the second address; with ROUTES, the table has as many more rules beside the one that matches.

use std::sync::Arc;

use model::backend::{Backend, BackendEndpoint, BackendTable, ConsumerLocation};
use model::route::{
    AppProtocol, BackendId, BackendTarget, HttpRoutes, HttpRule, Outbound, PathMatch, Responder, RouteGroup,
    RouteMatch, RouteRule, RouteTable, Routing, RuleAction, WeightedBackends,
};
use model::{Labels, Name, Protocol, ServiceKey};
use proxy::{AccessLog, ListenerKind, Proxy, ProxyOptions, ProxyTables};

fn rule(path: &str, to: &BackendId) -> HttpRule {
    let split = WeightedBackends::new([(BackendTarget::Backend(to.clone()), 1)]);
    let mut rule = HttpRule::catch_all(RuleAction::new(Responder::Forward(split)));
    let path = PathMatch::Prefix(Name::new(path));
    let matches = [RouteMatch { path: Some(path), ..RouteMatch::default() }].into();
    rule.rule = Arc::new(RouteRule { matches, ..RouteRule::default() });
    rule.origin.field = format!("rules[{}]", rule.rule.matches[0].full_path().value());
    rule
}

fn routes(service: &ServiceKey, to: &BackendId, count: usize) -> RouteTable {
    let paths = (0..count).map(|at| format!("/r{at}")).chain(["/".to_owned()]);
    let rules: Vec<Arc<HttpRule>> = paths.map(|path| Arc::new(rule(&path, to))).collect();
    let entries =
        rules.iter().enumerate().map(|(at, rule)| rule.entry(at, 0, &rule.rule.matches[0])).collect();
    let group = Arc::new(RouteGroup::new(rules, entries));
    let mut table = RouteTable::default();
    table.put_outbound(Arc::new(Outbound {
        service: service.clone(),
        port: 80,
        protocol: AppProtocol::Http,
        addresses: Box::default(),
        routing: Routing::Http(Arc::new(HttpRoutes { groups: [group].into() })),
    }));
    table
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, endpoint, rest @ ..] = &arguments[..] else {
        return Err("give the address to listen on and that of the endpoint".into());
    };
    let count = rest.first().map_or(Ok(0), |count| count.parse())?;
    let protocol = match rest.get(1).map(String::as_str) {
        Some("http2") => AppProtocol::Http2,
        _ => AppProtocol::Http,
    };
    let service = ServiceKey::new(&"default".into(), &"backend".into());
    let id = BackendId { service: service.clone(), port: 80, protocol: Protocol::Tcp, tags: Labels::EMPTY };
    let mut backends = BackendTable::new(ConsumerLocation::default());
    let endpoint = BackendEndpoint {
        address: endpoint.parse()?,
        priority: 0,
        weight: 1.0,
        zone: None,
        locality: model::Locality::Unknown,
    };
    backends.put(Arc::new(Backend {
        id: id.clone(),
        protocol,
        proxy_protocol: None,
        endpoints: [endpoint].into(),
        mode: "all",
        is_warmed: false,
    }));
    let access_log = rest.get(2).map(|path| AccessLog::to(std::fs::File::create(path)?)).transpose()?;
    let tables = ProxyTables {
        routes: Arc::new(routes(&service, &id, count)),
        backends: Arc::new(backends),
        ..ProxyTables::default()
    };
    let proxy = Proxy::new(ProxyOptions { access_log, ..ProxyOptions::default() }, tables);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(listen).await?;
        proxy.serve(listener, ListenerKind::Outbound { service, port: 80 }, std::future::pending()).await;
        Ok(())
    })
}
