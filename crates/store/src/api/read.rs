//! get and list.

use bytes::{BufMut, Bytes, BytesMut};
use http::Response;
use serde_json::{Value, json};

use super::accept::Form;
use super::pages::{self, Pages};
use super::route::Target;
use super::{Api, Body, Call, body, parse, read_failure};
use crate::continuation::Continuation;
use crate::engine::{Key, Page, Query, ResourceId, Revision};
use crate::kinds::Kind;
use crate::objects::key;
use crate::query::{ListOptions, ListVersion};
use crate::status::Failure;
use crate::table::{self, IncludeObject};

/// How many objects are read at once where selectors may leave most of them out.
const CHUNK: usize = 500;

impl Api {
    pub(super) fn get(&self, call: &Call) -> Result<Response<Body>, Failure> {
        let Target { kind, namespace, name, .. } = &call.target;
        let (namespace, name) =
            (namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default());
        let found = self.engine.get(&key(kind, namespace, name)).map_err(read_failure)?;
        let stored = found.ok_or_else(|| Failure::not_found(kind, name))?;
        if call.accept.form == Form::Object {
            return Ok(body::bytes(200, stored.json));
        }
        Ok(body::json(200, &shown(call, &parse(&stored.json)?)))
    }

    pub(super) async fn list_or_watch(&self, call: &Call) -> Result<Response<Body>, Failure> {
        let options = call.query.list_options(call.target.kind)?;
        if options.watch {
            return self.watch(call, options).await;
        }
        let page = if options.limit == 0 && call.accept.form == Form::Object {
            match Pages::begin(self, &call.target, &options)?.into_one() {
                Ok(page) => page,
                Err(pages) => return Ok(pages::respond(call, *pages)),
            }
        } else {
            self.page(&call.target, &options, true)?
        };
        let list = page.meta();
        match call.accept.form {
            Form::Object => Ok(body::bytes(200, concatenated(call.target.kind, &list, &page.items))),
            form => Ok(body::json(200, &collected(call, form, &list, &page.items)?)),
        }
    }

    /// One page of a list, selectors applied; `counts` whether to say how many objects are behind it.
    pub(super) fn page(
        &self,
        target: &Target,
        options: &ListOptions,
        counts: bool,
    ) -> Result<Listed, Failure> {
        let mut from = options.continue_token.as_deref().map(Continuation::decode).transpose()?;
        let mut at = match (&from, options.version) {
            (Some(place), _) => Some(Revision(place.revision)),
            (None, ListVersion::Exact(revision)) => Some(Revision(revision)),
            (None, ListVersion::NotOlderThan(revision)) if revision > self.engine.revision().0 => {
                return Err(Failure::too_large_resource_version(revision, self.engine.revision().0));
            }
            (None, _) => None,
        };
        let selects = !options.labels.is_empty() || !options.fields.is_empty();
        let mut listed = Listed::default();
        loop {
            let page = self.read_page(target, options, at, from.as_ref(), selects, counts)?;
            at = Some(page.revision);
            listed.revision = page.revision;
            let (rest, read) = (page.more, page.items);
            for stored in read {
                if selects && !is_selected(options, &stored.json)? {
                    continue;
                }
                if options.limit > 0 && listed.items.len() == options.limit {
                    // Only where selectors left some out: one too many was read, so there is more.
                    listed.more = listed.last.clone();
                    return Ok(listed);
                }
                listed.last = Some(stored.key);
                listed.items.push(stored.json);
            }
            match rest {
                Some(last) if selects => from = Some(continuation(&last, page.revision)),
                rest => {
                    listed.more = rest;
                    listed.remaining = page.remaining;
                    return Ok(listed);
                }
            }
        }
    }

    fn read_page(
        &self,
        target: &Target,
        options: &ListOptions,
        at: Option<Revision>,
        from: Option<&Continuation>,
        selects: bool,
        counts: bool,
    ) -> Result<Page, Failure> {
        let resource = ResourceId(target.kind.id);
        let start_after = from.map(|place| Key::new(resource, &place.namespace, &place.name));
        let query = Query {
            resource,
            namespace: target.namespace.as_deref(),
            start_after: start_after.as_ref(),
            limit: if selects { CHUNK } else { options.limit },
            at,
            count_remaining: counts && !selects && options.limit > 0,
        };
        self.engine.list(&query).map_err(read_failure)
    }
}

fn continuation(key: &Key, revision: Revision) -> Continuation {
    Continuation { revision: revision.0, namespace: key.namespace.to_string(), name: key.name.to_string() }
}

/// Whether an object is one that the selectors ask for.
pub(super) fn is_selected(options: &ListOptions, json: &[u8]) -> Result<bool, Failure> {
    Ok(selects(options, &parse(json)?))
}

/// Whether an object, or what selectors see of it, is one that they ask for.
pub(super) fn selects(options: &ListOptions, object: &Value) -> bool {
    options.labels.matches(object) && options.fields.matches(object)
}

/// A page of a list.
#[derive(Default)]
pub(super) struct Listed {
    pub(super) items: Vec<Bytes>,
    pub(super) revision: Revision,
    more: Option<Key>,
    remaining: Option<u64>,
    last: Option<Key>,
}

impl Listed {
    /// What asks for the page behind this one.
    pub(super) fn next_token(&self) -> Option<String> {
        self.more.as_ref().map(|last| continuation(last, self.revision).encode())
    }

    fn meta(&self) -> Value {
        let mut meta = json!({"resourceVersion": self.revision.to_string()});
        if let Some(token) = self.next_token() {
            meta["continue"] = token.into();
        }
        if let (Some(remaining), true) = (self.remaining, self.more.is_some()) {
            meta["remainingItemCount"] = remaining.into();
        }
        meta
    }
}

/// A list without looking into its items.
fn concatenated(kind: &Kind, list: &Value, items: &[Bytes]) -> Bytes {
    let size: usize = items.iter().map(|item| item.len() + 1).sum();
    let mut out = BytesMut::with_capacity(size + 256);
    out.put_slice(list_head(kind, list).as_bytes());
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.put_u8(b',');
        }
        out.put_slice(item);
    }
    out.put_slice(b"]}");
    out.freeze()
}

/// A list up to its first item.
pub(super) fn list_head(kind: &Kind, list: &Value) -> String {
    format!(
        "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{list},\"items\":[",
        kind.kind,
        kind.api_version()
    )
}

fn collected(call: &Call, form: Form, list: &Value, items: &[Bytes]) -> Result<Value, Failure> {
    let objects: Vec<Value> = items.iter().map(|item| parse(item)).collect::<Result<_, _>>()?;
    if form == Form::Table {
        let include = included(call);
        return Ok(table::table(call.target.kind, &objects, list.clone(), include, now()));
    }
    let partial: Vec<Value> = objects.iter().map(table::partial).collect();
    Ok(
        json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": list, "items": partial}),
    )
}

pub(super) fn included(call: &Call) -> IncludeObject {
    match call.query.value("includeObject") {
        Some("None") => IncludeObject::None,
        Some("Object") => IncludeObject::Object,
        _ => IncludeObject::Metadata,
    }
}

pub(super) fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// One object in the form that the client asks for.
pub(super) fn shown(call: &Call, object: &Value) -> Value {
    match call.accept.form {
        Form::Object => object.clone(),
        Form::Metadata => table::partial(object),
        Form::Table => {
            let list = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
            table::table(call.target.kind, std::slice::from_ref(object), list, included(call), now())
        }
    }
}
