//! The numbers of this client's keys of one name. The smallest free number is used next. Few keys
//! are ever used this way, and etcd keeps a tombstone of each key until it is compacted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Default, Debug)]
pub(crate) struct Slots {
    free: BinaryHeap<Reverse<usize>>,
    /// The smallest number that was never used.
    next: usize,
}

impl Slots {
    pub(crate) fn take(&mut self) -> usize {
        self.free.pop().map_or_else(
            || {
                self.next += 1;
                self.next - 1
            },
            |Reverse(slot)| slot,
        )
    }

    pub(crate) fn give_back(&mut self, slot: usize) {
        self.free.push(Reverse(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_that_is_free_is_next() {
        let mut slots = Slots::default();
        assert_eq!(
            [slots.take(), slots.take(), slots.take(), slots.take()],
            [0, 1, 2, 3]
        );
        [3, 1, 2].into_iter().for_each(|slot| slots.give_back(slot));
        assert_eq!(
            [slots.take(), slots.take(), slots.take(), slots.take()],
            [1, 2, 3, 4]
        );
    }
}
