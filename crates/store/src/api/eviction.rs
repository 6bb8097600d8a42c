//! `pods/NAME/eviction`: deletes a Pod, as `kubectl drain` does. Disruption budgets are not served, so none forbids it.

use http::Response;
use serde_json::{Value, json};

use super::write::decode_strictly;
use super::{Api, Caller, DeleteOptions, ResourceRequest, ResponseBody, WriteContext, body, delete_in};
use crate::kinds::EVICTION;
use crate::meta;
use crate::object_txn::ObjectTxn;
use crate::status::StatusError;

impl Api {
    pub(super) async fn evict(
        &self,
        request: ResourceRequest,
        caller: &Caller,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let options = request.query.write_options("CreateOptions")?;
        let context =
            WriteContext { kind: &EVICTION, ..self.write_context(request.info.kind, caller, options) };
        let mut decoded = body::object(&request.headers, &request.content, EVICTION.kind)?;
        let warnings = decode_strictly(&context, None, &mut decoded)?;
        let (kind, user) = (request.info.kind, caller.user.clone());
        let (namespace, name) =
            (request.info.namespace.unwrap_or_default(), request.info.name.unwrap_or_default());
        let deletion = deletion(&decoded.value, &name)?;
        let dry_run = options.dry_run || deletion.is_dry_run();
        let work = move |objects: &mut ObjectTxn<'_, '_>| {
            delete_in(objects, kind, &namespace, &name, &deletion, &user).map(drop)
        };
        self.commit(dry_run, work).await?;
        let status =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        let mut response = body::json(201, &status);
        body::warn(&mut response, &warnings);
        Ok(response)
    }
}

/// The options of the delete.
fn deletion(eviction: &Value, name: &str) -> Result<DeleteOptions, StatusError> {
    let given = meta::text(eviction, "name");
    if given != name {
        return Err(StatusError::bad_request(format!(
            "name in URL does not match name in Eviction object: {given:?}, {name:?}"
        )));
    }
    match &eviction["deleteOptions"] {
        Value::Null => Ok(DeleteOptions::default()),
        options => serde_json::from_value(options.clone())
            .map_err(|error| StatusError::bad_request(format!("cannot decode deleteOptions: {error}"))),
    }
}
