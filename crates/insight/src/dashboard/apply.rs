//! Applies the fix of a Service with the token that the viewer typed in. The token goes to the API with this one request
//! and is kept nowhere; what it may do is decided there.

use std::time::Duration;

use crate::pages::{PageTarget, QueryPairs};
use cluster::admin_server::AdminBody;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, Patch, PatchParams};
use tracing::info;

use crate::pages;

use super::{Dashboard, HTML, TEXT, response};

const MAX_BODY: usize = 32 * 1024;
const MAX_TOKEN: usize = 16 * 1024;
const TIMEOUT: Duration = Duration::from_secs(10);

/// The Service that a path of the form applies to.
pub(super) fn target(path: &str) -> Option<(String, String)> {
    match PageTarget::parse(path.strip_suffix("/apply")?, "")? {
        PageTarget::Service { namespace, name } => Some((namespace, name)),
        _ => None,
    }
}

impl Dashboard {
    pub(super) async fn apply(
        &self,
        request: Request<Incoming>,
        namespace: String,
        name: String,
    ) -> Response<AdminBody> {
        let back = PageTarget::Service { namespace: namespace.clone(), name: name.clone() }.link();
        let said = |status, title: &str, text: &str| {
            response(status, HTML, pages::error_document(title, text, &back))
        };
        let Some(connection) = &self.connection else {
            let text = "changes are not allowed here: start the controller with --allow-apply\n";
            return response(StatusCode::FORBIDDEN, TEXT, text);
        };
        let body = tokio::time::timeout(TIMEOUT, Limited::new(request.into_body(), MAX_BODY).collect());
        let Ok(Ok(body)) = body.await else {
            return said(
                StatusCode::PAYLOAD_TOO_LARGE,
                "Not applied",
                "The form is too large or came too slowly.",
            );
        };
        let body = body.to_bytes();
        let form = QueryPairs::parse_up_to(&String::from_utf8_lossy(&body), MAX_TOKEN);
        let Some(token) =
            form.value("token").filter(|token| token.bytes().all(|byte| byte.is_ascii_graphic()))
        else {
            return said(
                StatusCode::BAD_REQUEST,
                "Not applied",
                "Type in a token that may patch the Service.",
            );
        };
        let key = model::ServiceKey::new(&namespace.as_str().into(), &name.as_str().into());
        let patch = match self.board.view(key).await {
            Ok(Some(view)) => view.fix,
            Ok(None) => return said(StatusCode::NOT_FOUND, "Not applied", "There is no such Service."),
            Err(why) => return said(StatusCode::SERVICE_UNAVAILABLE, "Not applied", &format!("{why}.")),
        };
        let Some(patch) = patch else {
            return said(
                StatusCode::CONFLICT,
                "Not applied",
                "No change is recommended for this Service any more.",
            );
        };
        let patched = async {
            let client = cluster::connect_with_token(connection, token.to_owned(), &self.clock).await?;
            let api: Api<Service> = Api::namespaced(client, &namespace);
            let params = PatchParams {
                field_manager: Some("zoneward-dashboard".to_owned()),
                ..PatchParams::default()
            };
            anyhow::Ok(api.patch(&name, &params, &Patch::Merge(&patch)).await?)
        };
        match tokio::time::timeout(TIMEOUT, patched).await {
            Ok(Ok(_)) => {
                info!(service = %format_args!("{namespace}/{name}"), change = %patch, "change applied from the dashboard");
                let text = "The change is made. Nodes follow within seconds; the measured share follows with new connections.";
                said(StatusCode::OK, "Applied", text)
            }
            Ok(Err(error)) => {
                let text = match error.downcast_ref::<kube::Error>() {
                    Some(kube::Error::Api(status)) => status.message.clone(),
                    _ => format!("{error:#}"),
                };
                said(StatusCode::BAD_GATEWAY, "Not applied", &format!("The API refused it: {text}"))
            }
            Err(_) => {
                said(StatusCode::GATEWAY_TIMEOUT, "Not applied", "The API did not answer within 10 seconds.")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_services_have_a_change_to_apply() {
        assert_eq!(target("/services/shop/cart/apply"), Some(("shop".to_owned(), "cart".to_owned())));
        for path in [
            "/apply",
            "/services/apply",
            "/services/shop/cart",
            "/services/shop/cart/apply/apply",
            "/nodes/apply",
        ] {
            assert_eq!(target(path), None, "{path}");
        }
    }
}
