//! The changes that the mirrors of one name show for this client's claims. Pure: no clock, no
//! network.
//!
//! The news from one entry before a waiter are in `claim/predecessor`. By a mirror of the whole queue, a
//! claim holds when the mirror has its key and [`admit`](leasehold_core::backend::admit) lets it in
//! behind the keys with a smaller `create_revision`. No key can be added before it, because a later
//! key has a greater create_revision. A waiter that dies in the middle is removed from the mirror
//! like any other, and no request is needed however long the queue is.
//!
//! Why that is right, beside the reasons in `client/mirror` (each is a case of the model test
//! below):
//! * A claim of this client waits while the mirror cannot know its key yet: the event of its own
//!   put is still to come.
//! * All events of one revision are taken in before a claim is granted: a lease that ends deletes
//!   all its keys at once.
//! * A claim holds only if the mirror had as many keys before it when it came as its own
//!   transaction counted. A key that the watch has missed therefore lets no claim in too early.

use leasehold_core::backend::{ClaimId, Grant, holding};

use crate::claim::own::{OwnClaim, Watched};
use crate::claim::predecessor::News;
use crate::client::mirror::Mirror;
use crate::entry::QueueEntry;

/// The changes to report.
#[derive(Default, Debug)]
pub(crate) struct Changes {
    /// Claims that waited, and hold now.
    pub(crate) granted: Vec<(ClaimId, Grant)>,
    /// Claims that are to be sent again, because their state is not known.
    pub(crate) again: Vec<ClaimId>,
    /// Claims that are to be sent again, unless an expected event comes soon.
    pub(crate) soon: Vec<ClaimId>,
    /// Claims whose keys were deleted, as they were before.
    pub(crate) gone: Vec<OwnClaim>,
    /// The holders, or their labels, may be others.
    pub(crate) holder_changed: bool,
    /// The mirror has missed an event.
    pub(crate) wrong: bool,
}

impl Changes {
    fn grant(&mut self, own: &mut OwnClaim) {
        own.watched = None;
        if own.once.is_some() {
            // The work may be done. Only a claim's own answer, which has looked, grants.
            self.again.push(own.id);
            return;
        }
        own.granted = true;
        self.granted.push((own.id, own.grant()));
    }

    fn lose(&mut self, own: &mut OwnClaim) {
        self.gone.push(own.clone());
        own.set_created(0);
    }

    /// The changes of the claims that a turn key names.
    pub(crate) fn of_turns<'a>(own: impl Iterator<Item = &'a mut OwnClaim>) -> Changes {
        let mut changes = Changes::default();
        own.filter(|own| !own.granted && !own.releasing && own.is_named())
            .for_each(|own| changes.grant(own));
        changes
    }

    /// The changes that follow from the watched entries before claims. `patient`: a turn key that
    /// is expected may still come.
    pub(crate) fn of_before<'a>(
        own: impl Iterator<Item = &'a mut OwnClaim>,
        patient: bool,
    ) -> Changes {
        let mut changes = Changes::default();
        for own in own.filter(|own| own.created != 0 && !own.granted && !own.releasing) {
            let Some(Watched::Predecessor { before, .. }) = own.watched.as_deref() else {
                continue;
            };
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

/// Compares this client's claims of a name with the name's mirror, after all changes of a revision
/// or of the claims. `stood`: a claim whose answer has just shown that its key was created.
pub(crate) fn changes<'a>(
    own: impl Iterator<Item = &'a mut OwnClaim>,
    mirror: &mut Mirror<QueueEntry>,
    stood: Option<ClaimId>,
) -> Changes {
    let mut changes = Changes::default();
    if !mirror.is_read() {
        return changes;
    }
    let holding = holding(mirror.keys.iter().map(|key| &key.value.0));
    let last = mirror.keys[..holding]
        .last()
        .map_or(0, |holder| holder.created);
    // There may be thousands of claims: only those with news are looked up.
    let removed = mirror.take_removed();
    let is_removed = |created| {
        removed
            .as_ref()
            .is_none_or(|removed| removed.contains(&created))
    };
    let known =
        |own: &&mut OwnClaim| own.created != 0 && own.created <= mirror.revision && !own.releasing;
    for own in own.filter(known) {
        let is_new = !own.granted && own.created <= last;
        if !is_new && !is_removed(own.created) && stood != Some(own.id) {
            continue;
        }
        match mirror.key(own.created) {
            None => changes.lose(own),
            Some(key) if is_new => {
                if own
                    .ahead
                    .map(i64::from)
                    .zip(key.ahead)
                    .is_none_or(|(counted, seen)| counted == seen)
                {
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
