//! Encodes packed elements. All elements of a list have the same shape, so one is laid out once and the bytes of each are
//! copied into it.

use super::expr::data;
use super::object::{LIST_LIMIT, comment_attr, head};
use super::{Batch, MessageWriter, abi};
use crate::nftables::abi::{elem, msg, udata};
use crate::nftables::ir::{PackedElement, PackedElements, TableId};

/// Length of an attribute header. A value is preceded by its own and by that of its enclosing attribute, a key also by
/// that of the element.
const HEADER: usize = 4;
const KEY_AT: usize = 3 * HEADER;

/// Appends the messages that add elements to a set.
pub(super) fn encode(batch: &mut Batch, index: u32, table: &TableId, set: &str, elements: &PackedElements) {
    let mut layout = Layout::of(elements);
    if elements.has_comments() {
        in_lists(batch, index, table, set, elements.iter(), |out, element| {
            layout.write_with_comment(out, &element);
        });
    } else {
        in_lists(batch, index, table, set, elements.bare(), |out, bytes| layout.write(out, bytes));
    }
}

/// Splits the elements into as many messages as they need.
fn in_lists<E>(
    batch: &mut Batch,
    index: u32,
    table: &TableId,
    set: &str,
    elements: impl Iterator<Item = E>,
    mut write: impl FnMut(&mut MessageWriter, E),
) {
    let mut elements = elements.peekable();
    let header = head(table, msg::NEWSETELEM, abi::NLM_F_CREATE);
    while elements.peek().is_some() {
        batch.message(index, header, |out| {
            out.attr_str(elem::LIST_TABLE, &table.name);
            out.attr_str(elem::LIST_SET, set);
            out.nested(elem::LIST_ELEMENTS, |out| {
                let end = out.position() + LIST_LIMIT;
                while out.position() <= end
                    && let Some(element) = elements.next()
                {
                    write(out, element);
                }
            });
        });
    }
}

/// An encoded element without comment.
struct Layout {
    bytes: Vec<u8>,
    key_len: usize,
    data_at: usize,
}

impl Layout {
    fn of(elements: &PackedElements) -> Layout {
        let mut out = MessageWriter::new();
        let mut data_at = 0;
        out.nested(abi::LIST_ELEM, |out| {
            data(out, elem::KEY, &vec![0; elements.key_len()]);
            data_at = out.position() + 2 * HEADER;
            if elements.data_len() > 0 {
                data(out, elem::DATA, &vec![0; elements.data_len()]);
            }
        });
        Layout { bytes: out.into_bytes(), key_len: elements.key_len(), data_at }
    }

    fn write(&mut self, out: &mut MessageWriter, bytes: &[u8]) {
        let (key, data) = bytes.split_at(self.key_len);
        self.fill(key, data);
        out.attributes(&self.bytes);
    }

    fn write_with_comment(&mut self, out: &mut MessageWriter, element: &PackedElement<'_>) {
        self.fill(element.key, element.data);
        out.nested(abi::LIST_ELEM, |out| {
            out.attributes(&self.bytes[HEADER..]);
            comment_attr(out, elem::USERDATA, udata::ELEM_COMMENT, element.comment);
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
        Comment, Data, DataType, Element, FieldType, IntervalEncoding, KeyBuilder, NftChange, NftFamily,
        NftName, SetSpec,
    };

    /// The same elements packed and one by one, encoded; more than one list takes.
    fn both(
        spec: &SetSpec,
        row: impl Fn(u32) -> (KeyBuilder, KeyBuilder),
        comment: Option<&str>,
    ) -> [Vec<u8>; 2] {
        let table = TableId::new(NftFamily::Ip, "t");
        let set = NftName::from("s");
        let mut rows = PackedElements::of(spec, 0);
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
        let mut packed = Batch::open(1);
        packed.push_packed(&table, &set, &rows);
        packed.close();
        let change = NftChange::AddElements { table, set, ranges: IntervalEncoding::None, elements };
        [packed.bytes().to_vec(), Batch::of(&[change], 1).bytes().to_vec()]
    }

    #[test]
    fn packed_elements_encode_like_plain_ones() {
        use FieldType::{InetProto, InetService, Ipv4Addr, Mark};
        let map =
            SetSpec::map(&[InetProto, InetService, Mark], DataType::Fields(vec![Ipv4Addr, InetService]));
        let address = |n: u32| std::net::IpAddr::from(n.to_be_bytes());
        let entry = |n| {
            (KeyBuilder::new().protocol(6).port(80).mark(n), KeyBuilder::new().address(address(n)).port(8080))
        };
        let set = SetSpec::new(&[Ipv4Addr]);
        let member = |n| (KeyBuilder::new().address(address(n)), KeyBuilder::new());
        for comment in [None, Some("shop/web:http")] {
            let [rows, elements] = both(&map, entry, comment);
            assert!(rows.len() > LIST_LIMIT);
            assert!(rows == elements, "a map, comment {comment:?}");
            let [rows, elements] = both(&set, member, comment);
            assert!(rows == elements, "a set, comment {comment:?}");
        }
    }
}
