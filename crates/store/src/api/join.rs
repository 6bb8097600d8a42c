//! `POST /join`: a token is used up for a Node and its credential, and a credential is exchanged for a newer one. Nodes
//! with the right to it get credentials for their L7 proxies by `POST /join/gateways/NAMESPACE/NAME` and
//! `/join/sidecars/NAMESPACE/NUMBER`.

use apimachinery::join::{NAMESPACE, NodeIdentity, presented_token, secret_name};
use apimachinery::rbac;
use http::Response;
use model::ProxyUser;
use serde_json::json;

use super::delete::{self, DeleteOptions};
use super::{Api, Caller, ResponseBody, WriteContext, body, create_in};
use crate::authenticator::stored_token;
use crate::kinds::{self, ResourceKind};
use crate::meta;
use crate::object_txn::ObjectTxn;
use crate::query::WriteOptions;
use crate::status::StatusError;

fn kind(word: &str) -> Result<&'static ResourceKind, StatusError> {
    kinds::named(word).ok_or_else(|| StatusError::internal(format!("kind {word} is missing")))
}

impl Api {
    pub(super) async fn join(
        &self,
        caller: &Caller,
        proxy: Option<&ProxyUser>,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let node = match (presented_token(&caller.user), NodeIdentity::of(&caller.user)) {
            (Some(id), _) if proxy.is_none() => self.use_token(id).await?,
            (None, Some(node)) if !node.uid.is_empty() => node,
            _ => {
                let why = format!("User {:?} has neither a token to join with nor a node", caller.user.name);
                return Err(StatusError::forbidden(why));
            }
        };
        let now = self.clock().timestamp();
        let seconds = now.as_second();
        let token = self
            .authenticator
            .sign_node(&node, proxy, &self.names.uid(), seconds)
            .map_err(StatusError::internal)?;
        let expires = seconds.saturating_add(self.authenticator.node_seconds());
        let expires = jiff::Timestamp::from_second(expires).unwrap_or(now);
        let answer = json!({
            "node": node.name, "token": token, "issued": meta::time(now), "expires": meta::time(expires),
        });
        Ok(body::json(201, &answer))
    }

    /// Deletes a token and creates its Node with the rights of the token, in one transaction: of two machines with one
    /// token, one joins. The rights end with the Node, which owns them.
    async fn use_token(&self, id: &str) -> Result<NodeIdentity, StatusError> {
        let (nodes, secrets, name) = (kind("Node")?, kind("Secret")?, secret_name(id));
        let bindings = kind("ClusterRoleBinding")?;
        let id = id.to_owned();
        let [context, binding_context] = [nodes, bindings].map(|kind| WriteContext {
            policies: false,
            ..self.write_context(kind, &Caller::own(), WriteOptions::default())
        });
        let work = move |objects: &mut ObjectTxn<'_, '_>| {
            let token = objects.find(secrets, NAMESPACE, &name)?.as_ref().and_then(stored_token);
            let Some(token) = token.filter(|token| !token.is_expired(objects.now.as_second())) else {
                return Err(StatusError::credentials_ended(&format!(
                    "the token {id} was used or has expired"
                )));
            };
            let node = token.node;
            if objects.has(nodes, "", &node)? {
                let why = format!(
                    "the Node exists. To let the machine join again, delete it first, which revokes its credential: \
                     kubectl delete node {node}"
                );
                return Err(StatusError::conflict(nodes, &node, why));
            }
            delete::delete_in(objects, secrets, NAMESPACE, &name, &DeleteOptions::default(), &context.user)?;
            let object = json!({"metadata": {"name": node, "labels": {"kubernetes.io/hostname": node}}});
            let created = create_in(objects, &context, object)?.object;
            let node = NodeIdentity { name: node, uid: meta::text(&created, "uid").to_owned() };
            for (role, is_allowed) in token.allowed.roles() {
                let name = format!("{role}:{}", node.name);
                // That of an earlier Node of this name may not be collected yet.
                if objects.has(bindings, "", &name)? {
                    delete::delete_in(
                        objects,
                        bindings,
                        "",
                        &name,
                        &DeleteOptions::default(),
                        &context.user,
                    )?;
                }
                if is_allowed {
                    create_in(objects, &binding_context, binding(&node, role, &name))?;
                }
            }
            Ok(node)
        };
        self.commit(false, work).await
    }
}

/// The binding of a role to a node, which ends with its Node.
fn binding(node: &NodeIdentity, role: &str, name: &str) -> serde_json::Value {
    json!({
        "apiVersion": format!("{}/v1", rbac::GROUP), "kind": "ClusterRoleBinding",
        "metadata": {"name": name, "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid},
        ]},
        "roleRef": {"apiGroup": rbac::GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": rbac::GROUP, "kind": "User", "name": node.user().name}],
    })
}
