//! What a request is sent from again. One with a body is kept only if the body fits into the read-ahead buffer; it is read
//! whole before the first try then.

use std::pin::Pin;

use bytes::{Buf, BytesMut};
use http::{Request, StatusCode};
use hyper::body::Body;

use super::body::{BodyError, RequestBody};
use super::body_chunk::BodyChunk;
use crate::downstream::connection::HttpConnection;

pub(super) struct RequestTemplate {
    head: Request<()>,
    body: bytes::Bytes,
}

impl RequestTemplate {
    /// `None` if the body is too long to keep; the status of the local reply if it cannot be read.
    pub(super) async fn of(
        request: &mut Request<RequestBody>,
        connection: &HttpConnection,
    ) -> Result<Option<Box<Self>>, StatusCode> {
        let mut bytes = BytesMut::new();
        if !request.body().is_end_stream() {
            let max = connection.proxy.settings.limits.buffer as u64;
            if request.body().size_hint().exact().is_none_or(|length| length > max) {
                return Ok(None);
            }
            let body = request.body_mut();
            while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
                let frame = frame.map_err(|error| body_status(&error))?;
                if let Ok(mut data) = frame.into_data() {
                    bytes.extend_from_slice(&data.copy_to_bytes(data.remaining()));
                }
            }
        }
        let mut head = Request::new(());
        *head.method_mut() = request.method().clone();
        *head.uri_mut() = request.uri().clone();
        *head.version_mut() = request.version();
        *head.headers_mut() = request.headers().clone();
        let template = Self { head, body: bytes.freeze() };
        if !template.body.is_empty() {
            *request.body_mut() = template.body_for(connection);
        }
        Ok(Some(Box::new(template)))
    }

    fn body_for(&self, connection: &HttpConnection) -> RequestBody {
        if self.body.is_empty() {
            return RequestBody::Empty;
        }
        RequestBody::Buffered(Some(BodyChunk::to_endpoint(self.body.clone(), &connection.activity)))
    }

    pub(super) fn request(&self, connection: &HttpConnection) -> Request<RequestBody> {
        let mut request = Request::new(self.body_for(connection));
        *request.method_mut() = self.head.method().clone();
        *request.uri_mut() = self.head.uri().clone();
        *request.version_mut() = self.head.version();
        *request.headers_mut() = self.head.headers().clone();
        request
    }
}

fn body_status(error: &BodyError) -> StatusCode {
    match error {
        BodyError::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
        BodyError::Stalled => StatusCode::REQUEST_TIMEOUT,
        BodyError::MirrorTooSlow | BodyError::Transport(_) => StatusCode::BAD_REQUEST,
    }
}
