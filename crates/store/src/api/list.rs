//! Requests to get and list, and the forms of their responses.

use bytes::{BufMut, Bytes, BytesMut};
use http::Response;
use serde_json::{Value, json};

use super::continue_token::ContinueToken;
use super::negotiation::ResponseForm;
use super::paged_list::{self, PagedList};
use super::request_info::RequestInfo;
use super::{Api, ResourceRequest, ResponseBody, body, parse, read_error};
use crate::engine::{ListPage, ListQuery, ResourceId, Revision, StoreKey};
use crate::kinds::ResourceKind;
use crate::object_txn::key;
use crate::protobuf::object_encoder::ObjectEncoder;
use crate::query::{ListOptions, ListVersion};
use crate::status::StatusError;
use crate::table::{self, IncludeObject};

/// Objects and bytes per read when selectors may drop most of them.
const SELECTED_CHUNK: usize = 500;
const SELECTED_BYTES: usize = 1 << 20;
/// Bytes of a page that a client asked for by its number of objects; the rest follows with its continue token.
const PAGE_BYTES: usize = 16 << 20;

impl Api {
    pub(super) fn get(&self, request: &ResourceRequest) -> Result<Response<ResponseBody>, StatusError> {
        let RequestInfo { kind, namespace, name, .. } = &request.info;
        let (namespace, name) =
            (namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default());
        let found = self.engine.get(&key(kind, namespace, name)).map_err(read_error)?;
        let stored = found.ok_or_else(|| StatusError::not_found(kind, name))?;
        if request.accept.form == ResponseForm::Object && !kind.is_converted() {
            return Ok(body::bytes(200, request.accept.shown(stored.json)));
        }
        Ok(body::json(200, &converted(request, &parse(&request.accept.shown(stored.json))?)))
    }

    pub(super) async fn list_or_watch(
        &self,
        request: &ResourceRequest,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let mut options = request.query.list_options(request.info.kind)?;
        if let Some(name) = &request.info.name {
            options.fields.require_name(name);
        }
        if options.watch {
            return self.watch(request, options);
        }
        let page = match options.limit {
            0 if is_streamed(request) => {
                match PagedList::begin(self, &request.info, &options)?.into_single() {
                    Ok(page) => page,
                    Err(pages) => return Ok(paged_list::respond(request, *pages)),
                }
            }
            0 => self.page(&request.info, &options, 0, true)?,
            _ => self.page(&request.info, &options, PAGE_BYTES, true)?,
        };
        let list = page.meta();
        if request.accept.protobuf
            && let Some(encoder) = ObjectEncoder::of(request.info.kind, request.accept.drops_managed_fields)
        {
            let bytes = encoder.list(&list, &page.items);
            return bytes.map(body::protobuf).map_err(|error| StatusError::internal(error.to_string()));
        }
        let items: Vec<Bytes> = page.items.into_iter().map(|item| request.accept.shown(item)).collect();
        match request.accept.form {
            ResponseForm::Object => {
                let items = convert_items(request.info.kind, items)?;
                Ok(body::bytes(200, concatenated(request.info.kind, &list, &items)))
            }
            form => Ok(body::json(200, &reduced(request, form, &list, &items)?)),
        }
    }

