//! What requests do to the server, and answers to clients.

use super::Message::{Claim, Granted, Pushed, Release, Renew};
use super::{Client, Entry, Message, Redis, Rule, Stage, State, TOKENS};

impl Redis {
    pub(super) fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// `admit_waiters`: what is dead goes, and a free lock is given to the first waiter.
    pub(super) fn admit(&self, s: &mut State) {
        let now = s.now;
        s.holder.take_if(|it| it.deadline <= now);
        s.queue.retain(|it| it.deadline > now);
        if s.holder.is_none() && !s.queue.is_empty() {
            let mut first = s.queue.remove(0);
            if !self.has(Rule::PlaceIsALease) {
                first.deadline = now + self.ttl;
            }
            let (client, attempt) = (first.client, first.attempt);
            let token = self.grant(s, first);
            s.on_its_way.insert(Pushed {
                client,
                token,
                attempt,
            });
        }
    }

    pub(super) fn grant(&self, s: &mut State, mut e: Entry) -> u8 {
        // While nothing is lost a counter is enough, and there are fewer states.
        let clock = if self.losses > 0 && self.has(Rule::TokensFollowTheClock) {
            s.now * TOKENS
        } else {
            0
        };
        e.token = clock.max(s.fence + 1);
        s.fence = e.token;
        s.fell |= e.token <= s.greatest;
        s.greatest = s.greatest.max(e.token);
        s.holder.insert(e).token
    }

    pub(super) fn mine(s: &mut State, client: u8) -> Option<&mut Entry> {
        s.holder
            .iter_mut()
            .chain(&mut s.queue)
            .find(|it| it.client == client)
    }

    /// What a request does to the server, and its answer.
    pub(super) fn serve(&self, s: &mut State, request: &Message) {
        let (now, ttl) = (s.now, self.ttl);
        let answer = match *request {
            Claim { client, sent } => {
                self.admit(s);
                let extends = self.has(Rule::RepeatExtends);
                match Redis::mine(s, client) {
                    Some(e) => {
                        if extends {
                            (e.deadline, e.heard, e.attempt) =
                                (now + ttl, now, e.attempt.max(sent));
                        }
                        (e.token > 0).then_some(Granted {
                            client,
                            token: e.token,
                            since: sent,
                        })
                    }
                    None => {
                        let e = Entry {
                            client,
                            token: 0,
                            deadline: now + ttl,
                            attempt: sent,
                            heard: now,
                        };
                        if s.holder.is_none() && s.queue.is_empty() {
                            Some(Granted {
                                client,
                                token: self.grant(s, e),
                                since: sent,
                            })
                        } else {
                            s.queue.push(e);
                            None
                        }
                    }
                }
            }
            Renew {
                client,
                sent,
                token,
            } => {
                self.admit(s);
                match Redis::mine(s, client).filter(|e| token == 0 || token == e.token) {
                    Some(e) => {
                        (e.deadline, e.heard) = (now + ttl, now);
                        // The attempt of a place is the one that its lease counts from.
                        e.attempt = if e.token > 0 {
                            e.attempt
                        } else {
                            e.attempt.max(sent)
                        };
                        (e.token > 0).then_some(Granted {
                            client,
                            token: e.token,
                            since: sent,
                        })
                    }
                    None => {
                        s.clients[usize::from(client)].lose(token);
                        None
                    }
                }
            }
            Release { client } => {
                s.queue.retain(|it| it.client != client);
                s.holder
                    .take_if(|it| it.client == client || !self.has(Rule::ReleaseNamesItsClaim));
                if self.has(Rule::ReleaseHandsOver) {
                    self.admit(s);
                }
                s.passed_over |= s.holder.is_none() && s.queue.iter().any(|it| it.deadline > now);
                None
            }
            Granted { .. } | Pushed { .. } => None,
        };
        s.on_its_way.extend(answer);
    }

    /// What an answer, or a push, tells a client.
    pub(super) fn tell(&self, s: &mut State, answer: &Message) {
        let (now, ttl) = (s.now, self.ttl);
        let (client, token, since) = match *answer {
            Granted {
                client,
                token,
                since,
            } if self.has(Rule::CountsFromTheSend) => (client, token, since),
            Pushed {
                client,
                token,
                attempt,
            } if self.has(Rule::PushNamesItsAttempt) => (client, token, attempt),
            Granted { client, token, .. } | Pushed { client, token, .. } => (client, token, now),
            Claim { .. } | Renew { .. } | Release { .. } => return,
        };
        let client = &mut s.clients[usize::from(client)];
        match &mut client.stage {
            Stage::Asking if now < since + ttl => {
                client.stage = Stage::Holding {
                    token,
                    until: since + ttl,
                };
                client.has_held = true;
            }
            Stage::Holding { token: mine, until } if *mine == token => {
                *until = (*until).max(since + ttl);
            }
            // Another token than the guard's: its own hold is gone.
            Stage::Holding { .. } => client.stage = Stage::Lost,
            _ => {}
        }
    }
}

impl Client {
    /// The store says that nothing is left of this hold.
    fn lose(&mut self, asked: u8) {
        if matches!(self.stage, Stage::Holding { token, .. } if token == asked) {
            self.stage = Stage::Lost;
        }
    }
}
