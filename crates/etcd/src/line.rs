//! One lock's line: this client's own claims in it, and what its mirror says that is new to them. Pure: no clock, no network.
//!
//! A waiter holds when the mirror knows its entry and [`admit`](leasehold_core::seam::admit) lets it in behind those with a
//! smaller `create_revision`. None can be added there: a later entry has a greater one. So whoever dies in the middle is struck
//! from the mirror like everybody else, and no request is needed however long the line is.
//!
//! What makes that right, beside what makes the mirror so (each is a case of the model test below):
//! * an entry of ours of which the mirror cannot know yet waits: its own put is still to come;
//! * all that happened at one revision is taken in before anybody's turn: a lease that ends deletes all its keys at once;
//! * a claim holds only if as many stood before it when it came as its own transaction counted. So an entry that the watch
//!   failed to tell of lets nobody in too early.

use std::sync::Arc;

use leasehold_core::seam::{Claim, ClaimId, Grant, Mode, Moment, Place, Validity, holding};
use leasehold_etcd_client::{LeasedKey, Mirror, Mirrored, Session};

/// One claim of ours, from just before its first request until its release is confirmed.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) id: ClaimId,
    pub(crate) key: Arc<LeasedKey>,
    /// The number of its key, for the next one when it is gone.
    pub(crate) slot: u32,
    /// The mode that its first claim asked for.
    pub(crate) mode: Mode,
    /// The key's create_revision, 0 while there is none that is known.
    pub(crate) created: i64,
    /// How many stood before it when it came, if its own transaction counted them.
    pub(crate) ahead: Option<i64>,
    pub(crate) granted: bool,
    /// It is being released: what becomes of its key is no news.
    pub(crate) leaving: bool,
    /// When it was last claimed or renewed.
    pub(crate) tended: Moment,
    /// It was left to end by itself, and has by then.
    pub(crate) rests: Option<Moment>,
    /// The mirror of its line, while it waits.
    pub(crate) mirror: Option<Arc<Mirrored<Mode>>>,
}

impl Own {
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.key.session
    }

    pub(crate) fn place(&self) -> Place {
        Place::new(self.key.path.clone())
    }

    pub(crate) fn validity(&self) -> Validity {
        Validity::since(self.session().proven().min(self.tended), self.session().ttl)
    }

    pub(crate) fn grant(&self) -> Grant {
        Grant::of_place(self.place(), self.created, self.validity())
    }

    /// A claim of which nothing was sent yet.
    pub(crate) fn new(claim: &Claim, key: Arc<LeasedKey>, slot: u32) -> Own {
        Own {
            id: claim.id,
            key,
            slot,
            mode: claim.mode,
            created: 0,
            ahead: None,
            granted: false,
            leaving: false,
            tended: Moment::now(),
            rests: None,
            mirror: None,
        }
    }

    /// Its key has this create_revision; 0 if there is none (any more).
    pub(crate) fn stands_at(&mut self, created: i64) {
        if self.created != created {
            (self.created, self.ahead, self.granted) = (created, None, false);
        }
    }
}

/// What came of a look at the mirror.
#[derive(Default, Debug)]
pub(crate) struct News {
    /// These waited, and hold now.
    pub(crate) granted: Vec<(ClaimId, Grant)>,
    /// As these were, before somebody deleted their keys.
    pub(crate) gone: Vec<Own>,
    /// The holders, or their labels, may be others.
    pub(crate) stirred: bool,
    /// The mirror is wrong.
    pub(crate) wrong: bool,
}

/// Takes stock of our claims in a line after all changes of a revision, or of ours.
pub(crate) fn news<'a>(ours: impl Iterator<Item = &'a mut Own>, line: &mut Mirror<Mode>) -> News {
    let mut news = News::default();
    if !line.is_read() {
        return news;
    }
    let modes: Vec<Mode> = line.entries().iter().map(|entry| entry.value).collect();
    let holding = holding(&modes);
    let last = line.entries()[..holding].last().map_or(0, |holder| holder.created);
    let known = |own: &&mut Own| own.created != 0 && own.created <= line.revision() && !own.leaving;
    for own in ours.filter(known) {
        match line.entry(own.created) {
            None => {
                news.gone.push(own.clone());
                own.stands_at(0);
            }
            Some(entry) if !own.granted && own.created <= last => {
                if own.ahead.zip(entry.ahead).is_none_or(|(counted, seen)| counted == seen) {
                    (own.granted, own.mirror) = (true, None);
                    news.granted.push((own.id, own.grant()));
                } else {
                    news.wrong = true;
                }
            }
            Some(_) => {}
        }
    }
    news.stirred = line.head_changed(holding);
    news
}

#[cfg(test)]
mod tests;