    /// One page of a list after selectors. `max_bytes`: as in [`ListQuery`]; `counts`: whether to count the objects after
    /// it.
    pub(super) fn page(
        &self,
        info: &RequestInfo,
        options: &ListOptions,
        max_bytes: usize,
        counts: bool,
    ) -> Result<ListedPage, StatusError> {
        let mut from = options.continue_token.as_deref().map(ContinueToken::decode).transpose()?;
        let mut at = match (&from, options.version) {
            (Some(place), _) => Some(Revision(place.revision)),
            (None, ListVersion::Exact(revision)) => Some(Revision(revision)),
            (None, ListVersion::NotOlderThan(revision)) if revision > self.engine.revision().0 => {
                return Err(StatusError::too_large_resource_version(revision, self.engine.revision().0));
            }
            (None, _) => None,
        };
        let selects = !options.labels.is_empty() || !options.fields.is_empty();
        let (mut listed, mut bytes) = (ListedPage::default(), 0);
        loop {
            let chunk = if selects { (SELECTED_CHUNK, SELECTED_BYTES) } else { (options.limit, max_bytes) };
            let counts = counts && !selects && options.limit > 0;
            let page = self.read_page(info, chunk, at, from.as_ref(), counts)?;
            at = Some(page.revision);
            listed.revision = page.revision;
            let (rest, read) = (page.more, page.items);
            for stored in read {
                if selects && !is_selected(info.kind, options, &stored.json)? {
                    continue;
                }
                let has_all = options.limit > 0 && listed.items.len() == options.limit;
                if has_all || max_bytes > 0 && bytes >= max_bytes {
                    // Only with selectors: one object too many was read, so there are more.
                    listed.more = listed.last.clone();
                    return Ok(listed);
                }
                bytes += stored.json.len();
                listed.last = Some(stored.key);
                listed.items.push(stored.json);
            }
            match rest {
                Some(last) if selects => from = Some(continue_token(&last, page.revision)),
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
        info: &RequestInfo,
        (limit, max_bytes): (usize, usize),
        at: Option<Revision>,
        from: Option<&ContinueToken>,
        count_remaining: bool,
    ) -> Result<ListPage, StatusError> {
        let resource = ResourceId(info.kind.id);
        let start_after = from.map(|place| StoreKey::new(resource, &place.namespace, &place.name));
        let query = ListQuery {
            resource,
            namespace: info.namespace.as_deref(),
            start_after: start_after.as_ref(),
            limit,
            max_bytes,
            at,
            count_remaining,
        };
        self.engine.list(&query).map_err(read_error)
    }
}

/// Whether a list without a limit is sent while it is read, and is never in memory as a whole.
pub(super) fn is_streamed(request: &ResourceRequest) -> bool {
    let accept = &request.accept;
    accept.form == ResponseForm::Object && !accept.protobuf && !request.info.kind.is_converted()
}

fn continue_token(key: &StoreKey, revision: Revision) -> ContinueToken {
    ContinueToken { revision: revision.0, namespace: key.namespace.to_string(), name: key.name.to_string() }
}

/// Whether the selectors match a stored object.
pub(super) fn is_selected(
    kind: &ResourceKind,
    options: &ListOptions,
    json: &[u8],
) -> Result<bool, StatusError> {
    Ok(selects(options, &kind.converted(&parse(json)?)))
}

/// Whether the selectors match an object, or its selectable fields.
pub(super) fn selects(options: &ListOptions, object: &Value) -> bool {
    options.labels.matches(object) && options.fields.matches(object)
}

/// A page of a list.
#[derive(Default)]
pub(super) struct ListedPage {
    pub(super) items: Vec<Bytes>,
    pub(super) revision: Revision,
    more: Option<StoreKey>,
    remaining: Option<u64>,
    last: Option<StoreKey>,
}

impl ListedPage {
    /// The continue token of the next page.
    pub(super) fn next_token(&self) -> Option<String> {
        self.more.as_ref().map(|last| continue_token(last, self.revision).encode())
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

/// Converts stored objects to the requested kind.
fn convert_items(kind: &ResourceKind, items: Vec<Bytes>) -> Result<Vec<Bytes>, StatusError> {
    if !kind.is_converted() {
        return Ok(items);
    }
    items.iter().map(|item| Ok(Bytes::from(kind.converted(&parse(item)?).to_string()))).collect()
}

/// A list of stored bytes, without parsing them.
fn concatenated(kind: &ResourceKind, list: &Value, items: &[Bytes]) -> Bytes {
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

/// The start of a list, up to its first item.
pub(super) fn list_head(kind: &ResourceKind, list: &Value) -> String {
    format!(
        "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{list},\"items\":[",
        kind.kind,
        kind.api_version()
    )
}

/// A list as a Table, or of metadata only.
fn reduced(
    request: &ResourceRequest,
    form: ResponseForm,
    list: &Value,
    items: &[Bytes],
) -> Result<Value, StatusError> {
    let objects: Vec<Value> = items.iter().map(|item| parse(item)).collect::<Result<_, _>>()?;
    if form == ResponseForm::Table {
        let include = included(request);
        let now = request.now.as_second();
        return Ok(table::table(request.info.kind, &objects, list.clone(), include, now));
    }
    let partial: Vec<Value> = objects.iter().map(table::partial).collect();
    Ok(
        json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": list, "items": partial}),
    )
}

pub(super) fn included(request: &ResourceRequest) -> IncludeObject {
    match request.query.value("includeObject") {
        Some("None") => IncludeObject::None,
        Some("Object") => IncludeObject::Object,
        _ => IncludeObject::Metadata,
    }
}

/// One stored object in the requested form.
pub(super) fn converted(request: &ResourceRequest, object: &Value) -> Value {
    match request.accept.form {
        ResponseForm::Object => request.info.kind.converted(object).into_owned(),
        ResponseForm::Metadata => table::partial(object),
        ResponseForm::Table => {
            let list = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
            let now = request.now.as_second();
            table::table(request.info.kind, std::slice::from_ref(object), list, included(request), now)
        }
    }
}
