//! A binary heap whose every swap is fixed, because ties decide which zone gives and which receives.
//!
//! It moves elements exactly as Go's container/heap does (simulator 4), over keys that may change while their
//! element waits: the order is then stale until an element passes by, which is part of the published results.

/// Puts all elements in order, from the last parent up.
pub fn init(queue: &mut [usize], less: impl Fn(usize, usize) -> bool) {
    for parent in (0..queue.len() / 2).rev() {
        down(queue, parent, &less);
    }
}

/// Takes the first element.
pub fn pop(queue: &mut Vec<usize>, less: impl Fn(usize, usize) -> bool) -> Option<usize> {
    let last = queue.len().checked_sub(1)?;
    queue.swap(0, last);
    down(&mut queue[..last], 0, &less);
    queue.pop()
}

/// Adds an element.
pub fn push(queue: &mut Vec<usize>, element: usize, less: impl Fn(usize, usize) -> bool) {
    queue.push(element);
    let mut child = queue.len() - 1;
    while child > 0 {
        let parent = (child - 1) / 2;
        if !less(queue[child], queue[parent]) {
            return;
        }
        queue.swap(parent, child);
        child = parent;
    }
}

fn down(queue: &mut [usize], mut parent: usize, less: &impl Fn(usize, usize) -> bool) {
    loop {
        let left = 2 * parent + 1;
        if left >= queue.len() {
            return;
        }
        let right = left + 1;
        let child = if right < queue.len() && less(queue[right], queue[left]) { right } else { left };
        if !less(queue[child], queue[parent]) {
            return;
        }
        queue.swap(parent, child);
        parent = child;
    }
}
