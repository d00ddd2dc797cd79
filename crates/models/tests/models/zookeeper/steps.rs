//! What requests do to servers and sessions, and answers to clients.

use std::time::Duration;

use super::{
    Action, Client, LEADER, Link, Liveness, Outcome, Rule, Stage, State, Zookeeper, at, long,
};

impl Zookeeper {
    pub(super) fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// It opens a session, and makes its node; where that is the first, it holds.
    pub(super) fn enter(&self, s: &mut State, client: usize) {
        let (now, server) = (s.now, if client == 0 { 0 } else { LEADER });
        let limit = self.limits[server];
        s.sessions[client] = Some(now + limit);
        s.queue.push(client);
        let is_first = s.queue.len() == 1;
        let it = &mut s.clients[client];
        it.liveness = Liveness::new(at(now), long(limit));
        (it.stage, it.server, it.verified) = (Stage::Waiting, Some(server), now);
        self.write(s, client);
        if is_first {
            s.clients[client].take();
        }
    }

    /// A write was answered.
    pub(super) fn write(&self, s: &mut State, client: usize) {
        let now = s.now;
        let Some(server) = s.clients[client].server else {
            return;
        };
        s.servers[server].touched[client] = true;
        let it = &mut s.clients[client];
        it.liveness.answered(at(now), at(now));
        if !self.has(Rule::TouchIsReported) {
            it.liveness.reconnected(at(now));
        }
        it.wrote_since |= it.deleted_at.is_some();
        if self.deletions == 0 {
            // Its nodes are listed, and it is there.
            it.verified = now;
        }
        it.extended();
    }

    /// A read was answered. `None`: it is connected to no server.
    pub(super) fn read(&self, s: &mut State, client: usize) -> Option<()> {
        let (now, server) = (s.now, s.clients[client].server?);
        s.servers[server].touched[client] = s.servers[server].link == Link::Joined;
        let it = &mut s.clients[client];
        if self.has(Rule::ReadsVerifyNothing) {
            it.liveness.touched(at(now), at(now));
        } else {
            it.liveness.answered(at(now), at(now));
        }
        it.extended();
        Some(())
    }

    /// It learns whether its node is there, or was before its latest write.
    pub(super) fn list_nodes(&self, s: &mut State, client: usize, old: bool) {
        let there = old || s.queue.contains(&client);
        let it = &mut s.clients[client];
        if !there && self.has(Rule::NodesProve) {
            // Somebody else has deleted it: only the token protects.
            it.stage = Stage::Lost { told: 0 };
        } else {
            let since = it.liveness.last_answered.as_nanos() / 1_000_000_000;
            it.verified = it.verified.max(u8::try_from(since).unwrap_or(u8::MAX));
            it.extended();
        }
    }

    /// The leader hears of a session, and takes over this server's limit. Whether the session lives.
    pub(super) fn touch(&self, s: &mut State, client: usize, server: usize, heard: u8) -> bool {
        let lease = &mut s.sessions[client];
        *lease = lease.map(|_| heard + self.limits[server]);
        lease.is_some()
    }

    /// What a server allows is known before the session is taken there, if it is.
    pub(super) fn ask_for_limit(&self, it: &mut Client, server: usize, now: u8) {
        let limit = long(self.limits[server]);
        let minds = self.has(Rule::LimitIsTakenOver) && self.has(Rule::PromiseIsKept);
        if minds
            && matches!(it.stage, Stage::Holding { .. })
            && it.liveness.promises_more(limit, at(now))
        {
            return;
        }
        it.asked = Some(server);
        if self.has(Rule::LimitIsTakenOver) {
            it.negotiated(limit, now);
        }
    }

    pub(super) fn connect(&self, s: &mut State, client: usize, server: usize, outcome: Outcome) {
        let now = s.now;
        s.clients[client].asked = None;
        if outcome == Outcome::Late {
            s.late.push((client, server));
            s.late.sort_unstable();
            return;
        }
        let lives = self.touch(s, client, server, now);
        if outcome == Outcome::AnswerLost {
            return;
        }
        let it = &mut s.clients[client];
        if !lives {
            it.lose();
            return;
        }
        if self.has(Rule::LimitIsTakenOver) {
            it.negotiated(long(self.limits[server]), now);
        }
        it.liveness.reconnected(at(now));
        (it.server, it.wrote_since) = (Some(server), false);
        self.write(s, client);
    }

