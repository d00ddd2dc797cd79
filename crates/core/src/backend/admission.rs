//! The admission rule: it decides which claims of a queue hold, given the queue in order.
//!
//! Most stores keep a queue of claims with modes. If each store decided by itself which of them
//! hold, one would let a reader pass a writer. Therefore the rule is here once, as a pure function
//! that all of these stores share, and its tests need no server.

use crate::backend::claim::Mode;
use crate::backend::error::{Error, ErrorKind, Result};

/// The answer of [`admit`](crate::backend::admit).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Admission {
    /// The claim holds.
    In,
    /// The claim waits. These are the entries before it (indices into the queue, the nearest last)
    /// whose end may admit it; nothing else can. A store that watches exactly these entries misses
    /// nothing and wakes no waiter in vain.
    Watch(Vec<usize>),
}

/// Decides whether a claim of mode `mine` holds, behind the entries `before` it: holders and
/// waiters alike, in the order of the queue.
///
/// * `Exclusive`: no entry is before it. The nearest is watched.
/// * `Shared`: no entry of another mode is before it. The nearest such entry is watched.
/// * `Permits`: no entry of another mode is before it, and enough permits are left: of the
///   *smallest* `of` among all, so that no holder sees more permits in use than it was told there
///   are. The `of` nearest are watched, because any of them may give back the missing permit.
///
/// The rule is monotone: an entry that leaves never takes the lock from one that holds it. All
/// stores with a queue share it.
///
/// # Examples
///
/// ```
/// use leasehold_core::backend::{Admission, Mode, admit};
///
/// let queue = [Mode::Shared, Mode::Exclusive];
/// assert_eq!(admit(&[], Mode::Shared), Admission::In);
/// assert_eq!(admit(&queue, Mode::Shared), Admission::Watch(vec![1])); // behind the writer that waits
/// ```
pub fn admit(before: &[Mode], mine: Mode) -> Admission {
    let other = |m: &Mode| match mine {
        Mode::Exclusive => true,
        Mode::Shared => !matches!(m, Mode::Shared),
        Mode::Permits { .. } => !matches!(m, Mode::Permits { .. }),
    };
    if let Some(nearest) = before.iter().rposition(other) {
        return Admission::Watch(vec![nearest]);
    }
    let Mode::Permits { n, of } = mine else {
        return Admission::In;
    };
    let permits = |m: &Mode| match *m {
        Mode::Permits { n, of } => (u64::from(n), of),
        _ => (0, u32::MAX),
    };
    let room = before.iter().map(|m| permits(m).1).fold(of, u32::min);
    let taken: u64 = before.iter().map(|m| permits(m).0).sum();
    if taken + u64::from(n) <= u64::from(room) {
        return Admission::In;
    }
    let first = before.len().saturating_sub(of as usize);
    Admission::Watch((first..before.len()).collect())
}

/// Returns the number of entries of a queue that hold, given their modes in order. They are always
/// its first ones, because an entry that is not admitted keeps out all behind it. It applies the
/// rule of [`admit`](crate::backend::admit) to each entry, in one pass.
///
/// # Examples
///
/// ```
/// use leasehold_core::backend::{Mode, holding};
///
/// assert_eq!(holding(&[Mode::Shared, Mode::Shared, Mode::Exclusive, Mode::Shared]), 2);
/// ```
pub fn holding<'a>(queue: impl IntoIterator<Item = &'a Mode>) -> usize {
    let mut queue = queue.into_iter().peekable();
    let mut taken = 0;
    let mut room = u32::MAX;
    let fits = |mode: &&Mode| {
        let Mode::Permits { n, of } = **mode else {
            return false;
        };
        (taken, room) = (taken + u64::from(n), room.min(of));
        taken <= u64::from(room)
    };
    match queue.peek() {
        None => 0,
        Some(Mode::Exclusive) => 1,
        Some(Mode::Shared) => queue.take_while(|mode| **mode == Mode::Shared).count(),
        Some(Mode::Permits { .. }) => queue.take_while(fits).count(),
    }
}

/// Refuses a claim whose semaphore has another size than the one in the queue: the first `Permits`
/// before it decides.
///
/// It is for newcomers only; an entry that is in the queue already keeps its place. If the rule of
/// [`admit`](crate::backend::admit) refused such a claim later, one mistaken client could throw out
/// those behind it.
///
/// # Errors
///
/// [`Invalid`](crate::ErrorKind::Invalid), with both sizes.
pub fn same_permits<'a>(before: impl IntoIterator<Item = &'a Mode>, mine: Mode) -> Result<()> {
    let size = |mode: &Mode| match *mode {
        Mode::Permits { of, .. } => Some(of),
        Mode::Exclusive | Mode::Shared => None,
    };
    let Some(mine) = size(&mine) else {
        return Ok(());
    };
    match before.into_iter().find_map(size) {
        Some(theirs) if theirs != mine => Err(Error::permits_differ(theirs, mine)),
        _ => Ok(()),
    }
}

