//! Rolling upgrades: controllers of another version, which differ in the annotations of slices. A restart may change the
//! version of a controller; at the end all are of this one.
//!
//! | version | what it does |
//! |---|---|
//! | older | sees no ZoneDrain: the slices that it writes lack `zoneward.dev/drain` |
//! | newer | adds an annotation that this version does not know to the slices that it writes |

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use model::random::Random;
use serde_json::{Value, json};

use crate::link::LinkBody;

/// An annotation of a version that does not exist yet.
pub(crate) const FUTURE: &str = "zoneward.dev/future";

/// The version of a controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ControllerVersion {
    #[default]
    This,
    Older,
    Newer,
}

impl ControllerVersion {
    pub(crate) fn drawn(random: &mut Random) -> Self {
        [Self::This, Self::Older, Self::Newer][random.below(3)]
    }

    /// What the API answers to an older version itself, which asks for no ZoneDrain.
    pub(crate) fn response(self, request: &Request<Bytes>) -> Option<Response<LinkBody>> {
        if self != Self::Older || !request.uri().path().contains("/zonedrains") {
            return None;
        }
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "the server could not find the requested resource", "reason": "NotFound", "code": 404});
        let mut response = Response::new(LinkBody::Whole(Some(status.to_string().into())));
        *response.status_mut() = StatusCode::NOT_FOUND;
        Some(response)
    }

    /// The request as this version would send it.
    pub(crate) fn rewrite(self, request: Request<Bytes>) -> Request<Bytes> {
        let writes = [Method::POST, Method::PUT].contains(request.method());
        if self != Self::Newer || !writes || !request.uri().path().contains("/endpointslices") {
            return request;
        }
        request.map(|body| {
            let Ok(mut slice) = serde_json::from_slice::<Value>(&body) else { return body };
            slice["metadata"]["annotations"][FUTURE] = json!("1");
            slice.to_string().into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, path: &str) -> Request<Bytes> {
        let body = json!({"metadata": {"name": "s"}}).to_string();
        Request::builder().method(method).uri(path).body(body.into()).unwrap()
    }

    #[test]
    fn versions_differ_in_the_annotations_that_they_write() {
        let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
        let drains = "/apis/zoneward.dev/v1alpha1/zonedrains?watch=true";
        let has_future = |version: ControllerVersion| {
            let sent = version.rewrite(request(Method::POST, slices));
            sent.body().windows(FUTURE.len()).any(|part| part == FUTURE.as_bytes())
        };
        assert!(has_future(ControllerVersion::Newer));
        assert!(!has_future(ControllerVersion::Older) && !has_future(ControllerVersion::This));
        let response = |version: ControllerVersion| version.response(&request(Method::GET, drains));
        assert_eq!(response(ControllerVersion::Older).unwrap().status(), 404);
        assert!(response(ControllerVersion::This).is_none() && response(ControllerVersion::Newer).is_none());
    }
}
