//! Which key stood behind one of this client's, the last time that held: clients that take turns stand in the same order again.
//!
//! It is a guess, and only saves requests: see `before`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use leasehold_core::support::locked;

/// So many are remembered.
const MOST: usize = 1000;

#[derive(Default)]
pub(crate) struct Successors(Mutex<HashMap<Arc<str>, Successor>>);

struct Successor {
    key: Arc<str>,
    /// The create_revision that it had when it was named; none has a greater one if it was not.
    created: i64,
}

impl Successors {
    /// The key that a release of our own names.
    pub(crate) fn get(&self, own: &str) -> Option<Arc<str>> {
        locked(&self.0).get(own).map(|successor| successor.key.clone())
    }

    /// It was named, and had this create_revision; `None`: it was not behind us.
    pub(crate) fn named(&self, own: &str, created: Option<i64>) {
        if let Some(successor) = locked(&self.0).get_mut(own) {
            successor.created = created.unwrap_or(i64::MAX);
        }
    }

    /// This entry was the oldest when we came again. If it is older than the one that was named, it stood before that one.
    pub(crate) fn came_first(&self, own: &Arc<str>, key: &str, created: i64) {
        let mut all = locked(&self.0);
        if all.get(own).is_some_and(|named| named.created <= created) {
            return;
        }
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(own.clone(), Successor { key: key.into(), created: i64::MAX });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_is_remembered_until_another_turns_out_to_stand_before_it() {
        let (all, name) = (Successors::default(), Arc::from("a/7-0"));
        assert!(all.get(&name).is_none());
        all.came_first(&name, "a/1-0", 5);
        all.named(&name, Some(9));
        // The one that was named holds, or had its turn.
        for created in [9, 12] {
            all.came_first(&name, "a/2-0", created);
            assert_eq!(all.get(&name).as_deref(), Some("a/1-0"));
        }
        all.came_first(&name, "a/3-0", 8);
        assert_eq!(all.get(&name).as_deref(), Some("a/3-0"));
        all.named(&name, Some(20));
        all.named(&name, None);
        all.came_first(&name, "a/4-0", 30);
        assert_eq!(all.get(&name).as_deref(), Some("a/4-0"), "it was not there");
        (0..MOST).for_each(|i| all.came_first(&format!("a/7-{i}").into(), "b/1-0", 1));
        assert!(locked(&all.0).len() <= MOST);
    }
}
