//! A binary heap with the exact swaps of Go's container/heap (simulator 4): ties decide which zone gives and receives.
//!
//! Keys may change while an element waits. The heap is then stale until the element moves, as in the published results.

pub fn init(queue: &mut [usize], less: impl Fn(usize, usize) -> bool) {
    for parent in (0..queue.len() / 2).rev() {
        down(queue, parent, &less);
    }
}

pub fn pop(queue: &mut Vec<usize>, less: impl Fn(usize, usize) -> bool) -> Option<usize> {
    let last = queue.len().checked_sub(1)?;
    queue.swap(0, last);
    down(&mut queue[..last], 0, &less);
    queue.pop()
}

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
