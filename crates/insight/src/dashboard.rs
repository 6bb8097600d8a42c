//! The dashboard on the status listener: pages, the stream of their changes, and the fix applied with a viewer's token.
//!
//! ```text
//! request -> guard (Host, Origin, Sec-Fetch-Site) -> page:   one report for all, at most a second old -> HTML
//!                                                 -> events: rendered once per tick and page, sent to all its viewers
//!                                                 -> apply:  the viewer's token -> the API
//! ```

mod apply;
mod live_pages;
mod route_objects;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::pages::guard::BrowserOrigin;
use crate::pages::{Page, PageTarget, SECURITY_HEADERS, ServiceExtras};
use crate::status::{CanaryShare, ServiceView, StatusReport};
use crate::status_board::{StatusBoard, StatusQuery, StatusUnavailable, WhatIfQuestion};
use crate::{pages, service_objects, status_page};
use bytes::Bytes;
use clock::Clock;
use cluster::Connection;
use cluster::admin_server::{AdminBody, AdminPage};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use kube::Client;
use tokio::sync::{Mutex, watch};

use live_pages::LivePages;
use route_objects::RouteObjects;

/// Age of a report that pages still use.
const MAX_AGE: Duration = Duration::from_secs(1);
/// Services evaluated for a report, so that the first page of a large cluster is not late; others follow by themselves.
const EVALUATED_PER_REPORT: usize = 20;
const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

pub struct Dashboard {
    board: StatusBoard,
    client: Client,
    /// The API for changes with the token of a viewer; `None` if they are not allowed.
    connection: Option<Connection>,
    on_loopback: bool,
    clock: Clock,
    report: Mutex<Option<(Instant, Arc<StatusReport>)>>,
    routes: RouteObjects,
    live: LivePages,
}

/// Why there is no page.
enum NoPage {
    Unavailable(StatusUnavailable),
    NotFound(String),
}

impl From<StatusUnavailable> for NoPage {
    fn from(why: StatusUnavailable) -> Self {
        Self::Unavailable(why)
    }
}

impl Dashboard {
    /// Starts the rendering of watched pages, until `stop` is true.
    pub fn start(
        board: StatusBoard,
        client: Client,
        connection: Option<Connection>,
        on_loopback: bool,
        clock: Clock,
        stop: watch::Receiver<bool>,
    ) -> Arc<Self> {
        let dashboard = Arc::new(Self {
            board,
            client,
            connection,
            on_loopback,
            clock,
            report: Mutex::default(),
            routes: RouteObjects::default(),
            live: LivePages::default(),
        });
        tokio::spawn(live_pages::run(dashboard.clone(), stop));
        dashboard
    }

