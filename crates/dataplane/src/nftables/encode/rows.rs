//! Rows of elements as messages. All rows of a list are alike, so that one element is laid out once and each row only
//! put into its places.

use super::expr::data;
use super::object::{LIST_LIMIT, comment_attr, head};
use super::{Batch, Writer, abi};
use crate::nftables::ir::{Row, Rows, TableId};
use crate::nftables::netlink::abi::{elem, msg, udata};

/// Before a value there is its own header and that of the attribute that it is in, and before a key that of the element.
const HEADER: usize = 4;
const KEY_AT: usize = 3 * HEADER;

/// Appends the messages that put rows into a set.
pub(super) fn encode(batch: &mut Batch, index: u32, table: &TableId, set: &str, rows: &Rows) {
    let mut element = Layout::of(rows);
    if rows.has_comments() {
        in_lists(batch, index, table, set, rows.iter(), |out, row| element.write_with_comment(out, &row));
    } else {
        in_lists(batch, index, table, set, rows.bare(), |out, row| element.write(out, row));
    }
}

/// As many messages as a list of elements must be cut into.
fn in_lists<R>(
    batch: &mut Batch,
    index: u32,
    table: &TableId,
    set: &str,
    rows: impl Iterator<Item = R>,
    mut write: impl FnMut(&mut Writer, R),
) {
    let mut rows = rows.peekable();
    let header = head(table, msg::NEWSETELEM, abi::NLM_F_CREATE);
    while rows.peek().is_some() {
        batch.message(index, header, |out| {
            out.attr_str(elem::LIST_TABLE, &table.name);
            out.attr_str(elem::LIST_SET, set);
            out.nested(elem::LIST_ELEMENTS, |out| {
                let end = out.position() + LIST_LIMIT;
                while out.position() <= end
                    && let Some(row) = rows.next()
                {
                    write(out, row);
                }
            });
        });
    }
}

/// An element but for its comment.
struct Layout {
    bytes: Vec<u8>,
    key_len: usize,
    data_at: usize,
}

impl Layout {
    fn of(rows: &Rows) -> Layout {
        let mut out = Writer::new();
        let mut data_at = 0;
        out.nested(abi::LIST_ELEM, |out| {
            data(out, elem::KEY, &vec![0; rows.key_len()]);
            data_at = out.position() + 2 * HEADER;
            if rows.data_len() > 0 {
                data(out, elem::DATA, &vec![0; rows.data_len()]);
            }
        });
        Layout { bytes: out.into_bytes(), key_len: rows.key_len(), data_at }
    }

    fn write(&mut self, out: &mut Writer, row: &[u8]) {
        let (key, data) = row.split_at(self.key_len);
        self.fill(key, data);
        out.attributes(&self.bytes);
    }

    fn write_with_comment(&mut self, out: &mut Writer, row: &Row<'_>) {
        self.fill(row.key, row.data);
        out.nested(abi::LIST_ELEM, |out| {
            out.attributes(&self.bytes[HEADER..]);
            comment_attr(out, elem::USERDATA, udata::ELEM_COMMENT, row.comment);
        });
    }

    fn fill(&mut self, key: &[u8], data: &[u8]) {
        self.bytes[KEY_AT..KEY_AT + key.len()].copy_from_slice(key);
        if !data.is_empty() {
            self.bytes[self.data_at..self.data_at + data.len()].copy_from_slice(data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::ir::{
        Change, Comment, Data, DataType, Element, Family, FieldType, Key, Name, Ranges, SetSpec,
    };

    /// Rows and plain elements of a set of this shape, as bytes; with more elements than one list takes.
    fn both(spec: &SetSpec, row: impl Fn(u32) -> (Key, Key), comment: Option<&str>) -> [Vec<u8>; 2] {
        let table = TableId::new(Family::Ip, "t");
        let set = Name::from("s");
        let mut rows = Rows::of(spec, 0);
        let mut elements = Vec::new();
        for number in 0..3_000 {
            let (key, answer) = row(number);
            rows.push(&key, &answer, comment.as_slice());
            let element = match spec.data {
                Some(_) => Element::entry(key.bytes(), Data::Value(answer.bytes())),
                None => Element::member(key.bytes()),
            };
            elements.push(match comment {
                Some(comment) => element.with_comment(&Comment::new(comment)),
                None => element,
            });
        }
        let mut by_rows = Batch::open(1, None);
        by_rows.push_rows(&table, &set, &rows);
        by_rows.close();
        let change = Change::AddElements { table, set, ranges: Ranges::None, elements };
        [by_rows.bytes().to_vec(), Batch::of(&[change], 1, None).bytes().to_vec()]
    }

    #[test]
    fn rows_are_the_same_messages_as_elements() {
        use FieldType::{InetProto, InetService, Ipv4Addr, Mark};
        let map =
            SetSpec::map(&[InetProto, InetService, Mark], DataType::Fields(vec![Ipv4Addr, InetService]));
        let address = |n: u32| std::net::IpAddr::from(n.to_be_bytes());
        let entry = |n| (Key::new().protocol(6).port(80).mark(n), Key::new().address(address(n)).port(8080));
        let set = SetSpec::new(&[Ipv4Addr]);
        let member = |n| (Key::new().address(address(n)), Key::new());
        for comment in [None, Some("shop/web:http")] {
            let [rows, elements] = both(&map, entry, comment);
            assert!(rows.len() > LIST_LIMIT);
            assert!(rows == elements, "a map, comment {comment:?}");
            let [rows, elements] = both(&set, member, comment);
            assert!(rows == elements, "a set, comment {comment:?}");
        }
    }
}
