//! Elements of one set in one buffer: keys and data of a set all have the same length. An initial load has hundreds of
//! thousands of elements and reads each once; a value for each would cost more than all the rest.

use super::{Comment, KeyBuilder, SetSpec};

/// Most comments are shorter.
const USUAL_COMMENT: usize = 48;

/// Elements of one set.
#[derive(Debug, Clone, Default)]
pub struct PackedElements {
    key_len: usize,
    data_len: usize,
    capacity: usize,
    bytes: Vec<u8>,
    /// All comments, joined; empty if there are none.
    comments: String,
    comment_ends: Vec<usize>,
}

/// One element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedElement<'a> {
    pub key: &'a [u8],
    /// Empty in a set.
    pub data: &'a [u8],
    pub comment: Option<&'a str>,
}

impl PackedElements {
    /// Empty, for a set without intervals and with plain data if it is a map.
    pub fn of(spec: &SetSpec, capacity: usize) -> PackedElements {
        let data_len = spec.data.as_ref().map_or(0, |data| data.width());
        let mut elements =
            PackedElements { key_len: spec.key_len(), data_len, capacity, ..PackedElements::default() };
        elements.reserve(capacity);
        elements
    }

    pub fn reserve(&mut self, elements: usize) {
        self.bytes.reserve(elements * self.element_len());
    }

    /// Appends an element: its comment in parts. Either all elements have a comment or none has.
    pub fn push(&mut self, key: &KeyBuilder, data: &KeyBuilder, comment: &[&str]) {
        let (key, data) = (key.as_slice(), data.as_slice());
        assert!(
            key.len() == self.key_len && data.len() == self.data_len,
            "elements of a set have one length"
        );
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(data);
        if !comment.is_empty() {
            self.comment(comment);
        }
    }

    /// Appends an element without a comment, key and data joined.
    #[inline]
    pub fn push_joined(&mut self, key_and_data: &KeyBuilder) {
        let element = key_and_data.as_slice();
        assert!(element.len() == self.element_len(), "elements of a set have one length");
        self.bytes.extend_from_slice(element);
    }

    fn comment(&mut self, pieces: &[&str]) {
        if self.comment_ends.is_empty() {
            self.comment_ends.reserve(self.capacity);
            self.comments.reserve(self.capacity * USUAL_COMMENT);
        }
        let start = self.comments.len();
        pieces.iter().for_each(|piece| self.comments.push_str(piece));
        if !Comment::is_clean(&self.comments[start..]) {
            let clean = Comment::new(&self.comments[start..]);
            self.comments.truncate(start);
            self.comments.push_str(clean.as_str());
        }
        self.comment_ends.push(self.comments.len());
    }

    fn element_len(&self) -> usize {
        self.key_len + self.data_len
    }

    pub fn key_len(&self) -> usize {
        self.key_len
    }

    /// 0 in a set.
    pub fn data_len(&self) -> usize {
        self.data_len
    }

    pub fn len(&self) -> usize {
        self.bytes.len().checked_div(self.element_len()).unwrap_or(0)
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn has_comments(&self) -> bool {
        !self.comment_ends.is_empty()
    }

    /// Key and data of each, joined.
    pub fn bare(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact(self.element_len().max(1))
    }

    pub fn get(&self, index: usize) -> Option<PackedElement<'_>> {
        let start = index * self.element_len();
        let (key, data) = self.bytes.get(start..start + self.element_len())?.split_at(self.key_len);
        let comment_start = if index == 0 { Some(&0) } else { self.comment_ends.get(index - 1) };
        let comment = comment_start.zip(self.comment_ends.get(index));
        Some(PackedElement { key, data, comment: comment.map(|(start, end)| &self.comments[*start..*end]) })
    }

    pub fn iter(&self) -> impl Iterator<Item = PackedElement<'_>> {
        let mut comments = self.comment_ends.iter().scan(0, |start, end| {
            let comment = &self.comments[*start..*end];
            *start = *end;
            Some(comment)
        });
        self.bare().map(move |element| {
            let (key, data) = element.split_at(self.key_len);
            PackedElement { key, data, comment: comments.next() }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::ir::{DataType, FieldType};

    #[test]
    fn packed_elements_are_returned_unchanged() {
        let spec =
            SetSpec::map(&[FieldType::InetService, FieldType::Mark], DataType::Fields(vec![FieldType::Mark]));
        let mut elements = PackedElements::of(&spec, 2);
        assert!(elements.is_empty());
        for (number, comment) in [(1, ["shop", "/web"]), (2, ["a \"quoted\"", " name"])] {
            elements.push(&KeyBuilder::new().port(80).mark(number), &KeyBuilder::new().mark(7), &comment);
        }
        let key = |number| KeyBuilder::new().port(80).mark(number).bytes();
        let found: Vec<PackedElement<'_>> = elements.iter().collect();
        let data = &7u32.to_ne_bytes();
        assert_eq!(found[0], PackedElement { key: &key(1), data, comment: Some("shop/web") });
        assert_eq!(found[1], PackedElement { key: &key(2), data, comment: Some("a 'quoted' name") });
        assert_eq!(elements.len(), 2);
        assert_eq!((0..3).filter_map(|at| elements.get(at)).collect::<Vec<_>>(), found);
    }
}
