//! What requests do at the leader, and answers to clients.

use super::Message::{Claimed, Compare, Evicted, KeepAlive};
use super::{Client, Etcd, Key, Message, Rule, Stage, State, Valid};

impl Etcd {
    pub(super) fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// Another client opens a session and claims, and is answered at once.
    pub(super) fn enter(&self, s: &mut State, client: u8) {
        self.open_session(s, client);
        self.claim(s, client);
        let claimed = s
            .on_its_way
            .iter()
            .find(|it| matches!(it, Claimed { client: whose, .. } if *whose == client));
        if let Some(claimed) = claimed.cloned() {
            s.on_its_way.remove(&claimed);
            self.tell(s, &claimed);
        }
    }

    pub(super) fn open_session(&self, s: &mut State, client: u8) {
        s.leases[usize::from(client)] = Some(s.now + self.ttl);
        let it = &mut s.clients[usize::from(client)];
        (it.stage, it.verified) = (Stage::Opened, s.now);
    }

    /// The claim is executed. Without its lease no key is written, and the session is lost.
    pub(super) fn claim(&self, s: &mut State, client: u8) {
        if s.leases[usize::from(client)].is_none() {
            return s.end(client);
        }
        s.revision += 1;
        let created = s.revision;
        s.keys.push(Key { client, created });
        s.on_its_way.insert(Claimed {
            client,
            created,
            first: s.keys.len() == 1,
        });
        let it = &mut s.clients[usize::from(client)];
        (it.stage, it.used) = (Stage::Asking, s.now);
        if !self.has(Rule::CountsFromTheRenewal) {
            it.verified = s.now;
        }
    }

    /// Nothing is before its key.
    pub(super) fn hold(&self, s: &mut State, client: u8) {
        let it = &mut s.clients[usize::from(client)];
        if let Stage::Waiting { created } = it.stage {
            (it.stage, it.has_held) = (
                Stage::Holding {
                    created,
                    since: it.verified.min(it.used),
                },
                true,
            );
        }
    }

    /// What a keep-alive, or its transaction, does at the leader.
    pub(super) fn serve(&self, s: &mut State, message: &Message) {
        match *message {
            KeepAlive { client, sent } => {
                if let Some(lease) = &mut s.leases[usize::from(client)] {
                    *lease = s.now + self.ttl;
                    self.renewed(s, client, sent, s.term);
                }
            }
            Compare { client, sent, term } => {
                let (keys, now) = (s.keys.clone(), s.term);
                self.compared(s, client, sent, (term, now), &keys);
            }
            Claimed { .. } | Evicted { .. } => {}
        }
    }

    /// A keep-alive was answered in this term: the transaction is sent.
    pub(super) fn renewed(&self, s: &mut State, client: u8, sent: u8, term: u8) {
        s.on_its_way.insert(Compare { client, sent, term });
    }

    /// The transaction was answered: in which term the keep-alive was, and this; and what the keys are.
    pub(super) fn compared(
        &self,
        s: &mut State,
        client: u8,
        sent: u8,
        (renewed, now): (u8, u8),
        keys: &[Key],
    ) {
        let it = &mut s.clients[usize::from(client)];
        // A key whose claim is not answered is not known.
        let is_there = it
            .created()
            .is_none_or(|created| keys.contains(&Key { client, created }));
        if !is_there && self.has(Rule::KeysProve) {
            it.stage = Stage::Ended;
        } else if renewed == now || !self.has(Rule::OneTerm) {
            it.verified = it.verified.max(sent);
            if let Stage::Holding { since, .. } = &mut it.stage {
                *since = it.verified.min(it.used).max(*since);
            }
        }
    }

    /// What a client hears.
    pub(super) fn tell(&self, s: &mut State, message: &Message) {
        match *message {
            Claimed {
                client,
                created,
                first,
            } => {
                let it = &mut s.clients[usize::from(client)];
                if it.stage != Stage::Asking {
                } else if it.evicted == Some(created) && self.has(Rule::EvictionComesFirst) {
                    it.stage = Stage::Ended;
                } else {
                    it.stage = Stage::Waiting { created };
                    if !self.has(Rule::CountsFromTheClaim) {
                        it.used = u8::MAX;
                    }
                    if first {
                        self.hold(s, client);
                    }
                }
            }
            Evicted { client, created } => {
                let it = &mut s.clients[usize::from(client)];
                it.evicted = Some(created);
                if it.created() == Some(created) {
                    it.stage = Stage::Ended;
                }
            }
            _ => {}
        }
    }

    /// Who says to be valid.
    pub(super) fn valid<'a>(&self, s: &'a State) -> impl Iterator<Item = Valid<'a>> {
        let ttl = self.ttl;
        (0..)
            .zip(&s.clients)
            .filter_map(move |(at, client)| match client.stage {
                Stage::Holding { created, since } if s.now < since + ttl => {
                    let deleted_at = client
                        .deleted
                        .filter(|(key, _)| *key == created)
                        .map(|(_, at)| at);
                    Some(Valid {
                        key: Key {
                            client: at,
                            created,
                        },
                        since,
                        deleted_at,
                        client,
                    })
                }
                _ => None,
            })
    }
}

impl Client {
    /// The key that it knows to be its own.
    fn created(&self) -> Option<u8> {
        match self.stage {
            Stage::Waiting { created } | Stage::Holding { created, .. } => Some(created),
            Stage::Idle | Stage::Opened | Stage::Asking | Stage::Ended => None,
        }
    }

    /// A renewal of what it knows is asked for.
    pub(super) fn renews(&mut self, now: u8) {
        if self.created().is_some() {
            self.used = self.used.max(now);
        }
    }
}

impl State {
    pub(super) fn end(&mut self, client: u8) {
        self.clients[usize::from(client)].stage = Stage::Ended;
    }

    pub(super) fn is_first(&self, client: u8) -> bool {
        self.keys.first().is_some_and(|key| key.client == client)
    }

    /// Somebody else deletes the first key.
    pub(super) fn delete_first(&mut self) -> Key {
        let key = self.keys.remove(0);
        self.clients[usize::from(key.client)].deleted = Some((key.created, self.now));
        self.deletions -= 1;
        key
    }
}
