//! Packed elements by key, to be compared with what a kernel holds: equal ones are marked, and only the others become
//! values. At 100,000 endpoints a value for each took 30 MB at every start over own rules.

use std::collections::BTreeMap;

use super::{Bytes, Comment, Data, ElementValue, PackedElement, PackedElements};

/// The elements that one set should have, and which of them the kernel was found to hold.
#[derive(Debug, Clone)]
pub struct PackedIndex {
    elements: PackedElements,
    /// Indexes of elements, sorted by key; of equal keys the last alone.
    order: Vec<u32>,
    is_held: Vec<bool>,
}

impl PackedIndex {
    pub fn new(elements: PackedElements) -> PackedIndex {
        // A set has fewer elements than 2^32: its declared size has 32 bits.
        let mut order: Vec<u32> = (0..u32::try_from(elements.len()).unwrap_or(u32::MAX)).collect();
        let key = |index: &u32| elements.get(*index as usize).map(|element| element.key);
        order.sort_unstable_by(|a, b| key(a).cmp(&key(b)).then(b.cmp(a)));
        order.dedup_by(|other, first| key(other) == key(first));
        let is_held = vec![false; elements.len()];
        PackedIndex { elements, order, is_held }
    }

    /// Marks the element with this key as held if `is_same` says so. Returns whether it was.
    pub fn mark(&mut self, key: &[u8], is_same: impl FnOnce(&PackedElement<'_>) -> bool) -> bool {
        let key_of = |index: u32| self.elements.get(index as usize).map_or(&[][..], |element| element.key);
        let Ok(at) = self.order.binary_search_by(|index| key_of(*index).cmp(key)) else { return false };
        let index = self.order[at] as usize;
        let is_held = self.elements.get(index).is_some_and(|element| is_same(&element));
        self.is_held[index] |= is_held;
        is_held
    }

    /// The elements that were not marked.
    pub fn others(&self) -> BTreeMap<Bytes, ElementValue> {
        let others = self.order.iter().filter(|index| !self.is_held[**index as usize]);
        let elements = others.filter_map(|index| self.elements.get(*index as usize));
        elements.map(|element| (Bytes::from(element.key), value(&element))).collect()
    }
}

fn value(element: &PackedElement<'_>) -> ElementValue {
    ElementValue {
        data: (!element.data.is_empty()).then(|| Data::Value(Bytes::from(element.data))),
        comment: element.comment.map(Comment::new),
        ..ElementValue::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::ir::{DataType, FieldType, KeyBuilder, SetSpec};

    #[test]
    fn what_the_kernel_lacks_or_has_with_other_data_is_left() {
        let spec = SetSpec::map(&[FieldType::Mark], DataType::Fields(vec![FieldType::Mark]));
        let mut elements = PackedElements::of(&spec, 4);
        let mark = |number: u32| KeyBuilder::new().mark(number);
        for (key, data) in [(3, 30), (1, 10), (2, 20), (3, 31)] {
            elements.push(&mark(key), &mark(data), &["shop/web"]);
        }
        let mut index = PackedIndex::new(elements);
        let mut held = |key: u32, data: u32| {
            index.mark(&mark(key).bytes(), |element| {
                element.data == mark(data).as_slice() && element.comment == Some("shop/web")
            })
        };
        assert!(held(1, 10) && held(3, 31), "of equal keys the later element counts");
        assert!(!held(2, 21) && !held(7, 70));
        let others = index.others();
        assert_eq!(others.len(), 1);
        let value = &others[&mark(2).bytes()];
        assert_eq!(value.data, Some(Data::Value(mark(20).bytes())));
        assert_eq!(value.comment.as_ref().map(Comment::as_str), Some("shop/web"));
    }
}
