//! A heap of at most three zones, with the same order of elements as the general `go_heap`.

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ZoneHeap {
    zones: [u8; 3],
    len: u8,
}

impl ZoneHeap {
    pub(super) fn add_unordered(&mut self, zone: usize) {
        self.zones[self.len as usize] = zone as u8;
        self.len += 1;
    }

    pub(super) fn first(&self) -> Option<usize> {
        (self.len > 0).then(|| self.zones[0] as usize)
    }

    /// With up to three elements only the root has children.
    #[inline(always)]
    pub(super) fn order(&mut self, before: impl Fn(usize, usize) -> bool) {
        let at = |i: usize| self.zones[i] as usize;
        if self.len < 2 {
            return;
        }
        let child = if self.len == 3 && before(at(2), at(1)) { 2 } else { 1 };
        if before(at(child), at(0)) {
            self.zones.swap(0, child);
        }
    }

    #[inline(always)]
    pub(super) fn pop(&mut self, before: impl Fn(usize, usize) -> bool) -> Option<usize> {
        let first = self.first()?;
        self.len -= 1;
        self.zones[0] = self.zones[self.len as usize];
        self.order(before);
        Some(first)
    }

    #[inline(always)]
    pub(super) fn push(&mut self, zone: usize, before: impl Fn(usize, usize) -> bool) {
        let at = self.len as usize;
        self.add_unordered(zone);
        // The parent of either child is the root.
        if at > 0 && before(zone, self.zones[0] as usize) {
            self.zones.swap(0, at);
        }
    }
}
