//! Ordered maps that are filled once and then changed little.

use std::collections::BTreeMap;

/// Packs a map: insertion in the order of keys, as from a list, leaves its nodes half empty.
pub fn compact<K: Ord, V>(map: &mut BTreeMap<K, V>) {
    *map = std::mem::take(map).into_iter().collect();
}
