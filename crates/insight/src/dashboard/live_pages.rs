//! The stream of changed fragments. A page is rendered once per tick, however many viewers it has; a viewer that is slow
//! misses states, never fragments, and holds nothing but what it has not read yet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::pages::{Page, PageFragment, PageTarget, QueryPairs};
use bytes::Bytes;
use cluster::admin_server::AdminBody;
use futures_util::stream;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use super::{BodyFrame, Dashboard, NoPage, TEXT, not_found, response, with_body};

/// Viewers at a time; each has one connection of the listener.
const MAX_VIEWERS: usize = 64;
/// Interval between renderings.
const INTERVAL: Duration = Duration::from_secs(5);
/// Rendering takes at most one part in so many of a core: the interval grows with its duration.
const REST: u32 = 50;
/// A comment that finds out whether the viewer is still there.
const HEARTBEAT: Duration = Duration::from_secs(20);
/// The first bytes: the delay before the browser reconnects.
const PREAMBLE: &[u8] = b"retry: 3000\n\n";

/// The pages with viewers, by their links.
pub(super) struct LivePages {
    pages: Mutex<BTreeMap<String, watch::Sender<Arc<LivePage>>>>,
    viewers: Arc<Semaphore>,
    /// The first viewer has come.
    woken: Notify,
}

impl Default for LivePages {
    fn default() -> Self {
        let viewers = Arc::new(Semaphore::new(MAX_VIEWERS));
        Self { pages: Mutex::default(), viewers, woken: Notify::new() }
    }
}

/// The last rendering of a page.
#[derive(Debug, Default, PartialEq)]
struct LivePage {
    fragments: Vec<LiveFragment>,
}

#[derive(Clone, Debug, PartialEq)]
struct LiveFragment {
    id: &'static str,
    version: u64,
    event: Bytes,
}

impl LivePage {
    /// Fragments that did not change keep their event.
    fn new(page: Result<Page, NoPage>, before: &Self) -> Self {
        let page = match page {
            Ok(page) => page,
            Err(why) => {
                let text = match why {
                    NoPage::Unavailable(why) => why.to_string(),
                    NoPage::NotFound(text) => text,
                };
                let event = format!("event: unavailable\ndata: {}\n\n", serde_json::json!({"text": text}));
                let version = u64::try_from(event.len()).unwrap_or(0);
                return Self { fragments: vec![LiveFragment { id: "", version, event: event.into() }] };
            }
        };
        let fragment = |fragment: &PageFragment| {
            let version = fragment.version();
            let known = before.fragments.iter().find(|f| f.id == fragment.id && f.version == version);
            let event = known.map_or_else(|| fragment.event().into(), |known| known.event.clone());
            LiveFragment { id: fragment.id, version, event }
        };
        Self { fragments: page.fragments.iter().map(fragment).collect() }
    }
}

impl LivePages {
    fn locked(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, watch::Sender<Arc<LivePage>>>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscribe(&self, link: String) -> watch::Receiver<Arc<LivePage>> {
        let receiver =
            self.locked().entry(link).or_insert_with(|| watch::channel(Arc::default()).0).subscribe();
        self.woken.notify_one();
        receiver
    }

    /// The pages with viewers; others are forgotten.
    fn watched(&self) -> Vec<(String, Arc<LivePage>)> {
        let mut pages = self.locked();
        pages.retain(|_, sender| sender.receiver_count() > 0);
        pages.iter().map(|(link, sender)| (link.clone(), sender.borrow().clone())).collect()
    }

    fn publish(&self, link: &str, page: LivePage) {
        if let Some(sender) = self.locked().get(link) {
            sender.send_if_modified(|current| {
                let changed = **current != page;
                *current = Arc::new(page);
                changed
            });
        }
    }
}

/// Renders the pages with viewers until `stop` is true.
pub(super) async fn run(dashboard: Arc<Dashboard>, mut stop: watch::Receiver<bool>) {
    let live = &dashboard.live;
    loop {
        let watched = live.watched();
        let begun = dashboard.clock.now();
        for (link, before) in &watched {
            if let Some(target) = PageTarget::parse_link(link) {
                let page = dashboard.render(&target).await;
                live.publish(link, LivePage::new(page, before));
            }
        }
        let pause = INTERVAL.max(dashboard.clock.since(begun) * REST);
        let next = async {
            if watched.is_empty() {
                *dashboard.report.lock().await = None;
                live.woken.notified().await;
            } else {
                tokio::time::sleep(pause).await;
            }
        };
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            () = next => {}
        }
    }
    // Ends the streams.
    live.locked().clear();
}

/// What one viewer has been sent.
struct ViewerState {
    page: watch::Receiver<Arc<LivePage>>,
    versions: BTreeMap<&'static str, u64>,
    queue: VecDeque<Bytes>,
    _place: OwnedSemaphorePermit,
}

impl ViewerState {
    async fn next(mut self) -> Option<(BodyFrame, Self)> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some((Ok(Frame::data(event)), self));
            }
            match tokio::time::timeout(HEARTBEAT, self.page.changed()).await {
                Ok(Ok(())) => {
                    let page = self.page.borrow_and_update().clone();
                    for fragment in &page.fragments {
                        if self.versions.insert(fragment.id, fragment.version) != Some(fragment.version) {
                            self.queue.push_back(fragment.event.clone());
                        }
                    }
                }
                Ok(Err(_)) => return None,
                Err(_) => self.queue.push_back(Bytes::from_static(b":\n\n")),
            }
        }
    }
}

impl Dashboard {
    /// The stream of a page, `/events?page=LINK`.
    pub(super) fn events(&self, query: &str) -> Response<AdminBody> {
        let pairs = QueryPairs::parse_up_to(query, 1_024);
        let Some(target) = pairs.value("page").and_then(PageTarget::parse_link) else { return not_found() };
        let Ok(place) = self.live.viewers.clone().try_acquire_owned() else {
            let text = format!("{MAX_VIEWERS} viewers are connected: reload the page instead\n");
            return response(StatusCode::SERVICE_UNAVAILABLE, TEXT, text);
        };
        let state = ViewerState {
            page: self.live.subscribe(target.link()),
            versions: BTreeMap::new(),
            queue: VecDeque::from([Bytes::from_static(PREAMBLE)]),
            _place: place,
        };
        let body = StreamBody::new(stream::unfold(state, ViewerState::next)).boxed_unsync();
        with_body(StatusCode::OK, "text/event-stream", body)
    }
}
