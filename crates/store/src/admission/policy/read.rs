//! Policies and bindings are held against every write, always by the writer's thread, and hardly ever change: each
//! version of one is parsed once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::Value;

use crate::engine::{Bytes, Key, Stored};
use crate::objects::parse;
use crate::status::Failure;

/// How many are kept.
const KEPT: usize = 256;

thread_local! {
    static READ: RefCell<BTreeMap<Key, (Bytes, Rc<Value>)>> = RefCell::default();
}

/// The object, parsed unless it was before. The bytes are compared and not the revision: one whose write failed may come
/// again with another content. They carry the resourceVersion, and comparing is far cheaper than parsing.
pub(super) fn once(stored: &Stored) -> Result<Rc<Value>, Failure> {
    let known = READ.with_borrow(|read| {
        let (json, value) = read.get(&stored.key)?;
        (*json == stored.json).then(|| value.clone())
    });
    if let Some(known) = known {
        return Ok(known);
    }
    let value = Rc::new(parse(stored)?);
    READ.with_borrow_mut(|read| {
        if read.len() >= KEPT {
            read.clear();
        }
        read.insert(stored.key.clone(), (stored.json.clone(), value.clone()));
    });
    Ok(value)
}
