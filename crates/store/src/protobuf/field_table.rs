//! The field numbers of all messages, from `fields.txt`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

const TEXT: &str = include_str!("fields.txt");

/// A field of a message.
#[derive(Debug)]
pub(super) struct Field {
    /// Its name in JSON.
    pub(super) name: String,
    pub(super) shape: Shape,
    pub(super) of: Type,
    /// Whether zero is kept.
    pub(super) kept: bool,
}

impl Field {
    /// Whether its fields belong to the enclosing message.
    pub(super) fn is_inline(&self) -> bool {
        self.name == "-"
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    One,
    List,
    Map,
}

#[derive(Debug)]
pub(super) enum Type {
    Plain(Plain),
    /// A message of the table.
    Message(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plain {
    Text,
    Bool,
    Integer,
    Double,
    Bytes,
    Quantity,
    IntOrString,
    Time,
    MicroTime,
    Raw,
}

/// The fields of a message by their numbers.
pub(super) type Message = BTreeMap<u64, Field>;

/// A message by its name, as `core.v1.Service`.
pub(super) fn message(name: &str) -> Option<&'static Message> {
    messages().get(name)
}

pub(super) fn messages() -> &'static BTreeMap<&'static str, Message> {
    static MESSAGES: OnceLock<BTreeMap<&'static str, Message>> = OnceLock::new();
    MESSAGES.get_or_init(|| {
        let mut messages: BTreeMap<&str, Message> = BTreeMap::new();
        let mut current = "";
        for line in TEXT.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                current = name;
                messages.insert(name, Message::new());
            } else if let (Some((number, field)), Some(message)) = (row(line), messages.get_mut(current)) {
                message.insert(number, field);
            }
        }
        messages
    })
}

/// `NUMBER NAME TYPE [kept]`.
fn row(line: &str) -> Option<(u64, Field)> {
    let mut words = line.split(' ');
    let number = words.next()?.parse().ok()?;
    let name = words.next()?.to_owned();
    let written = words.next()?;
    let (shape, of) = match (written.strip_prefix("[]"), written.strip_prefix("{}")) {
        (Some(of), _) => (Shape::List, of),
        (_, Some(of)) => (Shape::Map, of),
        _ => (Shape::One, written),
    };
    let kept = words.next() == Some("kept");
    Some((number, Field { name, shape, of: type_of(of), kept }))
}

fn type_of(word: &str) -> Type {
    Type::Plain(match word {
        "string" => Plain::Text,
        "bool" => Plain::Bool,
        "int" => Plain::Integer,
        "double" => Plain::Double,
        "bytes" => Plain::Bytes,
        "quantity" => Plain::Quantity,
        "intorstring" => Plain::IntOrString,
        "time" => Plain::Time,
        "microtime" => Plain::MicroTime,
        "raw" => Plain::Raw,
        message => return Type::Message(message.to_owned()),
    })
}