    pub async fn respond(self: Arc<Self>, request: Request<Incoming>) -> Response<AdminBody> {
        if let Some(refusal) = self.origin(&request).refusal() {
            return response(StatusCode::FORBIDDEN, TEXT, format!("{refusal}\n"));
        }
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        if request.method() == Method::POST {
            return match apply::target(&path) {
                Some((namespace, name)) => self.apply(request, namespace, name).await,
                None => not_found(),
            };
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "use GET or HEAD\n");
        }
        match path.as_str() {
            "/api/status" => from_admin_page(status_page::report_page(&self.board, &query).await),
            "/events" => self.events(&query),
            _ => match pages::assets::find(&path) {
                Some(asset) => {
                    let mut found =
                        response(StatusCode::OK, asset.content_type, Bytes::from_static(asset.content()));
                    let forever = HeaderValue::from_static("public, max-age=31536000, immutable");
                    found.headers_mut().insert(CACHE_CONTROL, forever);
                    found
                }
                None => self.page(&path, &query).await,
            },
        }
    }

    fn origin<'r>(&self, request: &'r Request<Incoming>) -> BrowserOrigin<'r> {
        let header = |name: &str| text(request.headers(), name);
        BrowserOrigin {
            reads: matches!(*request.method(), Method::GET | Method::HEAD),
            on_loopback: self.on_loopback,
            host: header("host"),
            origin: header("origin"),
            site: header("sec-fetch-site"),
            mode: header("sec-fetch-mode"),
            dest: header("sec-fetch-dest"),
        }
    }

    async fn page(&self, path: &str, query: &str) -> Response<AdminBody> {
        let Some(target) = PageTarget::parse(path, query) else { return not_found() };
        match self.render(&target).await {
            Ok(page) => response(StatusCode::OK, HTML, pages::document(&page)),
            Err(NoPage::NotFound(text)) => {
                response(StatusCode::NOT_FOUND, HTML, pages::error_document("Not found", &text, "/services"))
            }
            Err(NoPage::Unavailable(why)) => {
                let page = pages::unavailable_document(&format!("{why}."), &target.link());
                response(StatusCode::SERVICE_UNAVAILABLE, HTML, page)
            }
        }
    }

    /// The page as it is now.
    async fn render(&self, target: &PageTarget) -> Result<Page, NoPage> {
        let report = self.report().await?;
        Ok(match target {
            PageTarget::Overview => pages::overview_page(&report, &self.board.history().await?),
            PageTarget::Services(query) => pages::services_page(&report, query),
            PageTarget::Nodes(query) => pages::nodes_page(&report, query),
            PageTarget::Routes { search } => {
                let (rows, notes) = self.routes.rows(&self.client, &report, &self.clock).await;
                pages::routes_page(&rows, search, &notes)
            }
            PageTarget::Service { namespace, name } => {
                let (view, notes) = self.service(&report, namespace, name).await?;
                let extras = ServiceExtras { allow_apply: self.connection.is_some(), notes };
                pages::service_page(&report, &view, &extras)
            }
            PageTarget::WhatIf(form) => {
                let view = match form.key() {
                    None => None,
                    Some((namespace, name)) => {
                        let question = WhatIfQuestion {
                            namespace: namespace.to_owned(),
                            name: name.to_owned(),
                            mechanism: form.mechanism,
                            failed_zone: Some(form.failed_zone.clone()).filter(|zone| !zone.is_empty()),
                            replicas: form.replicas_by_zone(),
                        };
                        self.board.what_if(question).await?
                    }
                };
                pages::what_if_page(&report, form, view.as_ref())
            }
        })
    }

    /// The report, made once for all that ask within a second.
    async fn report(&self) -> Result<Arc<StatusReport>, StatusUnavailable> {
        let mut kept = self.report.lock().await;
        if let Some((at, report)) = &*kept
            && self.clock.since(*at) < MAX_AGE
        {
            return Ok(report.clone());
        }
        let query = StatusQuery { evaluations: Some(EVALUATED_PER_REPORT), ..StatusQuery::default() };
        let report = Arc::new(self.board.ask(query).await?);
        *kept = Some((self.clock.now(), report.clone()));
        Ok(report)
    }

    /// One Service with its Events and routes; what cannot be read is in the notes.
    async fn service(
        &self,
        report: &StatusReport,
        namespace: &str,
        name: &str,
    ) -> Result<(ServiceView, Vec<String>), NoPage> {
        let key = model::ServiceKey::new(&namespace.into(), &name.into());
        let view = self.board.view(key).await?;
        let mut view =
            view.ok_or_else(|| NoPage::NotFound(format!("There is no Service {namespace}/{name}.")))?;
        let mut notes = Vec::new();
        match service_objects::events(&self.client, namespace, name).await {
            Ok(events) => view.detail.events = events,
            Err(kube::Error::Api(status)) if status.code == 403 => {
                notes.push("Events are not shown: the controller lacks the right to list them, see deploy/controller/rbac.yaml".to_owned());
            }
            Err(error) => notes.push(format!("Events cannot be read: {error}")),
        }
        match service_objects::rules(&self.client, namespace, name).await {
            Ok(rules) => {
                for (route, backends) in rules {
                    let connections = |namespace: &str, name: &str| connections(report, namespace, name);
                    view.detail.canary.extend(CanaryShare::of_rule(&route, &backends, connections));
                }
            }
            // Clusters without the kinds of zoneward.dev have no such routes.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => notes.push(format!("routes cannot be read: {error}")),
        }
        Ok((view, notes))
    }
}

/// New connections per second to a Service.
fn connections(report: &StatusReport, namespace: &str, name: &str) -> Option<f64> {
    let found = report.services.iter().find(|s| s.namespace == namespace && s.name == name);
    found.and_then(|service| service.connections_per_second)
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    // A header that is no text names nothing, and is not missing.
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

fn not_found() -> Response<AdminBody> {
    response(StatusCode::NOT_FOUND, HTML, pages::error_document("Not found", "There is no such page.", "/"))
}

fn from_admin_page(page: AdminPage) -> Response<AdminBody> {
    response(page.status, page.content_type, page.body)
}

fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<AdminBody> {
    with_body(status, content_type, Full::new(body.into()).boxed_unsync())
}

fn with_body(status: StatusCode, content_type: &'static str, body: AdminBody) -> Response<AdminBody> {
    let mut response: Response<AdminBody> = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in SECURITY_HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The error of a body that cannot fail.
type BodyFrame = Result<hyper::body::Frame<Bytes>, Infallible>;