    pub(super) fn tick(&self, s: &mut State) {
        for server in 0..s.servers.len() {
            for client in 0..s.clients.len() {
                // The server reports at any moment of the instant, perhaps at once: so it counts from that.
                if std::mem::take(&mut s.servers[server].touched[client]) {
                    self.touch(s, client, server, s.now);
                }
            }
        }
        s.now += 1;
    }

    pub(super) fn of_client(&self, s: &State, client: usize, actions: &mut Vec<Action>) {
        let it = &s.clients[client];
        if s.sessions[client].is_some_and(|end| end <= s.now) {
            actions.push(Action::SessionEnds { client });
        }
        if matches!(it.stage, Stage::Lost { .. }) {
            return;
        }
        if it.stage == Stage::Idle {
            // They are alike, and come in the order of their numbers.
            if s.clients[client - 1].stage != Stage::Idle {
                actions.push(Action::Enter { client });
            }
            return;
        }
        let Some(server) = it.server else {
            for server in (0..LEADER).filter(|server| s.servers[*server].link == Link::Joined) {
                if it.asked == Some(server)
                    || (s.connects > 0 && !self.has(Rule::LimitIsAskedFirst))
                {
                    let late = (s.late.len() < self.late).then_some(Outcome::Late);
                    let outcomes = [Outcome::Answered, Outcome::AnswerLost]
                        .into_iter()
                        .chain(late);
                    actions.extend(outcomes.map(|outcome| Action::Connect {
                        client,
                        server,
                        outcome,
                    }));
                } else if it.asked.is_none() && s.connects > 0 {
                    actions.push(Action::AskForLimit { client, server });
                }
            }
            return;
        };
        let link = s.servers[server].link;
        if link == Link::CutOff {
            actions.push(Action::LeavesServer { client });
        }
        if it.stage == Stage::Waiting {
            actions.extend((s.queue.first() == Some(&client)).then_some(Action::Take { client }));
            return;
        }
        if s.requests == 0 || client > 0 {
            return;
        }
        actions.push(Action::Read { client });
        if link == Link::Joined {
            actions.push(Action::Write { client });
        }
        if self.deletions > 0 && matches!(it.stage, Stage::Holding { .. }) {
            let old = it.deleted_at.is_some() && !it.wrote_since;
            actions.extend(
                [false, true]
                    .into_iter()
                    .filter(|it| !it || old)
                    .map(|old| Action::ListNodes { client, old }),
            );
        }
    }
}

impl Client {
    /// Nothing is before its node: it holds, if that is verified for long enough.
    pub(super) fn take(&mut self) {
        let until = self.valid_until();
        if self.verified < until {
            self.stage = Stage::Holding { until, told: until };
        }
    }

    /// Until when its node is verified to be there.
    pub(super) fn valid_until(&self) -> u8 {
        let until = self
            .liveness
            .validity(at(self.verified))
            .until(at(u8::MAX))
            .as_nanos();
        u8::try_from(until.div_ceil(1_000_000_000)).unwrap_or(u8::MAX)
    }

    /// What the session's handler tells the hold.
    pub(super) fn extended(&mut self) {
        self.shortened();
        let verified = self.valid_until();
        if let Stage::Holding { until, told } = &mut self.stage {
            *until = verified.max(*until);
            *told = (*told).max(*until);
        }
    }

    pub(super) fn shortened(&mut self) {
        let verified = self.valid_until();
        if let (Stage::Holding { until, .. }, true) =
            (&mut self.stage, self.liveness.is_shortened())
        {
            *until = verified.min(*until);
        }
    }

    /// Its session has ended.
    fn lose(&mut self) {
        let told = if let Stage::Holding { told, .. } = self.stage {
            told
        } else {
            0
        };
        self.stage = Stage::Lost { told };
    }

    pub(super) fn negotiated(&mut self, limit: Duration, now: u8) {
        self.liveness.negotiated(limit, at(now));
        self.shortened();
    }
}
