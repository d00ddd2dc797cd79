//! What the mirror of one name shows that is new to this client's claims. Pure: no clock, no network.
//!
//! A waiter holds when the mirror knows its key and [`admit`](leasehold_core::seam::admit) lets it in behind those with a
//! smaller `create_revision`. None can be added there: a later key has a greater one. So a waiter that dies in the middle is removed
//! from the mirror like any other, and no request is needed however long the queue is.
//!
//! What makes that right, beside what makes the mirror so (each is a case of the model test below):
//! * a claim of ours of whose key the mirror cannot know yet waits: its own put is still to come;
//! * all that happened at one revision is taken in before anything is granted: a lease that ends deletes all its keys at once;
//! * a claim holds only if as many stood before it when it came as its own transaction counted. So a key that the watch has
//!   missed lets none in too early.

use leasehold_core::seam::{ClaimId, Grant, Mode, holding};

use crate::claim::own::OwnClaim;
use crate::client::mirror::Mirror;

/// What is new.
#[derive(Default, Debug)]
pub(crate) struct Changes {
    /// These waited, and hold now.
    pub(crate) granted: Vec<(ClaimId, Grant)>,
    /// As these were, before their keys were deleted.
    pub(crate) gone: Vec<OwnClaim>,
    /// The holders, or their labels, may be others.
    pub(crate) holder_changed: bool,
    /// The mirror is wrong.
    pub(crate) wrong: bool,
}

/// Compares our claims of a name with its mirror, after all changes of a revision, or of ours.
pub(crate) fn changes<'a>(own: impl Iterator<Item = &'a mut OwnClaim>, mirror: &mut Mirror<Mode>) -> Changes {
    let mut changes = Changes::default();
    if !mirror.is_read() {
        return changes;
    }
    let modes: Vec<Mode> = mirror.keys.iter().map(|key| key.value).collect();
    let holding = holding(&modes);
    let last = mirror.keys[..holding].last().map_or(0, |holder| holder.created);
    let known = |own: &&mut OwnClaim| own.created != 0 && own.created <= mirror.revision && !own.releasing;
    for own in own.filter(known) {
        match mirror.key(own.created) {
            None => {
                changes.gone.push(own.clone());
                own.set_created(0);
            }
            Some(key) if !own.granted && own.created <= last => {
                if own.ahead.zip(key.ahead).is_none_or(|(counted, seen)| counted == seen) {
                    (own.granted, own.mirror) = (true, None);
                    changes.granted.push((own.id, own.grant()));
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
