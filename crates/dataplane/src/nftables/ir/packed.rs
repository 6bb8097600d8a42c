//! Elements of one set, row by row in one buffer: keys and data of a set are all of the same length. A first load has
//! hundreds of thousands of them and looks at each once; a value of its own for each would cost more than all the rest.

use super::{Comment, KeyBuilder, SetSpec};

/// What most comments do not exceed.
const USUAL_COMMENT: usize = 48;

/// Elements of one shape, one behind the other.
#[derive(Debug, Clone, Default)]
pub struct PackedElements {
    key_len: usize,
    data_len: usize,
    room: usize,
    bytes: Vec<u8>,
    /// All comments one behind the other; empty if there are none.
    comments: String,
    comment_ends: Vec<usize>,
}

/// One element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedElement<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// What a map answers with; empty in a set.
    pub data: &'a [u8],
    /// What nft prints beside it.
    pub comment: Option<&'a str>,
}

impl PackedElements {
    /// No rows yet, for a set like this: without ranges, and with plain data if it is a map. There is room for so many.
    pub fn of(spec: &SetSpec, room: usize) -> PackedElements {
        let data_len = spec.data.as_ref().map_or(0, |data| data.width());
        let mut rows =
            PackedElements { key_len: spec.key_len(), data_len, room, ..PackedElements::default() };
        rows.reserve(room);
        rows
    }

    /// Makes room for so many more.
    pub fn reserve(&mut self, rows: usize) {
        self.bytes.reserve(rows * self.row_len());
    }

    /// Appends an element: its key, its data and the pieces of its comment. Either all have a comment or none has.
    pub fn push(&mut self, key: &KeyBuilder, data: &KeyBuilder, comment: &[&str]) {
        let (key, data) = (key.as_slice(), data.as_slice());
        assert!(key.len() == self.key_len && data.len() == self.data_len, "rows of a set have one shape");
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(data);
        if !comment.is_empty() {
            self.comment(comment);
        }
    }

    /// Appends an element without a comment, its data right behind its key.
    #[inline]
    pub fn push_joined(&mut self, key_and_data: &KeyBuilder) {
        let row = key_and_data.as_slice();
        assert!(row.len() == self.row_len(), "rows of a set have one shape");
        self.bytes.extend_from_slice(row);
    }

    fn comment(&mut self, pieces: &[&str]) {
        if self.comment_ends.is_empty() {
            self.comment_ends.reserve(self.room);
            self.comments.reserve(self.room * USUAL_COMMENT);
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

    fn row_len(&self) -> usize {
        self.key_len + self.data_len
    }

    /// The bytes of a key.
    pub fn key_len(&self) -> usize {
        self.key_len
    }

    /// The bytes of data; none in a set.
    pub fn data_len(&self) -> usize {
        self.data_len
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.bytes.len().checked_div(self.row_len()).unwrap_or(0)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether they have comments.
    pub fn has_comments(&self) -> bool {
        !self.comment_ends.is_empty()
    }

    /// Key and data of each in one, in the order in which they came.
    pub fn bare(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact(self.row_len().max(1))
    }

    /// One by one, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = PackedElement<'_>> {
        let mut comments = self.comment_ends.iter().scan(0, |start, end| {
            let comment = &self.comments[*start..*end];
            *start = *end;
            Some(comment)
        });
        self.bare().map(move |row| {
            let (key, data) = row.split_at(self.key_len);
            PackedElement { key, data, comment: comments.next() }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::ir::{DataType, FieldType};

    #[test]
    fn rows_come_back_as_they_went_in() {
        let spec =
            SetSpec::map(&[FieldType::InetService, FieldType::Mark], DataType::Fields(vec![FieldType::Mark]));
        let mut rows = PackedElements::of(&spec, 2);
        assert!(rows.is_empty());
        for (number, comment) in [(1, ["shop", "/web"]), (2, ["a \"quoted\"", " name"])] {
            rows.push(&KeyBuilder::new().port(80).mark(number), &KeyBuilder::new().mark(7), &comment);
        }
        let key = |number| KeyBuilder::new().port(80).mark(number).bytes();
        let found: Vec<PackedElement<'_>> = rows.iter().collect();
        let data = &7u32.to_ne_bytes();
        assert_eq!(found[0], PackedElement { key: &key(1), data, comment: Some("shop/web") });
        assert_eq!(found[1], PackedElement { key: &key(2), data, comment: Some("a 'quoted' name") });
        assert_eq!(rows.len(), 2);
    }
}
