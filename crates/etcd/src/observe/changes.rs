//! What the mirrors of one name show that is new to this client's claims. Pure: no clock, no network.
//!
//! What one entry before a waiter says is in `claim/before`. By a mirror of the whole queue, it holds when that knows its key and
//! [`admit`](leasehold_core::seam::admit) lets it in behind those with a smaller `create_revision`. None can be added there: a later
//! key has a greater one. So a waiter that dies in the middle is removed from the mirror like any other, and no request is needed
//! however long the queue is.
//!
//! What makes that right, beside what makes the mirror so (each is a case of the model test below):
//! * a claim of ours of whose key the mirror cannot know yet waits: its own put is still to come;
//! * all that happened at one revision is taken in before anything is granted: a lease that ends deletes all its keys at once;
//! * a claim holds only if as many stood before it when it came as its own transaction counted. So a key that the watch has
//!   missed lets none in too early.

use leasehold_core::seam::{ClaimId, Grant, holding};

use crate::claim::before::News;
use crate::claim::own::{OwnClaim, Watched};
use crate::client::mirror::Mirror;
use crate::entry::Seen;

/// What is new.
#[derive(Default, Debug)]
pub(crate) struct Changes {
    /// These waited, and hold now.
    pub(crate) granted: Vec<(ClaimId, Grant)>,
    /// These are to be claimed again: nothing is known of them.
    pub(crate) again: Vec<ClaimId>,
    /// The same, unless an event that is expected comes soon.
    pub(crate) soon: Vec<ClaimId>,
    /// As these were, before their keys were deleted.
    pub(crate) gone: Vec<OwnClaim>,
    /// The holders, or their labels, may be others.
    pub(crate) holder_changed: bool,
    /// The mirror is wrong.
    pub(crate) wrong: bool,
}

impl Changes {
    fn grant(&mut self, own: &mut OwnClaim) {
        (own.granted, own.watched) = (true, None);
        self.granted.push((own.id, own.grant()));
    }

    fn lose(&mut self, own: &mut OwnClaim) {
        self.gone.push(own.clone());
        own.set_created(0);
    }

    /// Those that are named.
    pub(crate) fn of_turns<'a>(own: impl Iterator<Item = &'a mut OwnClaim>) -> Changes {
        let mut changes = Changes::default();
        own.filter(|own| !own.granted && !own.releasing && own.is_named()).for_each(|own| changes.grant(own));
        changes
    }

    /// What is known by the entries before our claims. `patient`: what is expected may still come.
    pub(crate) fn of_before<'a>(own: impl Iterator<Item = &'a mut OwnClaim>, patient: bool) -> Changes {
        let mut changes = Changes::default();
        for own in own.filter(|own| own.created != 0 && !own.granted && !own.releasing) {
            let Some(Watched::Before { before, .. }) = own.watched.as_deref() else { continue };
            match before.news(own.mode, own.created) {
                News::None => {}
                News::Granted => changes.grant(own),
                News::Gone => changes.lose(own),
                News::ClaimAgain if patient && own.turns.is_some() => changes.soon.push(own.id),
                News::ClaimAgain => {
                    own.watched = None;
                    changes.again.push(own.id);
                }
            }
        }
        changes
    }
}

/// Compares our claims of a name with its mirror, after all changes of a revision, or of ours.
/// `stood`: one of which it was learnt only now that its key was created.
pub(crate) fn changes<'a>(
    own: impl Iterator<Item = &'a mut OwnClaim>,
    mirror: &mut Mirror<Seen>,
    stood: Option<ClaimId>,
) -> Changes {
    let mut changes = Changes::default();
    if !mirror.is_read() {
        return changes;
    }
    let holding = holding(mirror.keys.iter().map(|key| &key.value.0));
    let last = mirror.keys[..holding].last().map_or(0, |holder| holder.created);
    // There may be thousands of them: only those are looked for of which there is news.
    let removed = mirror.take_removed();
    let is_removed = |created| removed.as_ref().is_none_or(|removed| removed.contains(&created));
    let known = |own: &&mut OwnClaim| own.created != 0 && own.created <= mirror.revision && !own.releasing;
    for own in own.filter(known) {
        let is_new = !own.granted && own.created <= last;
        if !is_new && !is_removed(own.created) && stood != Some(own.id) {
            continue;
        }
        match mirror.key(own.created) {
            None => changes.lose(own),
            Some(key) if is_new => {
                if own.ahead.map(i64::from).zip(key.ahead).is_none_or(|(counted, seen)| counted == seen) {
                    changes.grant(own);
                } else {
                    changes.wrong = true;
                }
            }
            Some(_) => {}
        }
    }
    changes.holder_changed = mirror.head_changed(holding);
    changes
}

#[cfg(test)]
mod tests;
