//! Policies read from their text again and again as they change. Of a policy with many rules the text is kept, and a
//! rule whose text is the same in the next version is the same rule: it is neither parsed nor read again.
//!
//! ```text
//! text -> Part: lists of rules cut into the text of each -> known by the text before? -> that rule
//!                                                        \-> else parsed and read, as everything around the lists
//! ```

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{Known, Reading, read};
use crate::name::Interner;
use crate::parse::Object;
use crate::route::RouteRule;

/// Policies of fewer rules are read as a whole: they take no longer than it takes to keep their text.
const MANY: usize = 32;

/// A policy of many rules as it was last read, for its next version.
#[derive(Clone, Debug)]
pub struct Remembered {
    text: Box<str>,
    lists: Vec<List>,
}

/// A list of rules: where each stands in the text, and what it was read as.
#[derive(Clone, Debug)]
struct List {
    spans: Vec<Range<usize>>,
    rules: Box<[Arc<RouteRule>]>,
}

impl Remembered {
    /// The rule at a place of a list, if its text is this one.
    fn rule(&self, list: usize, at: usize, text: &str) -> Option<&Arc<RouteRule>> {
        let list = self.lists.get(list)?;
        let known = self.text.get(list.spans.get(at)?.clone())?;
        list.rules.get(at).filter(|_| known == text)
    }
}

/// Reads a policy of a kind from its text: what [`super::mesh_object`] would read, with what is to be remembered of it
/// for the next version. `before` is what was remembered of the version before.
pub fn mesh_text(
    api_version: &str,
    kind: &str,
    text: &str,
    before: Option<&Remembered>,
    interner: &mut Interner,
) -> Result<(Value, Reading, Option<Remembered>), serde_json::Error> {
    let of_gateway = kind == "MeshGatewayHTTPRoute";
    let mut cut = Cut { text, of_gateway, before, known: Vec::new(), spans: Vec::new() };
    let mut reader = serde_json::Deserializer::from_str(text);
    let mut value = Part { at: Place::Object, cut: &mut cut }.deserialize(&mut reader)?;
    reader.end()?;
    if let Some(fields) = value.as_object_mut() {
        fields.insert("apiVersion".to_owned(), api_version.into());
        fields.insert("kind".to_owned(), kind.into());
    }
    let Cut { known, spans, .. } = cut;
    let reading = read(&value, None, &known, interner);
    let remembered = remember(text, spans, &reading);
    Ok((value, reading, remembered))
}

/// Only what is right in every rule is remembered: there is nothing to say about its rules the next time.
fn remember(text: &str, spans: Vec<Vec<Range<usize>>>, reading: &Reading) -> Option<Remembered> {
    if spans.iter().map(Vec::len).sum::<usize>() < MANY || !reading.ignored.is_empty() {
        return None;
    }
    let rules: Vec<&Box<[Arc<RouteRule>]>> = match reading.object.as_ref()? {
        Object::HttpRoute(route) => route.to.iter().map(|to| &to.rules).collect(),
        Object::GatewayHttpRoute(route) => vec![&route.rules],
        _ => return None,
    };
    let lists = spans.into_iter().zip(rules).map(|(spans, rules)| List { spans, rules: rules.clone() });
    Some(Remembered { text: text.into(), lists: lists.collect() })
}

/// A policy while its text is cut up.
struct Cut<'t> {
    text: &'t str,
    /// Rules stand in the spec itself, and else in each of its destinations.
    of_gateway: bool,
    before: Option<&'t Remembered>,
    known: Vec<Known>,
    spans: Vec<Vec<Range<usize>>>,
}

impl<'t> Cut<'t> {
    /// Begins a list; of two with one name the last counts, as everywhere in JSON.
    fn begin(&mut self, list: usize) {
        self.known.resize_with(self.known.len().max(list + 1), Vec::new);
        self.spans.resize_with(self.spans.len().max(list + 1), Vec::new);
        self.known[list].clear();
        self.spans[list].clear();
    }

    /// Takes the next rule of a list: nothing for one that is known.
    fn rule(&mut self, list: usize, raw: &'t RawValue) -> Result<Value, serde_json::Error> {
        let at = self.known[list].len();
        let start = raw.get().as_ptr() as usize - self.text.as_ptr() as usize;
        let known = self.before.and_then(|before| before.rule(list, at, raw.get())).cloned();
        let value = if known.is_some() { Value::Null } else { serde_json::from_str(raw.get())? };
        self.known[list].push(known);
        self.spans[list].push(start..start + raw.get().len());
        Ok(value)
    }
}

/// Where in a policy we are.
#[derive(Clone, Copy)]
enum Place {
    Object,
    Spec,
    /// `spec.to`.
    Destinations,
    /// `spec.to[i]`.
    Destination(usize),
    /// A list of rules, by its number.
    Rules(usize),
}

impl Place {
    fn member(self, name: &str, of_gateway: bool) -> Option<Self> {
        match (self, name) {
            (Self::Object, "spec") => Some(Self::Spec),
            (Self::Spec, "to") if !of_gateway => Some(Self::Destinations),
            (Self::Spec, "rules") if of_gateway => Some(Self::Rules(0)),
            (Self::Destination(at), "rules") => Some(Self::Rules(at)),
            _ => None,
        }
    }
}

/// A part of a policy that holds rules somewhere.
struct Part<'c, 't> {
    at: Place,
    cut: &'c mut Cut<'t>,
}

impl<'t> DeserializeSeed<'t> for Part<'_, 't> {
    type Value = Value;

    fn deserialize<D: Deserializer<'t>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'t> Visitor<'t> for Part<'_, 't> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'t>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let value = match self.at.member(&name, self.cut.of_gateway) {
                Some(at) => members.next_value_seed(Part { at, cut: self.cut })?,
                None => members.next_value()?,
            };
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        match self.at {
            Place::Destinations => {
                while let Some(item) = items
                    .next_element_seed(Part { at: Place::Destination(list.len()), cut: &mut *self.cut })?
                {
                    list.push(item);
                }
            }
            Place::Rules(number) => {
                self.cut.begin(number);
                while let Some(raw) = items.next_element::<&RawValue>()? {
                    list.push(self.cut.rule(number, raw).map_err(A::Error::custom)?);
                }
            }
            Place::Object | Place::Spec | Place::Destination(_) => {
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
            }
        }
        Ok(Value::Array(list))
    }
}

#[cfg(test)]
mod tests;
