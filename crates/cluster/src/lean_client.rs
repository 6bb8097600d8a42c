//! The client of watches. It asks for objects without `metadata.managedFields` (KEP-5958), which only the slice controller
//! reads, and over a network for compressed watches: an API encodes a change once for all nodes, and sends it to each. An
//! API server that does not know one of them ignores it.

use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http::{HeaderValue, Request, Response, header};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use tower::Service;

static JSON: HeaderValue = HeaderValue::from_static("application/json");
const DROP: &str = ";drop=metadata.managedFields";

type LeanBody = UnsyncBoxBody<Bytes, <Body as hyper::body::Body>::Error>;

/// The same API, asked for less.
pub(super) fn lean(client: &Client, has_managed_fields: bool) -> Client {
    let service = LeanService { client: client.clone(), has_managed_fields };
    Client::new(service, client.default_namespace().to_owned())
}

#[derive(Clone)]
struct LeanService {
    client: Client,
    has_managed_fields: bool,
}

impl Service<Request<Body>> for LeanService {
    type Response = Response<LeanBody>;
    type Error = kube::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<LeanBody>, kube::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), kube::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        // A watch that names no content type means JSON.
        let accept = request.headers().get(header::ACCEPT).unwrap_or(&JSON);
        if let Some(accept) = Some(accept).filter(|_| !self.has_managed_fields).and_then(dropping) {
            request.headers_mut().insert(header::ACCEPT, accept);
        }
        if request.uri().query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true")) {
            request.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let client = self.client.clone();
        Box::pin(async move { client.send(request).await.map(decompressed) })
    }
}

/// The response with a plain body. What cannot be decompressed is passed on, and read as malformed JSON: the watch fails
/// and is started again.
fn decompressed(mut response: Response<Body>) -> Response<LeanBody> {
    let encoding = response.headers().get(header::CONTENT_ENCODING);
    if encoding.is_none_or(|encoding| encoding != "gzip") {
        return response.map(BodyExt::boxed_unsync);
    }
    response.headers_mut().remove(header::CONTENT_ENCODING);
    response.headers_mut().remove(header::CONTENT_LENGTH);
    // Kubernetes sends each event as a gzip member of its own.
    let mut decoder = MultiGzDecoder::new(Vec::new());
    let decode = move |frame: Frame<Bytes>| match frame.into_data() {
        Ok(data) => Frame::data(match decoder.write_all(&data).and_then(|()| decoder.flush()) {
            Ok(()) => std::mem::take(decoder.get_mut()).into(),
            Err(_) => data,
        }),
        Err(trailers) => trailers,
    };
    response.map(|body| body.map_frame(decode).boxed_unsync())
}

/// The media ranges of an Accept header, each without managedFields.
fn dropping(accept: &HeaderValue) -> Option<HeaderValue> {
    let ranges = accept.to_str().ok()?.split(',');
    let dropped: Vec<String> = ranges.map(|range| format!("{}{DROP}", range.trim())).collect();
    HeaderValue::from_str(&dropped.join(",")).ok()
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[tokio::test]
    async fn members_of_a_compressed_watch_are_read_as_they_come() {
        let member = |text: &str| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(text.as_bytes()).expect("in memory");
            encoder.finish().expect("in memory")
        };
        let sent = [member("one\n"), member("two\n")].concat();
        let response = |encoding: &str| {
            let response = Response::builder().header(header::CONTENT_ENCODING, encoding);
            response.body(Body::from(sent.clone())).expect("a response")
        };
        let read =
            async |response| decompressed(response).into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(read(response("gzip")).await, "one\ntwo\n");
        assert_eq!(read(response("identity")).await, sent);
    }

    #[tokio::test]
    async fn a_watch_without_an_accept_header_is_lean_as_well() {
        let service = tower::service_fn(async |request: Request<Body>| {
            let accept = request.headers()[header::ACCEPT].to_str().expect("text").to_owned();
            Ok::<_, std::io::Error>(Response::new(Body::from(accept.into_bytes())))
        });
        let client = lean(&Client::new(service, "default"), false);
        let watch = || Request::get("/api/v1/services?watch=true").body(Body::empty()).expect("a request");
        let response = client.send(watch()).await.expect("a response");
        let accepted = response.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(accepted, "application/json;drop=metadata.managedFields");
    }

    #[test]
    fn every_media_range_gets_the_parameter() {
        let asked = dropping(&HeaderValue::from_static("application/json;as=Table;v=v1, application/json"));
        let wanted = "application/json;as=Table;v=v1;drop=metadata.managedFields,application/json;drop=metadata.managedFields";
        assert_eq!(asked, Some(HeaderValue::from_static(wanted)));
    }
}