impl Error {
    /// This semaphore has `theirs` permits for the claims in its queue, and `mine` for this claim.
    pub fn permits_differ(theirs: u32, mine: u32) -> Error {
        let text = format!(
            "those in the queue say that there are {theirs} permits, this claim says {mine}"
        );
        Error::new(ErrorKind::Invalid, text)
    }
}

#[cfg(test)]
mod tests {
    use super::Mode::{Exclusive, Shared};
    use super::*;

    fn permits(n: u32, of: u32) -> Mode {
        Mode::Permits { n, of }
    }

    #[test]
    fn exclusive_needs_an_empty_queue_and_watches_the_nearest() {
        assert_eq!(admit(&[], Exclusive), Admission::In);
        assert_eq!(
            admit(&[Exclusive, Shared], Exclusive),
            Admission::Watch(vec![1])
        );
    }

    #[test]
    fn shared_passes_shared_only() {
        assert_eq!(admit(&[Shared, Shared], Shared), Admission::In);
        assert_eq!(
            admit(&[Shared, Exclusive, Shared], Shared),
            Admission::Watch(vec![1])
        );
        assert_eq!(admit(&[permits(1, 2)], Shared), Admission::Watch(vec![0]));
    }

    #[test]
    fn permits_take_the_smallest_of() {
        assert_eq!(admit(&[permits(1, 3)], permits(1, 3)), Admission::In);
        assert_eq!(
            admit(&[permits(1, 2), permits(1, 2)], permits(1, 3)),
            Admission::Watch(vec![0, 1])
        );
        assert_eq!(
            admit(&[permits(1, 2); 4], permits(1, 2)),
            Admission::Watch(vec![2, 3])
        );
        assert_eq!(admit(&[Shared], permits(1, 2)), Admission::Watch(vec![0]));
    }

    #[test]
    fn the_first_in_the_queue_says_how_many_permits_there_are() {
        let queue = [Shared, permits(1, 3), permits(1, 2)];
        assert!(same_permits(&queue, permits(2, 3)).is_ok());
        assert_eq!(
            same_permits(&queue, permits(1, 2)).map_err(|e| e.kind()),
            Err(ErrorKind::Invalid)
        );
        assert!(
            same_permits(&queue, Exclusive).is_ok() && same_permits(&[], permits(1, 2)).is_ok()
        );
    }

    /// For every short queue: a claim that holds still holds after another entry has left, a waiter
    /// is admitted only by the end of an entry in its watched set, an exclusive holder is alone,
    /// and the holders are the first entries.
    #[test]
    fn monotone_and_watched_enough_for_every_short_queue() {
        let modes = [
            Exclusive,
            Shared,
            permits(1, 1),
            permits(1, 2),
            permits(2, 2),
            permits(1, 3),
        ];
        let mut queues: Vec<Vec<Mode>> = vec![vec![]];
        for len in 0..5 {
            let longer: Vec<_> = queues.iter().filter(|l| l.len() == len).cloned().collect();
            for queue in longer {
                queues.extend(modes.iter().map(|m| [queue.clone(), vec![*m]].concat()));
            }
        }
        let inside = |queue: &[Mode], i: usize| admit(&queue[..i], queue[i]) == Admission::In;
        for queue in &queues {
            for mine in 0..queue.len() {
                let now = admit(&queue[..mine], queue[mine]);
                for leaver in (0..queue.len()).filter(|l| *l != mine) {
                    let mut after = queue.clone();
                    after.remove(leaver);
                    let at = if leaver < mine { mine - 1 } else { mine };
                    let then = inside(&after, at);
                    match &now {
                        Admission::In => {
                            assert!(then, "{queue:?}: {mine} lost its place when {leaver} left");
                        }
                        Admission::Watch(set) => {
                            assert!(
                                !then || set.contains(&leaver),
                                "{queue:?}: {mine} missed that {leaver} left"
                            );
                        }
                    }
                }
            }
            let holders: Vec<usize> = (0..queue.len()).filter(|i| inside(queue, *i)).collect();
            assert_eq!(
                holders,
                (0..holding(queue)).collect::<Vec<_>>(),
                "{queue:?}"
            );
            if holders.iter().any(|i| queue[*i] == Exclusive) {
                assert_eq!(holders.len(), 1, "{queue:?}");
            }
        }
    }
}
