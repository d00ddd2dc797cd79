//! What requests do to the nodes, and answers to clients.

use super::{Hold, NODES, Node, Redlock, Request, Rule, Said, Stage, State, Verb};

impl Redlock {
    pub(super) fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    pub(super) fn needed(&self) -> usize {
        NODES / 2 + usize::from(self.has(Rule::Majority))
    }

    /// Sends a request to every node. Answers to earlier ones count no more.
    pub(super) fn send(s: &mut State, at: u8, verb: Verb) -> u8 {
        let client = &mut s.clients[usize::from(at)];
        client.latest += 1;
        let request = Request {
            client: at,
            attempt: client.latest,
            verb,
        };
        for node in &mut s.nodes {
            node.on_their_way.push(request);
            node.said[usize::from(at)] = Said::Nothing;
        }
        request.attempt
    }

    /// `node.lua`.
    pub(super) fn serve(&self, node: &mut Node, now: u8, request: Request) -> Said {
        let Request {
            client,
            attempt,
            verb,
        } = request;
        node.hold.take_if(|hold| hold.deadline <= now);
        let deadline = now + self.ttl;
        let is_free = node.hold.is_none();
        let mine = node.hold.as_mut().filter(|hold| hold.client == client);
        match (verb, mine) {
            (Verb::Claim, Some(mine)) => {
                (mine.deadline, mine.attempt) = (deadline, mine.attempt.max(attempt));
                Said::Token(mine.token)
            }
            (Verb::Claim, None) if is_free => {
                node.last += 1;
                let token = node.last;
                node.hold = Some(Hold {
                    client,
                    token,
                    attempt,
                    deadline,
                });
                Said::Token(token)
            }
            (Verb::Claim, None) => Said::No,
            (Verb::WriteBack { token }, Some(mine))
                if mine.token == token || mine.attempt <= attempt =>
            {
                (mine.deadline, mine.attempt, mine.token) =
                    (deadline, mine.attempt.max(attempt), token);
                node.last = node.last.max(token);
                Said::Token(token)
            }
            (Verb::WriteBack { token }, None) if !self.has(Rule::OnlyWhereItHolds) => {
                node.last = node.last.max(token);
                Said::Token(token)
            }
            (Verb::WriteBack { .. }, _) => Said::No,
            (Verb::Release, Some(mine))
                if mine.attempt <= attempt || !self.has(Rule::ReleaseNamesItsAttempt) =>
            {
                node.hold = None;
                Said::No
            }
            (Verb::Release, _) => Said::No,
        }
    }

    /// What a client concludes from what the nodes have said up to now.
    pub(super) fn decide(&self, s: &mut State, at: u8) {
        let who = usize::from(at);
        let said: Vec<Said> = s.nodes.iter().map(|node| node.said[who]).collect();
        let tokens: Vec<u8> = said
            .iter()
            .filter_map(|it| {
                if let Said::Token(it) = it {
                    Some(*it)
                } else {
                    None
                }
            })
            .collect();
        let refused = said.iter().filter(|it| **it == Said::No).count();
        let (granted, impossible) = (
            tokens.len() >= self.needed(),
            NODES - refused < self.needed(),
        );
        match s.clients[who].stage {
            Stage::Claiming { sent, .. } if granted => {
                let token = tokens.iter().copied().max().unwrap_or_default();
                let agreed = tokens.iter().filter(|it| **it == token).count() >= self.needed();
                if agreed || !self.has(Rule::WriteBack) {
                    self.hold(s, at, token, sent);
                } else {
                    let attempt = Redlock::send(s, at, Verb::WriteBack { token });
                    s.clients[who].stage = Stage::WritingBack {
                        attempt,
                        sent,
                        token,
                    };
                }
            }
            Stage::WritingBack { sent, token, .. } if granted => self.hold(s, at, token, sent),
            Stage::Claiming { .. } | Stage::WritingBack { .. } if impossible => {
                self.give_back(s, at);
            }
            _ => {}
        }
    }

    pub(super) fn hold(&self, s: &mut State, at: u8, token: u8, sent: u8) {
        let since = if self.has(Rule::CountsFromTheSend) {
            sent
        } else {
            s.now
        };
        let until = since + self.ttl;
        if until <= s.now {
            return self.give_back(s, at);
        }
        s.fell |= token <= s.greatest;
        s.greatest = s.greatest.max(token);
        let client = &mut s.clients[usize::from(at)];
        (client.stage, client.has_held) = (Stage::Holding { token, until }, true);
    }

    /// Nothing of the attempt is to be left; the claim may be sent again.
    pub(super) fn give_back(&self, s: &mut State, at: u8) {
        Redlock::send(s, at, Verb::Release);
        s.clients[usize::from(at)].stage = Stage::Idle;
    }
}
