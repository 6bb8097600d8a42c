//! An API that fails: one request in ten is refused, lost or hangs, and every watch ends early or has a gap.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as HttpBody, Frame};
use serde_json::json;
use store::api::{Api as Store, Caller};
use store::server::LocalApi;

/// Splitmix64: short, and one printed seed replays it.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.roll() % end.max(1)
    }
}

pub type AnyBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// How long an answer takes that nobody should wait for.
const HANG: Duration = Duration::from_secs(3);

/// The API, failing one request in ten while it is on.
#[derive(Clone)]
pub struct Faulty {
    inner: LocalApi,
    dice: Arc<Mutex<Dice>>,
    /// Whether anything fails.
    pub on: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Refused with this code; nothing happened.
    Refused(u16),
    /// It happened, but the answer was lost.
    AnswerLost,
    /// Nothing happens for a long time, and then nothing at all.
    Hang,
    /// A watch that ends after so many pieces, or is told to list again.
    CutAfter(u64),
}

impl Faulty {
    pub fn new(store: &Store, seed: u64) -> Self {
        let inner = LocalApi::new(store.clone(), Caller::own());
        Self { inner, dice: Arc::new(Mutex::new(Dice(seed))), on: Arc::new(AtomicBool::new(true)) }
    }

    fn fault(&self, request: &Request<kube::client::Body>) -> Option<Fault> {
        if !self.on.load(Ordering::Relaxed) {
            return None;
        }
        let mut dice = self.dice.lock().unwrap();
        let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        if watch {
            // Every watch ends early; one in ten is told that its version is too old.
            return Some(match dice.below(10) {
                0 => Fault::Refused(410),
                _ => Fault::CutAfter(dice.below(40)),
            });
        }
        let reads = request.method() == Method::GET;
        match dice.below(50) {
            0 => Some(Fault::Refused(429)),
            1 => Some(Fault::Refused(500)),
            2 => Some(Fault::Refused(503)),
            3 if !reads => Some(Fault::Refused(409)),
            4 if !reads => Some(Fault::AnswerLost),
            5 if dice.below(4) == 0 => Some(Fault::Hang),
            _ => None,
        }
    }
}

fn refusal(code: u16) -> Response<AnyBody> {
    let reason = match code {
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code,
        "message": "a fault was injected", "metadata": {}});
    let body = Full::new(Bytes::from(status.to_string())).map_err(|never: Infallible| match never {});
    let response = Response::builder().status(code).header("content-type", "application/json");
    response.body(AnyBody::new(body)).unwrap()
}

/// A body that ends early.
struct Cut<B> {
    inner: B,
    left: u64,
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Cut<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        Pin::new(&mut self.inner).poll_frame(context)
    }
}

impl tower::Service<Request<kube::client::Body>> for Faulty {
    type Response = Response<AnyBody>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let fault = self.fault(&request);
        if let Some(Fault::Refused(code)) = fault {
            return Box::pin(async move { Ok(refusal(code)) });
        }
        if let Some(Fault::Hang) = fault {
            return Box::pin(async {
                tokio::time::sleep(HANG).await;
                Err("nobody answered".into())
            });
        }
        let answer = tower::Service::call(&mut self.inner, request);
        Box::pin(async move {
            let response = answer.await?;
            match fault {
                Some(Fault::AnswerLost) => Err("the answer was lost".into()),
                Some(Fault::CutAfter(left)) => {
                    Ok(response.map(|body| AnyBody::new(Cut { inner: body, left }.map_err(Into::into))))
                }
                _ => Ok(response.map(|body| AnyBody::new(body.map_err(Into::into)))),
            }
        })
    }
}
