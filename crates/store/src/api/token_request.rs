//! `serviceaccounts/NAME/token`: issues a token (TokenRequest).

use apimachinery::service_account::{TokenRequestError, plan_token};
use apimachinery::validate::FieldErrorType;
use http::Response;

use super::write::decode_strictly;
use super::{Api, Caller, ResourceRequest, ResponseBody, WriteContext, body};
use crate::authenticator::find_object;
use crate::kinds::{self, TOKEN_REQUEST};
use crate::meta;
use crate::status::{Cause, StatusError};

impl Api {
    pub(super) fn issue_token(
        &self,
        request: &ResourceRequest,
        caller: &Caller,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let options = request.query.write_options("CreateOptions")?;
        let context =
            WriteContext { kind: &TOKEN_REQUEST, ..self.write_context(request.info.kind, caller, options) };
        let mut decoded = body::object(&request.headers, &request.content, TOKEN_REQUEST.kind)?;
        let mut warnings = decode_strictly(&context, None, &mut decoded)?;
        let mut asked = decoded.value;
        // As with the feature off in Kubernetes: the response shows that nothing is attested.
        if let Some(spec) = asked["spec"].as_object_mut() {
            spec.remove("attestations");
        }
        let namespace = request.info.namespace.as_deref().unwrap_or_default();
        let name = request.info.name.as_deref().unwrap_or_default();
        for (field, given, wanted) in [
            ("name", meta::text(&asked, "name"), name),
            ("namespace", meta::text(&asked, "namespace"), namespace),
        ] {
            if !given.is_empty() && given != wanted {
                let why =
                    format!("metadata.{field}: {given:?} does not match the service account {wanted:?}");
                return Err(StatusError::bad_request(why));
            }
        }
        let (engine, authenticator) = (self.engine(), self.authenticator());
        let find = |kind: &str, namespace: &str, name: &str| find_object(engine, kind, namespace, name);
        let plan = plan_token(authenticator.config(), namespace, name, &asked["spec"], &find)
            .map_err(|error| refusal(error, name))?;
        let now = request.now.as_second();
        if !context.options.dry_run {
            let token = authenticator.sign(&plan, &self.names.uid(), now).map_err(StatusError::internal)?;
            asked["status"]["token"] = token.into();
        } else {
            asked["status"]["token"] = "".into();
        }
        let end = jiff::Timestamp::from_second(now.saturating_add(plan.seconds)).unwrap_or(request.now);
        asked["status"]["expirationTimestamp"] = meta::time(end).into();
        asked["spec"]["audiences"] = plan.audiences.clone().into();
        asked["spec"]["expirationSeconds"] = plan.seconds.into();
        meta::set(&mut asked, "name", name);
        meta::set(&mut asked, "namespace", namespace);
        meta::set(&mut asked, "creationTimestamp", meta::time(request.now));
        warnings.extend(plan.warning);
        let mut response = body::json(201, &asked);
        body::warn(&mut response, &warnings);
        Ok(response)
    }
}

fn refusal(error: TokenRequestError, name: &str) -> StatusError {
    let row = |word: &str| kinds::named(word).unwrap_or(&TOKEN_REQUEST);
    match error {
        TokenRequestError::NotFound(kind, name) => StatusError::not_found(row(&kind), &name),
        TokenRequestError::BadRequest(why) => StatusError::bad_request(why),
        TokenRequestError::Conflict(kind, name, why) => StatusError::conflict(row(&kind), &name, why),
        TokenRequestError::Invalid(field, why) => {
            StatusError::invalid(&TOKEN_REQUEST, name, &[Cause::new(FieldErrorType::Invalid, field, why)])
        }
    }
}
